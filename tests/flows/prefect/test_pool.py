"""How models are divided into the flow runs of a work pool, and which of those are taken for dead."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelled, Completed, Running
from pteforge.artifacts.runs import RunRecord
from pteforge.flows.prefect import pool
from pteforge.flows.prefect.pool import ALONE, MOST, _Pool, batches

SECONDS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0, 2 * ALONE), max_size=40)


@given(SECONDS, st.integers(0, 8))
def test_each_model_is_in_one_run(seconds, workers):
    """No model is left out or lowered twice, and no run is empty; one that takes long has a run of its own."""
    divided = batches(seconds, workers)
    assert sorted(name for names in divided for name in names) == sorted(seconds)
    assert all(divided)
    assert all(len(names) == 1 for names in divided if any(seconds[name] >= ALONE for name in names))


@given(SECONDS, st.integers(0, 8))
def test_no_run_keeps_others_waiting(seconds, workers):
    """Runs that models share differ by one of them at most, and take longer than `MOST` only by part of one."""
    shared = [names for names in batches(seconds, workers) if seconds[names[0]] < ALONE]
    totals = [sum(seconds[name] for name in names) for names in shared]
    longest = max((seconds[name] for names in shared for name in names), default=0.0)
    assert max(totals, default=0.0) - min(totals, default=0.0) <= longest + 1e-6
    assert max(totals, default=0.0) <= MOST + longest + 1e-6


@pytest.mark.parametrize(
    ("count", "each", "workers", "runs"),
    [(100, 4.0, 2, 2), (27, 4.0, 2, 2), (20, 1.0, 8, 2), (3, 1.0, 8, 1), (2, ALONE, 1, 2), (7, MOST / 6, 1, 2)],
)
def test_small_models_share_runs(count, each, workers, runs):
    """There is a run for each worker if it has enough to do, and as many as it takes to end in time."""
    assert len(batches({f"net{index}": each for index in range(count)}, workers)) == runs


def test_longest_models_come_first():
    """Runs are started in the order of their models' seconds."""
    assert batches({"b": 100.0, "c": 1.0, "a": 200.0, "d": 2.0}, 1) == [["a"], ["b"], ["d", "c"]]


class Watched:
    """A run on a server whose answers take some time, and its lease in a store: what is asked of both, in turn."""

    def __init__(self, monkeypatch: Any, seconds: dict[str, list[float]], held: list[bool], status: str) -> None:
        self.id, self.state, self.name = uuid4(), Running(), "export a"
        self.seconds, self.held, self.record = seconds, held, None
        if status:
            self.record = RunRecord(self.id.hex, "zoo", "2026-01-01T00:00:00+00:00", 1.0, {}, status)
        for name, value in {"_GONE": 0.5, "_NEVER_SEEN": 0.5, "_BLIND": 0.1}.items():
            monkeypatch.setattr(pool, name, value)
        monkeypatch.setattr(pool, "get_client", self.client)

    @asynccontextmanager
    async def client(self) -> Any:
        yield self

    async def read_flow_run(self, _: Any) -> Any:
        await asyncio.sleep(next(iter(self.seconds["server"]), 0.0))
        del self.seconds["server"][:1]
        if not (self.held or self.seconds["server"]):
            self.state = Completed()
        return self

    async def set_flow_run_state(self, _: Any, state: State[Any], *, force: bool) -> None:
        assert force
        self.state = state

    def is_held(self) -> bool:
        time.sleep(next(iter(self.seconds["store"]), 0.0))
        del self.seconds["store"][:1]
        return self.held.pop(0) if self.held else False

    def watch(self) -> Any:
        store = SimpleNamespace(
            leases=SimpleNamespace(watch=lambda _: self.is_held), runs=SimpleNamespace(find=lambda _: self.record)
        )
        watching = _Pool(SimpleNamespace(store=store), "pool", interval=0.02)  # type: ignore[arg-type]
        return asyncio.run(watching.watch(self, ()))  # type: ignore[arg-type]


AWAY = [0.0, 0.7, 0.0, 0.7, 0.7]


@pytest.mark.parametrize("away", ["store", "server"])
def test_no_run_is_dead_after_an_outage(monkeypatch, away):
    """A run whose lease is not seen for a moment when store or server answer again is left alone."""
    seconds = {"store": [], "server": [], away: list(AWAY)}
    run = Watched(monkeypatch, seconds, [True, *[False] * len(AWAY), True], "")
    assert run.watch().state.type == "COMPLETED"
    assert run.state.message is None


@pytest.mark.parametrize(
    ("status", "state"),
    [("", "CRASHED"), ("running", "CRASHED"), ("completed", "COMPLETED"), ("failed", "FAILED")],
)
def test_run_whose_process_is_gone(monkeypatch, status, state):
    """A run that is not heard of ends as its record says, or as crashed."""
    run = Watched(monkeypatch, {"store": [], "server": []}, [True, *[False] * 1000], status)
    began = time.monotonic()
    assert run.watch().state.type == state
    assert run.state.message
    assert time.monotonic() - began > 0.5


@pytest.mark.parametrize("left", [False, True], ids=["of this run", "of a dead run"])
def test_run_that_is_cancelled(monkeypatch, left):
    """Its models are not lowered by another run: those without an outcome are concluded as cancelled."""
    concluded: list[Any] = []
    monkeypatch.setattr(pool, "conclude_elsewhere", lambda _, model, __, end: concluded.append((model.name, end)))
    progress, runs = SimpleNamespace(outcomes={"a": ...}), SimpleNamespace(take=lambda _: None)
    session: Any = SimpleNamespace(progress=progress, store=SimpleNamespace(runs=runs))
    run: Any = SimpleNamespace(id=uuid4(), name="export a,b", state=Cancelled())

    async def end_of(*_: Any) -> Any:
        return run

    monkeypatch.setattr(_Pool, "_end_of", end_of)
    models: Any = [SimpleNamespace(name=name) for name in "ab"]
    asyncio.run(_Pool(session, "forge").lower(models, run if left else None))
    ((name, failure),) = concluded
    assert (name, failure.cancelled, failure.bad_input) == ("b", True, False)


def test_a_start_whose_answer_is_lost(monkeypatch):
    """The server is asked for the same run again, which it may have made; each run has a key of its own."""
    asked: list[str] = []

    async def start(*_: Any, idempotency_key: str, **__: Any) -> str:
        asked.append(idempotency_key)
        if len(asked) % 2:
            raise httpx.ReadError("the server was stopped")
        return idempotency_key

    async def pause(_: float) -> None:
        pass

    monkeypatch.setattr(pool, "arun_deployment", start)
    monkeypatch.setattr(pool.asyncio, "sleep", pause)
    monkeypatch.setattr(_Pool, "_parameters", lambda *_: {})
    session: Any = SimpleNamespace(request=SimpleNamespace(zoo=Path("zoo.yaml")), zoo="zoo", id="run")
    runs = [asyncio.run(_Pool(session, "forge").start([])) for _ in range(2)]
    assert asked == [runs[0], runs[0], runs[1], runs[1]]
    assert runs[0] != runs[1]


@pytest.mark.parametrize("status", [404, 503])
def test_answers_that_are_no_outage(monkeypatch, status):
    """A server that refuses is not asked again; one that is not ready is, until it has been away for minutes."""
    asked = []

    async def fail() -> None:
        asked.append(time.monotonic())
        raise httpx.HTTPStatusError("no", request=httpx.Request("GET", "http://x"), response=httpx.Response(status))

    async def call() -> None:
        try:
            await fail()
        except httpx.HTTPStatusError as error:
            raise PrefectHTTPStatusError.from_httpx_error(error) from error

    monkeypatch.setattr(pool, "_SERVER_OUTAGE", 1.5)
    with pytest.raises(PrefectHTTPStatusError):
        asyncio.run(pool._answered(call))
    assert len(asked) == (1 if status == 404 else 3)
