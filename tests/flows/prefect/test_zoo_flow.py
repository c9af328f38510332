"""How a deployed run ends that is cancelled, and that its worker does not end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelling, Running
from pteforge.errors import ZooFailed
from pteforge.flows.prefect import zoo_flow


class Server:
    """Answers with one state after another, the last one for ever; None is an answer that fails.

    The first `refused` calls that set a state fail.
    """

    def __init__(self, *states: State[Any] | None, refused: int = 0) -> None:
        self.states = list(states)
        self.refused = refused
        self.told: list[str] = []

    @asynccontextmanager
    async def client(self) -> Any:
        yield self

    async def read_flow_run(self, _: Any) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise ConnectionError
        return SimpleNamespace(state=state)

    async def set_flow_run_state(self, _: Any, state: State[Any], *, force: bool) -> None:
        assert force
        if self.refused:
            self.refused -= 1
            raise ConnectionError
        self.told.append(state.type.value)


@pytest.fixture
def run(monkeypatch):
    """Runs the body of the flows against a server; its result, and what became of the work."""

    def run_against(server: Server, seconds: float, problem: Exception | None = None) -> tuple[Any, list[str]]:
        ended = []

        async def lower(_asked: Any, *, part: bool) -> str:
            assert not part
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            if problem:
                raise problem
            return "done"

        monkeypatch.setattr(zoo_flow, "_lower", lower)
        monkeypatch.setattr(zoo_flow, "_CANCEL_LOOK", 0.02)
        monkeypatch.setattr(zoo_flow, "get_client", server.client)
        monkeypatch.setattr(zoo_flow, "flow_run", SimpleNamespace(id=str(uuid4())))
        monkeypatch.setattr(zoo_flow, "leave", lambda _: ended.append("left"))
        monkeypatch.setattr(zoo_flow, "_ENDING", 60.0)
        return asyncio.run(zoo_flow._run({})), ended

    return run_against


def test_cancelled_run_ends_by_itself(run, caplog):
    """A run that stays cancelling says so, reports that it is cancelled, and ends."""
    server = Server(Running(), None, Cancelling(), refused=1)
    state, ended = run(server, 60.0)
    assert state.type.value == "CANCELLED"
    assert server.told == ["CANCELLED"]
    assert ended == ["cancelled"]
    assert "ends by itself" in caplog.text


@pytest.mark.parametrize("states", [[Running()], [None], [Cancelling(), Running()]])
def test_other_runs_go_on(run, states):
    """Neither a server that is away nor a state that passes ends a run."""
    server = Server(*states)
    assert run(server, 0.3) == ("done", [])
    assert server.told == []


def test_run_that_fails_while_it_is_cancelled(run):
    """The run of a zoo fails when the run of a model is cancelled with it, maybe before it has looked at its own."""
    state, ended = run(Server(Cancelling()), 0.0, ZooFailed("1 of the files was not made"))
    assert (state.type.value, ended) == ("CANCELLED", [])
    for server in (Server(Running()), Server(None)):
        with pytest.raises(ZooFailed):
            run(server, 0.0, ZooFailed("1 of the files was not made"))
