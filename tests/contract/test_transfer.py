"""Copies between a store in a folder and every kind of store."""

from __future__ import annotations

from datetime import datetime

import pytest
from pteforge.artifacts.digest import digest_json
from pteforge.artifacts.ledger import FoundCase
from pteforge.artifacts.store import Transferred, open_store, transfer
from pteforge.tests.contract.conftest import commit


@pytest.fixture
def mine(tmp_path):
    with open_store(str(tmp_path / "mine")) as store:
        yield store


def test_there_and_back(mine, place, tmp_path):
    """What the other side lacks is copied, with logs, watch lists and slots; a second time there is nothing to do."""
    records = [commit(mine, number) for number in range(3)]
    mine.ledger.watch("builder", ["hidden", "late"])
    mine.ledger.remember("net/export", records[0].key, {"number": 0})
    found = FoundCase(mine.local.put_artifact("examples/found", b"inputs"), digest_json(1), wrong=False)
    mine.ledger.keep_found("net/int8", found)
    with place.open("a") as theirs:
        commit(theirs, 2, finished=datetime.fromisoformat(records[2].finished))
        commit(theirs, 3)
        theirs.ledger.remember("net/edge", records[1].key, {})
        assert transfer(mine, theirs) == Transferred(stages=2, present=1, lost=0)
        assert transfer(mine, theirs) == Transferred(stages=0, present=3, lost=0)
    with place.open("b") as theirs, open_store(str(tmp_path / "new")) as new:
        assert transfer(theirs, new) == Transferred(stages=4, present=0, lost=0)
        for record in records:
            assert new.ledger.lookup(record.key) == record
            new.fetch(record.outputs["program"])
            assert new.local.read(record.log).startswith(b"log ")
        assert new.ledger.watched("builder") == ("hidden", "late")
        assert {slot.slot for slot in new.ledger.slots()} == {"net/export", "net/edge"}
        assert new.ledger.found_inputs("net/int8") == (found,)
        assert new.has(found.inputs)


def test_what_is_there_stays(mine, place):
    """The other side's own watch lists and slots are not replaced: its keys depend on them."""
    mine.ledger.watch("builder", ["hidden"])
    mine.ledger.remember("net/export", digest_json(1), {})
    with place.open() as theirs:
        theirs.ledger.watch("builder", ["other"])
        theirs.ledger.remember("net/export", digest_json(2), {})
        transfer(mine, theirs)
        assert theirs.ledger.watched("builder") == ("other",)
        assert theirs.ledger.last("net/export").key == digest_json(2)


def test_damaged_stages_are_left_out(mine, place):
    """A stage whose output is gone or damaged is counted, not copied; the other side never sees its record."""
    gone, damaged, good = (commit(mine, number) for number in range(3))
    for record, content in ((gone, None), (damaged, b"something else")):
        path = mine.local.root / "objects" / record.log.digest[:2] / record.log.digest
        path.chmod(0o644)
        path.unlink() if content is None else path.write_bytes(content)
    with place.open() as theirs:
        assert transfer(mine, theirs) == Transferred(stages=1, present=0, lost=2)
        assert [record.key for record in theirs.ledger] == [good.key]
