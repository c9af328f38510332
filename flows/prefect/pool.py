"""A run on a Prefect work pool: each model is a flow run of its own, `export-model`, wherever a worker takes it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling, Crashed

from ...artifacts.runs import run_lease
from ...errors import InputError, printable
from ...tasks.lowering.model import PlannedModel
from ..run.request import BLOCK
from ..run.session import Session
from ..run.zoo import conclude_elsewhere, find_model

_log = logging.getLogger(__name__)

_POLLS_PER_SECOND = 10  # of all runs together: the server is asked for each
_GONE = 30.0  # seconds without a lease until a run counts as crashed: it ends soon after it has released its lease
_NEVER_SEEN = 120.0  # the same from when a worker has taken it, until it holds its lease
_NO_TAKER = 60.0  # seconds without a worker that takes a run, until this run lowers models itself
_SERVER_OUTAGE = 120.0  # seconds without an answer of the server, until it is given up
_PAGE = 200
_UNFINISHED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]


def model_deployment(pool: str) -> str:
    """The deployment whose runs lower one model each on a pool. It serves all zoos: runs bring their parameters."""
    return f"export-model/{pool}"


async def lower_in_pool(session: Session) -> None:
    """Has the models that have no outcome yet lowered by runs on the session's work pool, and publishes their files.

    Unfinished runs that a dead run of the zoo started are adopted or cancelled. A run that crashes, by itself or with
    its machine, is started once more. One that crashes again, or is cancelled, fails its model only. If Prefect fails,
    or no worker takes runs, models are left without an outcome. Raises InputError for a pool without a deployment.
    """
    rest = [model for model in session.models if model.name not in session.outcomes]
    if not rest:
        return
    assert session.place.pool  # noqa: S101 - validated with the zoo
    session.executor.refresh = ""  # the models' runs refresh; what they have made is found here
    pool = _Pool(session, session.place.pool, max(1, len(rest) / _POLLS_PER_SECOND))
    with session.without_prefect_if_it_fails():
        await pool.check()
        await pool.take_over(rest)
        await asyncio.gather(*(pool.lower(model) for model in rest))


@dataclass
class _Pool:
    """Runs of models on a work pool.

    Attributes:
        interval: seconds between looks at a run.
        left: unfinished runs that a dead run of the zoo started, by model; this run adopts them.
        taken: runs that a worker has taken, and that have not ended.
        quiet_since: when a worker last took a run, or one ended.
        given_up: no worker takes runs.
    """

    session: Session
    name: str
    interval: float
    left: dict[str, FlowRun] = field(default_factory=dict)
    taken: set[UUID] = field(default_factory=set)
    quiet_since: float = field(default_factory=time.monotonic)
    given_up: bool = False

    async def check(self) -> None:
        """Raises InputError where the pool cannot lower models; gives up where it has no room for them."""
        async with get_client() as client:
            try:
                pool = await client.read_work_pool(self.name)
            except ObjectNotFound as error:
                raise InputError(
                    f"there is no work pool {self.name!r}; make it with: "
                    f"prefect work-pool create {self.name} -t process"
                ) from error
            try:
                await client.read_deployment_by_name(model_deployment(self.name))
            except ObjectNotFound as error:
                raise InputError(
                    f"the work pool {self.name!r} has no deployment {model_deployment(self.name)!r}; "
                    f"make it with: pteforge deploy ZOO.yaml --pool {self.name} --on pool"
                ) from error
        run = FlowRunContext.get()
        occupied = run and run.flow_run and run.flow_run.work_pool_name == self.name
        if occupied and pool.concurrency_limit == 1:
            self._give_up("runs one flow at a time, and this run is that one")

    async def take_over(self, models: Sequence[PlannedModel]) -> None:
        """Finds runs of models that were started for a run that has died.

        Those with the parameters that this run would give are adopted. Others of its deployment are cancelled, since
        they would keep workers busy.
        """
        wanted = {model.name: self._parameters(model) for model in models}
        for run in await self._unfinished():
            model = run.parameters.get("models", "")
            if wanted.get(model) == run.parameters and model not in self.left:
                self.left[model] = run
            elif _OF.format(_deployment()) in run.tags:
                await _cancel(run)

    async def lower(self, model: PlannedModel) -> None:
        """Lowers a model by a run, or by two if the first one crashes or has done something else."""
        session = self.session
        left = self.left.get(model.name)
        run = await self._end_of(model, left)
        crashed = run and run.state and run.state.is_crashed()
        if run and (crashed or (left and not await asyncio.to_thread(find_model, session, model))):
            await asyncio.to_thread(session.store.runs.take, run.id.hex)  # the next run goes on from there
            run = await self._end_of(model, None)
        if run and model.name in session.outcomes:
            await asyncio.to_thread(session.store.runs.take, run.id.hex)
        elif run:
            await asyncio.to_thread(_conclude, session, model, run)

    async def _end_of(self, model: PlannedModel, run: FlowRun | None) -> FlowRun | None:
        """A run of a model at its end, started unless there is one; None if Prefect fails, or no worker takes it."""
        if not (self.given_up or self.session.server_lost):
            with self.session.without_prefect_if_it_fails():
                return await self._watch(run or await self._start(model))
        return None

    async def _start(self, model: PlannedModel) -> FlowRun:
        session = self.session
        return await arun_deployment(
            model_deployment(self.name),
            parameters=self._parameters(model),
            flow_run_name=printable(f"export {session.request.zoo.name} {model.name}"),
            tags=[f"zoo:{session.zoo}", f"model:{model.name}", _OF.format(_deployment())],
            timeout=0,
        )

    async def _watch(self, run: FlowRun) -> FlowRun | None:
        """Waits for the end of a run. That of a machine that died ends as `Crashed`. None if no worker takes it."""
        held = self.session.store.leases.watch(run_lease(run.id.hex))
        seen, heard = False, time.monotonic()
        async with get_client() as client:
            while not (run.state and run.state.is_final()):
                taken = bool(run.state and (run.state.is_pending() or run.state.is_running()))
                self._note(run, taken=taken)
                if not taken and not self.taken and time.monotonic() - self.quiet_since > _NO_TAKER:
                    await self._tell_no_taker(client)
                if not taken and self.given_up:
                    await _cancel(run)
                    return None
                if not taken or await asyncio.to_thread(held):
                    seen, heard = taken, time.monotonic()
                elif time.monotonic() - heard > (_GONE if seen else _NEVER_SEEN):
                    gone: State[Any] = Crashed(
                        message="nothing was heard of its process any more; its machine may have died"
                    )
                    await client.set_flow_run_state(run.id, gone, force=True)
                await asyncio.sleep(self.interval)
                run = await _read(client, run)
        self._note(run, taken=False)
        return run

    def _note(self, run: FlowRun, *, taken: bool) -> None:
        if taken != (run.id in self.taken):
            self.quiet_since = time.monotonic()
            (self.taken.add if taken else self.taken.discard)(run.id)

    async def _tell_no_taker(self, client: PrefectClient) -> None:
        if not self.given_up:
            workers = await client.read_workers_for_work_pool(self.name)
            online = sum(worker.status.value == "ONLINE" for worker in workers)
            self._give_up(
                f"has taken no model for {_NO_TAKER:.0f} s (workers online: {online}; each may be busy with a run like "
                "this one, start more of them or with a higher --limit)"
            )

    def _give_up(self, problem: str) -> None:
        self.given_up = True
        _log.warning("the work pool %r %s; this run lowers the rest itself", self.name, problem)

    def _parameters(self, model: PlannedModel) -> dict[str, Any]:
        """Parameters of the model's run: those of this one, but files go to the worker's own folder for the run.

        This run writes them, from the store, and releases them.
        """
        request = self.session.request
        store = request.store if (request.store or "").startswith(BLOCK) else self.session.store.url
        own = {"models": model.name, "publish": None, "store": store, "on": "local"}
        return request.model_copy(update=own).parameters() | {"out": "out"}

    async def _unfinished(self) -> list[FlowRun]:
        """Runs of models of the zoo that have not ended, those that run first."""
        wanted = {"state": {"type": {"any_": _UNFINISHED}}, "tags": {"all_": [f"zoo:{self.session.zoo}"]}}
        deployment = DeploymentFilter.model_validate({"name": {"any_": [self.name]}})
        found: list[FlowRun] = []
        async with get_client() as client:
            while page := await client.read_flow_runs(
                flow_filter=FlowFilter.model_validate({"name": {"any_": ["export-model"]}}),
                flow_run_filter=FlowRunFilter.model_validate(wanted),
                deployment_filter=deployment,
                limit=_PAGE,
                offset=len(found),
            ):
                found += page
        return sorted(found, key=lambda run: not (run.state and run.state.is_running()))


_OF = "of:{}"
"""Tag of the runs of models that runs of a deployment start, with its id. Its runs follow each other."""


def _deployment() -> str:
    """The deployment of the current flow run, if it has one."""
    context = FlowRunContext.get()
    return str(context.flow_run.deployment_id) if context and context.flow_run else ""


async def _read(client: PrefectClient, run: FlowRun) -> FlowRun:
    """The run as it is now; waits for a server that is away for minutes."""
    deadline = time.monotonic() + _SERVER_OUTAGE
    while True:
        try:
            return await client.read_flow_run(run.id)
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            refused = isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500
            if refused or time.monotonic() > deadline:
                raise
        await asyncio.sleep(1)


async def _cancel(run: FlowRun) -> None:
    """Cancels a run; its worker ends one that it has taken."""
    waiting = not run.state or run.state.is_scheduled()
    state: State[Any] = Cancelled() if waiting else Cancelling()
    state.message = "the run of the zoo that started it does not need it any more"
    with suppress(ObjectNotFound):
        async with get_client() as client:
            await client.set_flow_run_state(run.id, state, force=True)


def _conclude(session: Session, model: PlannedModel, run: FlowRun) -> None:
    """Takes what the run did from its record in the store, which is then part of this run's."""
    state = run.state
    problem = f"its run {run.name!r} ended as {state.name}: {state.message}" if state else "its run did not end"
    if state and state.is_completed():
        problem = (
            f"its run {run.name!r} completed, and its stages are not in the store {session.store.url} under the keys "
            "of this run; let workers have this run's store, and the same versions and code"
        )
    conclude_elsewhere(session, model, session.store.runs.take(run.id.hex), problem)
