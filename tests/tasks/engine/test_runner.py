"""The runners, and what they pass around: calls as values, equal calls once, failures that wait for their siblings."""

import asyncio
import json
import pickle
import platform
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.configs.model import Limits
from pteforge.configs.sources import BuilderSource, ProgramSource
from pteforge.errors import ObjectDamaged, SourceError, StageFailed
from pteforge.tasks.backend.stages.edge import Edge
from pteforge.tasks.engine.executor import Executor, LedgerRunner, SharingRunner, StageWork
from pteforge.tasks.engine.keys.code import StageKey
from pteforge.tasks.engine.runner import CutShort, DepthFirst, Done, NotCached, StageCall, StageId, UserCode
from pteforge.tasks.export.stages.export import Export
from pteforge.tasks.lowering.runs import run_without_loop, together
from pteforge.tasks.targets import TargetParams

REF = ArtifactRef("program/aten", BlobRef(digest_bytes(b"program"), 7), digest_bytes(b"identity"))


def call(name="edge", **fields):
    """A call of the edge stage, or of another one by class."""
    values = {
        "model": "net",
        "id": StageId(name, "forward", "xnnpack-fp32"),
        "stage": Edge,
        "params": Edge.Params(preserve_for=TargetParams(name="xnnpack", options={"per_operator": False})),
        "inputs": {"program": REF},
        "limits": Limits(timeout=9, memory=2**30),
        "folder": Path("/zoo"),
    }
    return StageCall(**{**values, **fields})


@pytest.mark.parametrize(
    "source", [BuilderSource(builder="pkg.mod:build", files=(Path("/a"),)), ProgramSource(program=Path("/p.pt2"))]
)
def test_calls_are_values(source):
    """A call and its result survive JSON. It is small: all that a process needs, and nothing that lives in this one."""
    user_code = UserCode("watched", source, (BuilderSource(builder="pkg.mod:fold", kwargs={"deep": True}),))
    for made in (
        call(),
        call(stage=Export, params=Export.Params(source={"builder": "b"}), inputs={}, user_code=user_code),
        call(python_path=(Path("/zoo"), Path("/more")), program_file=Path("/p.pt2"), submitted=1.5),
    ):
        work = StageWork(made, Path("/store"))
        content = json.dumps(work.to_json())
        assert StageWork.from_json(json.loads(content)) == work
        assert len(content) < 2048
        assert json.loads(content)["call"]["stage"] == made.stage.name
        key = StageKey("edge", REF.identity, {"torch": "2"}, {"program": REF.identity}, {"rate": 1.0, "names": ["a"]})
        done = Done(made, key, {"program": REF}, cached=False, seconds=0.1, reason="had not run before")
        assert Done.decode(done.encode()) == done
        assert Done.decode(done.encode()).key.digest() == key.digest()


def test_step_names():
    """People and the ledger see stage, method, recipe and payload; within a recipe, its name is left out."""
    step = StageId("edge", "forward", "fat", "vulkan")
    assert (str(step), step.part) == ("edge/forward/fat.vulkan", "edge/forward.vulkan")
    assert str(StageId("export")) == "export"
    assert call().slot == "net/edge/forward/xnnpack-fp32"


class Engine:
    """An engine whose stages do what a function says."""

    store = None

    def __init__(self, body):
        self.body = body
        self.found = {}

    def key(self, call):
        return StageKey(call.stage.name, "0" * 64, {}, {}, call.params.model_dump(mode="json"))

    def find(self, call):
        return self.found.get(call.slot)


class Runner(SharingRunner):
    """Runs a function in the event loop."""

    async def run(self, call):
        await asyncio.sleep(0)
        self.engine.body(call)
        return Done(call, self.engine.key(call), {}, cached=False)


def test_equal_calls_run_once():
    """Of equal calls one runs, whoever makes them; all get its result, or what it raised."""
    ran = []
    runner = Runner(Engine(lambda call: ran.append(call.model)))
    other = call(params=Edge.Params())

    async def both():
        first = await asyncio.gather(runner(call()), runner(call(model="twin")), runner(other))
        again = await runner(call())
        runner.forget_finished()
        return [*first, again, await runner(call())]

    done = asyncio.run(both())
    assert ran == ["net", "net", "net"]  # the call and its twin once, the other, and once more after it was forgotten
    assert len({each.key.digest() for each in done[:2]}) == 1
    assert [each.call.model for each in done] == ["net", "twin", "net", "net", "net"]  # each gets it for its own call

    def fail(call):
        raise StageFailed(call.model)

    runner = Runner(Engine(fail))

    async def failing():
        return await together({"a": runner(call()), "b": runner(call(model="twin"))}, return_exceptions=True)

    outcomes = asyncio.run(failing())
    assert outcomes["a"] is outcomes["b"]


async def _value(value):
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


def test_failures_wait_for_their_siblings():
    """All calls come to their end; then the first failure is raised, a real one before that a run was cut short."""
    ended = []

    async def slow(value):
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(value)
        return value

    async def run(values):
        return await together({"first": _value(values[0]), "slow": slow(1), "last": _value(values[1])})

    with pytest.raises(StageFailed):
        asyncio.run(run([CutShort(), StageFailed("real")]))
    assert ended == [1]
    with pytest.raises(CutShort):
        asyncio.run(run([CutShort(), 2]))
    assert asyncio.run(run([0, 2])) == {"first": 0, "slow": 1, "last": 2}
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(together({"a": _value(KeyboardInterrupt()), "b": _value(1)}, return_exceptions=True))


def test_without_an_event_loop():
    """Where nothing waits, a lowering needs no event loop, and may run inside of one that is there (a notebook's)."""
    order = []

    async def leaf(name):
        order.append(name)
        return name

    async def branch(name):
        order.append(name)
        return await together({f"{name}{number}": leaf(f"{name}{number}") for number in (1, 2)})

    async def notebook():
        return run_without_loop(together({"a": branch("a"), "b": branch("b")}))

    assert asyncio.run(notebook()) == {"a": {"a1": "a1", "a2": "a2"}, "b": {"b1": "b1", "b2": "b2"}}
    assert order == ["a", "a1", "a2", "b", "b1", "b2"]
    with pytest.raises(RuntimeError, match="must not wait"):
        run_without_loop(_value(0))


def test_the_ledger_runner_runs_nothing():
    """It finds what there is, and raises at the first stage that would have to run."""
    engine = Engine(None)
    with pytest.raises(NotCached, match="net edge/forward/xnnpack-fp32"):
        run_without_loop(LedgerRunner(engine)(call()))
    engine.found[call().slot] = done = Done(call(), engine.key(call()), {}, cached=True)
    assert run_without_loop(LedgerRunner(engine)(call())) is done


def test_errors_cross_processes():
    """Errors arrive from another process as they were raised, attributes included."""
    sent = [StageFailed("broken", log_tail="last words", bad_input=True), ObjectDamaged("ab", "store", "aside/ab")]
    failed, damaged, refused = pickle.loads(pickle.dumps([*sent, SourceError("x")]))  # noqa: S301 - our own
    assert (str(failed), failed.log_tail, failed.bad_input) == ("broken", "last words", True)
    assert (damaged.digest, damaged.quarantine) == ("ab", "aside/ab")
    assert "damaged" in str(damaged)
    assert isinstance(refused, SourceError)


def test_executor_is_an_engine(tmp_path, monkeypatch):
    """The executor has what runners call; its key covers stage, code, versions, inputs and params.

    Python's version is in the key of every stage: where machines with several share a store, none finds what another
    has made. Code means what its Python makes of it, syntax trees have other fields, and pickles name internals.
    """
    from pteforge.artifacts.store import open_store

    with open_store(str(tmp_path / "store")) as store:
        executor = Executor(store, workers=None)
        key = executor.key(call())
        assert key.stage == "edge"
        assert key.inputs == {"program": REF.identity}
        assert {"python", "torch", "executorch", "torchao"} <= set(key.versions)
        assert executor.find(call()) is None
        monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
        another = Executor(store, workers=None).key(call())
        assert another.versions == {**key.versions, "python": "3.99.0"} != key.versions
        assert another.digest() != key.digest()
        monkeypatch.undo()
        assert executor.key(call(params=Edge.Params())).code != key.code  # xnnpack's code takes part in one of them


def test_models_that_were_begun_first_go_first():
    """Of the calls that wait, those of the earliest model are next, whenever they came; cancelled ones are passed."""
    order = []

    async def stage(calls, model):
        async with calls.turn(model):
            order.append(model)
            await asyncio.sleep(0)

    async def run():
        calls = DepthFirst(1)
        async with calls.turn("first"):
            waiting = [asyncio.create_task(stage(calls, model)) for model in ("second", "third", "first", "second")]
            await asyncio.sleep(0)
            waiting[0].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.wait_for(stage(calls, "fourth"), 5)

    asyncio.run(run())
    assert order == ["first", "second", "third", "fourth"]
