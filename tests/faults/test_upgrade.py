"""Stores of earlier versions: each record and object is read as it was meant, or counts as absent.

The stores in tests/faults/stores are of the zoo in tests/faults/models. Each was made in an empty folder, from a
checkout of an earlier commit, and packed with `tar -cJf` without `lock` and what is in `tmp` and `leases`:

    PYTHONPATH=<parent of the checkout> pteforge export zoo.yaml --store store    # twice: the second finds everything

- `before_whole_models`: commit a7788d9. There are no records of whole models, run records have neither status nor
  parameters, and lists of watched modules are arrays.
- `before_digested_reads`: commit a130f3c. Records of stages do not say what they read; none of its runs has a checksum.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from pteforge.artifacts.gc import verify_store
from pteforge.artifacts.locations import open_store
from pteforge.tasks.workers import Workers
from pteforge.tests.faults.zoo import make_two_models
from pteforge.tests.flows.conftest import lower_zoo

HERE = Path(__file__).parent
STAGES = 16
RUNS = 2


@pytest.fixture(scope="module")
def workers():
    with Workers(jobs=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def fresh(workers, tmp_path_factory):
    """The results of a new store."""
    project = make_two_models(tmp_path_factory.mktemp("fresh") / "project")
    assert lower_zoo(project, workers).outcome.exit_code == 0
    return project.files()


@pytest.fixture
def upgraded(tmp_path, request):
    """A project with the store of an earlier version."""
    project = make_two_models(tmp_path / "project")
    with tarfile.open(HERE / "stores" / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="tar")
    (tmp_path / request.param).rename(project.store)
    return project


@pytest.fixture
def command(upgraded, run_here, monkeypatch):
    """Runs a command on the store; it has to end without an error."""
    monkeypatch.setenv("PTEFORGE_STORE", str(upgraded.store))

    def run(*args: str, code: int = 0):
        said = run_here(upgraded.folder, *args)
        assert said.code == code, said.err
        return said

    return run


EACH = pytest.mark.parametrize(
    "upgraded", [pytest.param("before_whole_models", marks=pytest.mark.nightly), "before_digested_reads"], indirect=True
)


@EACH
def test_old_stores_are_used(upgraded, command, fresh, workers):
    """A run on an old store makes the files that a new store's has, and commands understand runs of both versions."""
    ask(command, RUNS)
    run = lower_zoo(upgraded, workers)
    assert run.outcome.exit_code == 0, run.outcome.failures
    assert upgraded.files() == fresh
    ask(command, RUNS + 1)
    again = lower_zoo(upgraded, workers)
    assert not any(again.ran(model) for model in ("wide", "plugin"))
    assert upgraded.files() == fresh


def ask(command, runs: int) -> None:
    """Asks everything that a store answers."""
    listed = command("runs", "--json").json["runs"]
    assert len(listed) == runs
    before, after = listed[-1]["id"], listed[0]["id"]
    code_of_diff = 0 if listed[-1]["status"] else 2  # the first version did not record files: an error says so
    command("why", "wide")
    command("diff", before, after, code=code_of_diff)
    command("store", "ls")
    assert json.loads(command("store", "verify", "--json").out)["damaged"] == []
    command("store", "gc")


@pytest.mark.parametrize("upgraded", ["before_whole_models", "before_digested_reads"], indirect=True)
def test_old_records_are_read(upgraded):
    """Every record of an earlier version is understood, and all objects that it names are there."""
    with open_store(str(upgraded.store)) as store:
        records = list(store.ledger)
        assert len(records) == STAGES
        assert {slot.key for slot in store.ledger.slots()} <= {record.key for record in records}
        assert all(store.has(ref) for record in records for ref in record.outputs.values())
        assert [len(run.models) for run in store.runs] == [2] * RUNS
        checked = verify_store(store)
    assert checked.damaged == checked.incomplete == ()
