"""Which stages may share a worker process, what becomes of damaged inputs, and the memory that a stage will need."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pteforge.artifacts.digest import canonical_json, digest_bytes
from pteforge.artifacts.lease import Lease, LocalLeases
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.local_store import VERIFIED_MTIME_NS
from pteforge.artifacts.ref import ArtifactManifest, ArtifactRef
from pteforge.artifacts.store import Store, open_store
from pteforge.configs.model import Limits
from pteforge.configs.recipe import CompileOptions
from pteforge.errors import LeaseLost, ObjectMissing, StageCrashed, StageFailed
from pteforge.tasks.backend.stages.compile import Compile
from pteforge.tasks.backend.stages.edge import Edge, PassParams
from pteforge.tasks.backend.stages.partition import Partition
from pteforge.tasks.backend.stages.preprocess import Preprocess
from pteforge.tasks.engine.executor import Executor, predict_memory
from pteforge.tasks.engine.runner import StageCall, StageId
from pteforge.tasks.engine.workers import CallChain, InProcess, WorkerCall, memory_for_calls
from pteforge.tasks.engine.workers.protocol import PROCESSES_VARIABLE, WorkerReport
from pteforge.tasks.export.stages.export import Export
from pteforge.tasks.results.accuracy import Score, Scores
from pteforge.tasks.targets import TargetParams
from pteforge.tasks.verify.stages.bench import Bench
from pteforge.tasks.verify.stages.gate import Gate

PACKAGES = Path(__file__).parents[2] / "flows" / "packages"
XNNPACK = TargetParams(name="xnnpack")
EDGE = Edge.Params(passes_of=XNNPACK)
EXPORT = Export.Params(source={"builder": "nets:linear"})


class Listening(InProcess):
    """Remembers the chain and the memory of the last call, and runs none."""

    chain: CallChain | None = None
    memory: int | None = None

    def run(self, call: WorkerCall) -> Any:
        self.chain, self.memory = call.chain, call.memory
        raise StageFailed("not run")

    def awaits(self, chain: CallChain | None) -> bool:
        self.chain = chain
        return super().awaits(chain)


@pytest.fixture
def chain(tmp_path):
    """The chain of a stage with these params, in a recipe."""
    runner = Listening()
    executor = Executor(Store(tmp_path / "store"), runner)

    def of(stage: Any, params: Any, **step: str) -> CallChain | None:
        name = StageId(stage.name, **{"recipe": "fast", **step})
        call = StageCall("net", name, stage, params, {}, Limits(), tmp_path, python_path=(tmp_path,))
        assert not executor.awaited(call)
        return runner.chain

    return of


def test_calls_run_in_their_chains(tmp_path):
    """The process that is asked for a call is the one of its chain."""
    runner = Listening()
    executor = Executor(Store(tmp_path / "store"), runner)
    call = StageCall("net", StageId("edge", recipe="fast"), Edge, EDGE, {}, Limits(), tmp_path)
    assert not executor.awaited(call)
    asked, runner.chain = runner.chain, None
    with pytest.raises(StageFailed):
        executor.run(call)
    assert runner.chain == asked is not None


def test_what_runs_alone(tmp_path):
    """A stage that measures time asks for more memory than there is, which is admitted when nothing else runs."""
    runner = Listening()
    executor = Executor(Store(tmp_path / "store"), runner)
    params = Bench.Params(place=None, machine="m")
    with pytest.raises(StageFailed):
        executor.run(StageCall("net", StageId("bench", recipe="fast"), Bench, params, {}, Limits(), tmp_path))
    assert runner.memory > memory_for_calls()


def test_the_stages_of_a_payload_are_a_chain(chain, monkeypatch):
    """Our own stages, from edge to compile, of one payload. The process does not wait after the last one."""
    compiling = Compile.Params(options=CompileOptions(), edge=EDGE)
    calls = [(Edge, EDGE), (Partition, Partition.Params(target=XNNPACK, edge=EDGE))]
    calls += [(Preprocess, Preprocess.Params(targets=(XNNPACK,))), (Compile, compiling)]
    chains = [chain(stage, params) for stage, params in calls]
    assert len({each.name for each in chains}) == 1
    assert [each.goes_on for each in chains] == [True, True, True, False]
    assert chain(Edge, EDGE, method="encode") == chains[0]
    others = [chain(Edge, EDGE, recipe="small"), chain(Edge, EDGE, payload="vulkan")]
    assert len({each.name for each in (*others, chains[0])}) == 3
    monkeypatch.setenv(PROCESSES_VARIABLE, "fresh")
    assert chain(Edge, EDGE) is None


@pytest.mark.parametrize("name", ["acme", "acme+xnnpack"])
def test_code_of_others_shares_no_process(chain, monkeypatch, name):
    """What a model's builder, a recipe's passes or another package's target leaves in a process reaches no stage."""
    monkeypatch.syspath_prepend(PACKAGES / "acme")
    acme = TargetParams(name=name)
    assert chain(Export, EXPORT) is None
    passes = (PassParams(source={"builder": "passes:fuse"}),)
    assert chain(Edge, EDGE.model_copy(update={"passes": passes})) is None
    assert chain(Edge, Edge.Params(preserve_for=acme)) is None
    assert chain(Partition, Partition.Params(target=acme, edge=EDGE)) is None
    assert chain(Preprocess, Preprocess.Params(targets=(XNNPACK, acme))) is None


@pytest.mark.parametrize("url", ["memory://copies", ""])
def test_input_that_rots_on_this_machine(tmp_path, url):
    """A stage that finds a local copy damaged runs again with a new one; otherwise the object is reported missing."""
    with open_store(url or str(tmp_path / "store"), cache=tmp_path) as store:
        scores = canonical_json(Scores((Score("", 0.75),), {}).to_json())
        ref = store.local.put_artifact("report/scores", scores)
        store.publish(ref)
        path = store.local.path(ref.root)
        path.chmod(0o644)
        path.write_bytes(scores.replace(b"0.75", b"0.95"))
        path.chmod(0o444)
        os.utime(path, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))
        params = Gate.Params(evaluator="zoo:top1", floor=0.5, max_drop=None)
        call = StageCall("net", StageId("gate", recipe="fast"), Gate, params, {"scores": ref}, Limits(), tmp_path)
        executor = Executor(store, InProcess())
        if not url:
            with pytest.raises(ObjectMissing, match=ref.root.digest):
                executor.run(call)
            return
        report = store.local.read_artifact(executor.run(call).outputs.accuracy)
        assert b"0.75" in report
        assert store.ledger.lookup(executor.key(call).digest()).reads == (ref.root.digest,)


MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def program(store: Store, *sizes: int) -> ArtifactRef:
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


class Losing(LocalLeases):
    """Leases of which the first one is lost as soon as its stage runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.taken: list[Lease] = []

    @contextmanager
    def hold(self, key: Any, what: str = "") -> Iterator[Lease]:
        class Lost(Lease):
            def check(self) -> None:
                if self.lost:
                    raise LeaseLost("lost")

        with super().hold(key, what):
            self.taken.append(Lost())
            yield self.taken[-1]


@pytest.mark.parametrize("killed", [False, True])
def test_lost_lease(tmp_path, killed):
    """A stage whose lease is lost is killed; nothing of it is published, and the result is that of the new holder."""
    store = Store(tmp_path / "store")
    leases = store.leases = Losing(tmp_path / "leases")
    call = StageCall("net", StageId("edge", recipe="fast"), Edge, EDGE, {}, Limits(), tmp_path)

    class Taken(InProcess):
        def run(self, asked: WorkerCall) -> Any:
            asked.started()
            assert not asked.given_up()
            leases.taken[0].lost = True
            assert asked.given_up()
            outputs = {"program": store.local.put_artifact("program/edge", b"theirs")}
            key = executor.key(call)
            store.ledger.commit(StageRecord(key.digest(), key.fields(), outputs, 1.0, 0, "2026-01-01T00:00:00+00:00"))
            if killed:
                raise StageCrashed("killed")
            ours = store.local.put_artifact("program/edge", b"ours")
            return WorkerReport({"outputs": {"program": ours.to_json()}, "remarks": []}, 1.0, 0, b"")

    executor = Executor(store, Taken())
    done = executor.run(call)
    assert done.cached
    assert store.local.read_artifact(done.roles["program"]) == b"theirs"
    assert len(leases.taken) == 2
