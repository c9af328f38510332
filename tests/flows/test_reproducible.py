"""The same zoo gives the same bytes, wherever and however it is lowered."""

from __future__ import annotations

import pytest
from pteforge.tasks.workers import Workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_bytes_do_not_depend_on_where_and_how(cold, make_room, make_lower, tmp_path, monkeypatch, hash_seed):
    """Files and provenance are the same from cold stores in other folders, one stage at a time, with other hash seeds.

    The command line made the first ones, several stages at once.
    """
    monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
    room = make_room(tmp_path / f"seed-{hash_seed}" / "room")
    room.write("zoo.yaml", (cold.room.folder / "zoo.yaml").read_text())
    with Workers(jobs=1) as workers:
        run = make_lower(workers)(room)
    assert run.outcome.exit_code == 0
    assert {model.cached for model in run.outcome.models} == {0}
    assert room.files() == cold.room.files()
    assert objects(room) == objects(cold.room)


def objects(room):
    """What stages gave, by kind and identity: programs keep stack traces beside, which name folders."""
    from pteforge.artifacts.store import open_store

    with open_store(str(room.store)) as store:
        return {(ref.kind, ref.identity) for record in store.ledger for ref in record.outputs.values()}
