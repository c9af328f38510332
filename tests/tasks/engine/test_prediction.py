"""The memory that a stage is expected to need."""

from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.ref import ArtifactManifest, ArtifactRef
from pteforge.artifacts.store import LocalOnlyStore
from pteforge.configs.model import Limits
from pteforge.tasks.engine.executor import predict_memory
from pteforge.tasks.engine.runner import StageCall, StageId
from pteforge.tasks.stages.compile import Compile
from pteforge.tasks.stages.edge import Edge
from pteforge.tasks.stages.export import Export

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> LocalOnlyStore:
    return LocalOnlyStore(tmp_path / "store")


def program(store: LocalOnlyStore, *sizes: int) -> ArtifactRef:
    """A program with weights of these sizes; those of equal size are equal."""
    weights = tuple(store.local.put_bytes(bytes([size % 251]) * size) for size in sizes)
    return store.local.put_manifest(ArtifactManifest("program/aten", weights, {"weights": len(weights)}))


def call(stage, *inputs: ArtifactRef, **fields) -> StageCall:
    roles = {f"program/{index}": ref for index, ref in enumerate(inputs)}
    params = Export.Params(source={"builder": "b"}) if stage is Export else None
    made = StageCall("net", StageId(stage.name, "forward"), stage, params, roles, Limits(), Path())
    return replace(made, **fields)


def test_by_the_size_of_the_inputs(store):
    """What has not run is judged by its inputs: a factor for the stage, and weights that inputs share count once."""
    small, large = program(store, MIB), program(store, MIB, 40 * MIB)
    grown = predict_memory(call(Compile, large), store) - predict_memory(call(Compile, small), store)
    assert 2 * 40 * MIB < grown < 3 * 40 * MIB
    assert predict_memory(call(Edge, large), store) < predict_memory(call(Compile, large), store)
    shared = predict_memory(call(Compile, large, small), store) - predict_memory(call(Compile, large), store)
    assert 0 < shared < MIB  # the manifest alone


def test_of_a_model_that_was_never_built(store, tmp_path):
    """A builder may make anything; a file of a program is as large as its weights."""
    file = tmp_path / "net.pt2"
    file.write_bytes(bytes(10 * MIB))
    assert predict_memory(call(Export, program_file=file), store) < predict_memory(call(Export), store)


def test_what_it_took_the_last_time(store):
    """The figure of the slot's last run takes precedence, whatever has changed since; the limit is never exceeded."""
    made = call(Compile, program(store, MIB))
    record = StageRecord(digest_bytes(b"key"), {}, {}, 1.0, 777 * MIB, "2026-01-02T03:04:05+00:00")
    store.ledger.commit(record)
    store.ledger.remember(made.slot, record.key, record.fields)
    assert predict_memory(made, store) == 777 * MIB
    assert predict_memory(replace(made, limits=Limits(memory=500 * MIB)), store) == 500 * MIB
    store.ledger.commit(replace(record, peak_memory=0))  # it was made in the caller's process
    assert predict_memory(made, store) < 777 * MIB
