"""Running steps as their inputs become ready: what is blocked, what runs at once, what an interrupt ends."""

from __future__ import annotations

import contextvars
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import Digest, digest_bytes
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.configs.verify_bounds import VerifyBounds
from pteforge.errors import StageFailed
from pteforge.tasks.catalog import StageName
from pteforge.tasks.dataflow import Progress, find_steps, input_refs, run_steps
from pteforge.tasks.executor import StepResult
from pteforge.tasks.keys.key import StageKey
from pteforge.tasks.params import EdgeParams, ReportParams, TargetParams
from pteforge.tasks.plan import ModelPlan
from pteforge.tasks.steps import Output, Step

PARAMS = EdgeParams()
REPORT = ReportParams(
    model="m",
    recipe="r",
    specializations={"t": TargetParams(name="t")},
    stage_keys={},
    versions={},
    bounds=VerifyBounds(),
)


def plan_of(graph, params=None, optional=()):
    """A plan from step name to the names of what it reads; of `optional` ones it does without what fails."""
    steps = tuple(
        Step(
            name,
            StageName.EDGE,
            (params or {}).get(name, PARAMS),
            {f"from {source}": Output(source, "out") for source in reads},
            ("r",),
            optional=frozenset(f"from {source}" for source in reads) if name in optional else frozenset(),
        )
        for name, reads in graph.items()
    )
    return ModelPlan(steps, ("forward",), {}, {"r": tuple(graph)}, {"r": {name: name for name in graph}})


def result_of(step, cached=False):
    """A settled step, its output and its key told from its name."""
    digest = digest_bytes(step.name.encode())
    ref = ArtifactRef("program/edge", BlobRef(digest, 1), digest)
    return StepResult(step, StageKey("edge", Digest("0" * 64), {}, {}, step.name), {"out": ref}, cached, 0.0, 0)


def settled(step, inputs):
    """Settles a step at once, if its inputs are those it reads."""
    for role, result in inputs.items():
        assert role == f"from {result.step.name}"
    assert set(inputs) == set(step.inputs)
    return result_of(step)


def test_every_step_gets_what_it_reads():
    """All steps are settled, each with the results of the steps it reads from, by role."""
    progress = Progress()
    run_steps(plan_of({"a": [], "b": ["a"], "c": ["a", "b"]}), settled, progress, threads=2)
    assert list(progress.results) == ["a", "b", "c"]
    assert not progress.failures


@given(st.data())
def test_failures_block_dependents_and_nothing_else(data):
    """In any graph with any failures, exactly the steps behind a failed one are left out."""
    count = data.draw(st.integers(1, 7))
    graph = {
        str(number): data.draw(st.lists(st.sampled_from([str(n) for n in range(number)]), unique=True))
        if number
        else []
        for number in range(count)
    }
    failing = data.draw(st.sets(st.sampled_from(list(graph))))

    def settle(step, inputs):
        if step.name in failing:
            raise ValueError(step.name)
        return settled(step, inputs)

    blocked = set()
    for name, reads in graph.items():
        if any(source in blocked or source in failing for source in reads):
            blocked.add(name)
    progress = Progress()
    run_steps(plan_of(graph), settle, progress, threads=data.draw(st.integers(1, 3)))

    assert set(progress.failures) == failing - blocked
    assert set(progress.results) == set(graph) - failing - blocked
    assert {name: str(error) for name, error in progress.failures.items()} == {n: n for n in failing - blocked}


def test_independent_steps_run_at_once():
    """Steps that do not read from each other run together: each of these waits for the others to have started."""
    together = threading.Barrier(3, timeout=30)

    def settle(step, inputs):
        if step.name != "first":
            together.wait()
        return settled(step, inputs)

    progress = Progress()
    graph = {"first": [], "a": ["first"], "b": ["first"], "c": ["first"]}
    run_steps(plan_of(graph), settle, progress, threads=3)
    assert set(progress.results) == set(graph)


def test_a_slow_step_does_not_hold_up_another_branch():
    """A branch goes on to its end while a step of another one still runs."""
    other_branch_is_done = threading.Event()

    def settle(step, inputs):
        if step.name == "slow":
            assert other_branch_is_done.wait(30)
        if step.name == "b3":
            other_branch_is_done.set()
        return settled(step, inputs)

    progress = Progress()
    run_steps(plan_of({"slow": [], "b1": [], "b2": ["b1"], "b3": ["b2"]}), settle, progress, threads=2)
    assert not progress.failures


def test_no_more_steps_at_once_than_threads():
    """The number of threads is a limit."""
    lock, running, most = threading.Lock(), 0, 0

    def settle(step, inputs):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        result = settled(step, inputs)
        with lock:
            running -= 1
        return result

    run_steps(plan_of({str(number): [] for number in range(20)}), settle, Progress(), threads=2)
    assert 1 <= most <= 2


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_end_the_run(interrupt):
    """What is no ordinary error is not kept as a step's failure: it goes up, and nothing behind it is begun."""
    begun = []

    def settle(step, inputs):
        begun.append(step.name)
        if step.name == "a":
            raise interrupt
        return settled(step, inputs)

    progress = Progress()
    with pytest.raises(interrupt):
        run_steps(plan_of({"a": [], "b": ["a"]}), settle, progress, threads=2)
    assert begun == ["a"]
    assert not progress.failures


def test_progress_is_gone_on_from():
    """Steps that are settled or failed already are not run again."""
    plan = plan_of({"done": [], "failed": [], "next": ["done"], "behind": ["failed"]})
    progress = Progress(results={"done": result_of(plan.steps[0])}, failures={"failed": ValueError("before")})
    begun = []

    def settle(step, inputs):
        begun.append(step.name)
        return settled(step, inputs)

    run_steps(plan, settle, progress, threads=1)
    assert begun == ["next"]


def test_steps_see_the_callers_context():
    """Context variables (Prefect's run context is one) reach the threads; what a step sets stays its own."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    seen = {}

    def settle(step, inputs):
        seen[step.name] = variable.get()
        variable.set("a step's")
        return settled(step, inputs)

    run_steps(plan_of({"a": [], "b": ["a"], "c": []}), settle, Progress(), threads=1)
    assert seen == dict.fromkeys("abc", "the caller's")


def test_reports_are_completed_before_they_run():
    """A report is settled with the keys of the steps before it in its params."""
    plan = plan_of({"a": [], "report": ["a"]}, {"report": REPORT})
    params = {}

    def settle(step, inputs):
        params[step.name] = step.params
        return settled(step, inputs)

    run_steps(plan, settle, Progress(), threads=1)
    assert params["report"].stage_keys == {"a": result_of(plan.steps[0]).key.digest()}


def test_input_refs():
    """Roles lead to the outputs that they name."""
    plan = plan_of({"a": [], "b": ["a"]})
    made = result_of(plan.steps[0])
    assert input_refs(plan.steps[1], {"from a": made}) == {"from a": made.outputs["out"]}


def test_finding_goes_as_far_as_the_ledger_knows():
    """Steps are looked up in order, with their inputs; nothing behind a missing one is, since its key is unknown."""
    plan = plan_of({"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    asked = {}

    def find(step, inputs):
        asked[step.name] = (step, inputs)
        return None if step.name == "b" else result_of(step, cached=True)

    progress = Progress()
    find_steps(plan, find, progress)

    assert list(asked) == ["a", "b", "d"]
    assert asked["b"][1] == {"from a": result_of(plan.steps[0]).outputs["out"]}
    assert set(progress.results) == {"a", "d"}


def test_optional_inputs_are_done_without():
    """A step runs without an optional input whose step fails, or is behind one that fails; others it waits for."""
    plan = plan_of(
        {"a": [], "bad": [], "behind": ["bad"], "pack": ["a", "behind"], "file": ["pack"]}, optional={"pack"}
    )
    seen = {}

    def settle(step, inputs):
        seen[step.name] = set(inputs)
        if step.name == "bad":
            raise StageFailed("cannot be lowered")
        return result_of(step)

    progress = Progress()
    run_steps(plan, settle, progress, threads=2)
    assert set(progress.results) == {"a", "pack", "file"}
    assert set(progress.failures) == {"bad"}
    assert progress.lost(plan) == {"bad", "behind"}
    assert seen["pack"] == {"from a"}


def test_without_threads_steps_run_here():
    """With no threads, steps are settled one after another in the calling thread; what they raise is kept as ever."""
    ran = []

    def settle(step, inputs):
        ran.append((step.name, threading.current_thread()))
        if step.name == "b":
            raise StageFailed("no")
        return settled(step, inputs)

    progress = Progress()
    run_steps(plan_of({"a": (), "b": ("a",), "c": ("a",), "d": ("b",)}), settle, progress, threads=0)
    assert ran == [(name, threading.current_thread()) for name in "abc"]
    assert set(progress.results) == {"a", "c"}
    assert set(progress.failures) == {"b"}


def test_an_interrupt_ends_a_run_without_threads():
    """Ctrl-C in a step that runs in the calling thread ends the run at once."""
    ran = []

    def settle(step, _):
        ran.append(step.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps(plan_of({"a": (), "b": ()}), settle, Progress(), threads=0)
    assert ran == ["a"]
