"""A run on a Prefect work pool: flow runs `export-model` lower models wherever a worker takes them.

A model that takes long has its own run. Others share runs, since starting one takes seconds: see `batches`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed

from ...artifacts.lease import Silence
from ...artifacts.runs import RunRecord, run_lease
from ...configs.sources import BuilderSource
from ...errors import InputError, printable
from ...tasks.lowering.model import PlannedModel
from ...tasks.results.delivered import Failure
from ..run.request import BLOCK
from ..run.session import Session
from ..run.zoo import conclude_elsewhere, find_model

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

PART_OF = "part-of:"
"""Prefix of the tag of a run of models; the id of the zoo's run follows."""

_POLLS_PER_SECOND = 10  # of all runs together: the server is asked for each
# seconds without a lease until a run counts as crashed, as far as store and server answer (see `Silence`)
_GONE = 30.0  # it ends soon after it has released its lease
_NEVER_SEEN = 120.0  # the same from when a worker has taken it, until it holds its lease
_NO_TAKER = 60.0  # seconds without a worker that takes a run, until this run lowers models itself
_SERVER_OUTAGE = 120.0  # seconds without an answer of the server, until it is given up
_EXPECTING = 10.0  # seconds to look for what models took the last time
_BLIND = 10.0  # seconds of a look at a run from which store or server were away
_LOOK = 4.0  # seconds between two looks at a run's record
_PAGE = 200
_UNFINISHED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]


# seconds of stages, as expected
ALONE = 60.0  # from which a model has a flow run of its own
MOST, LEAST = 300.0, 10.0  # of a run that models share; no more runs than workers have as little as the least
_NEW = 4.0  # of a model that never ran, besides one for each MiB of its files


def batches(seconds: Mapping[str, float], workers: int) -> list[list[str]]:
    """Divides models into flow runs, the longest first, by their expected seconds.

    Models of `ALONE` or more have a run each. Others share as few runs as possible of `MOST` or less, but as many as
    there are workers, if each gets `LEAST`.
    """
    longest_first = sorted(seconds, key=lambda name: -seconds[name])
    alone = [[name] for name in longest_first if seconds[name] >= ALONE]
    small = longest_first[len(alone) :]
    total = sum(seconds[name] for name in small)
    count = min(len(small), max(math.ceil(total / MOST), min(workers, int(total / LEAST)), 1))
    shared: list[tuple[float, int, list[str]]] = [(0.0, index, []) for index in range(count)]
    for name in small:  # each to the run that has least to do
        taken, index, names = shared[0]
        heapq.heapreplace(shared, (taken + seconds[name], index, [*names, name]))
    return alone + [names for _, _, names in sorted(shared, key=lambda batch: batch[1])]


def shortened(names: Sequence[str]) -> str:
    """Names with commas between them; only the first if there are more than three."""
    return ",".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def unreported(record: RunRecord | None, problem: str) -> State[Any]:
    """The state of a run whose process is gone without having reported its end: from its record, or `Crashed`."""
    if record is None or not record.ended:
        return Crashed(message=problem)
    message = "it has ended, and could not report that"
    return Completed(message=message) if record.status == "completed" else Failed(message=message)


def _why_not_made(run: FlowRun) -> Failure:
    """Why a model has no file whose run has ended without having made it."""
    cancelled = bool(run.state and run.state.is_cancelled())
    end = f"ended as {run.state.name}: {run.state.message}" if run.state else "did not end"
    problem = f"its run {run.name!r} {'was cancelled; the next run of the zoo lowers it' if cancelled else end}"
    return Failure("", problem, "", bad_input=False, cancelled=cancelled)


def model_deployment(pool: str) -> str:
    """The deployment whose runs lower models on a pool. It serves all zoos: runs bring their parameters."""
    return f"export-model/{pool}"


async def lower_in_pool(session: Session) -> None:
    """Lowers the models without an outcome by runs on the session's work pool, and publishes their files.

    Unfinished runs that a dead run of the zoo started are adopted or cancelled. The undone models of a run that
    crashes, by itself or with its machine, are lowered by two more, half each, until one has a single model, which
    fails at its second crash. A run that is cancelled by hand fails its models, which are not lowered again before the
    zoo's next run. If Prefect fails, or no worker takes runs, models are left without an outcome. Raises
    InputError for a pool without a deployment.
    """
    rest = [model for model in session.models if model.name not in session.progress.outcomes]
    if not rest:
        return
    assert session.run_config.pool  # noqa: S101 - validated with the zoo
    session.executor.stop_refreshing()  # the models' runs refresh; their results are found here
    pool = _Pool(session, session.run_config.pool)
    with session.prefect.optional():
        await pool.check()
        left = await pool.take_over(rest)
        adopted = {model.name for _, models in left for model in models}
        shared = await pool.divide([model for model in rest if model.name not in adopted])
        pool.interval = max(1, (len(left) + len(shared)) / _POLLS_PER_SECOND)
        await asyncio.gather(
            *(pool.lower(models, run) for run, models in left), *(pool.lower(models) for models in shared)
        )


async def run_part(session: Session, pool: str, changes: Mapping[str, Any]) -> tuple[RunRecord | None, Failure]:
    """Lowers models in one run on a pool, with fields of the request changed.

    Returns the record of that run, if it left one, and why it lacks files. Raises InputError as `lower_in_pool`.
    """
    part = _Pool(session, pool, changes=changes)
    with session.prefect.optional():
        await part.check()
        run = await part.watch(await part.start(changes["models"].split(",")), ())
        if run and run.state:
            record = await asyncio.to_thread(session.store.runs.take, run.id.hex)
            return record, _why_not_made(run)
    return None, Failure("", f"the work pool {pool!r} did not lower it", "", bad_input=False)


@dataclass
class _Pool:
    """Runs of models on a work pool.

    Attributes:
        changes: fields of the request that these runs have otherwise.
        interval: seconds between looks at the state of a run.
        taken: runs that a worker has taken, and that have not ended.
        quiet_since: when a worker last took a run, or one ended.
        given_up: no worker takes runs.
    """

    session: Session
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    interval: float = 1.0
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

    async def divide(self, models: Sequence[PlannedModel]) -> list[list[PlannedModel]]:
        """The models of each run to start: see `batches`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self.session.expect_stages), _EXPECTING)
        by_name = {model.name: model for model in models}
        pace = self.session.progress.pace
        seconds = {name: pace.expected(name) or _first_time(model) for name, model in by_name.items()}
        async with get_client() as client:
            online = await self._online(client)
        return [[by_name[name] for name in names] for names in batches(seconds, online)]

    async def take_over(self, models: Sequence[PlannedModel]) -> list[tuple[FlowRun, list[PlannedModel]]]:
        """Finds runs that were started by a run that has died, each with those of the models that it lowers.

        Those with this run's parameters are adopted. Others of its deployment are cancelled: they keep workers busy.
        """
        adopted, rest = [], {model.name: model for model in models}
        for run in await self._unfinished():
            lowers = [name for name in str(run.parameters.get("models")).split(",") if name in rest]
            if lowers and run.parameters | {"models": ""} == self._parameters(()):
                adopted.append((run, [rest.pop(name) for name in lowers]))
            elif set(_of_deployment()) & set(run.tags):
                await _cancel(run)
        return adopted

    async def lower(self, models: Sequence[PlannedModel], left: FlowRun | None = None, *, again: bool = False) -> None:
        """Lowers models by a run, and by more runs if it crashes or, `left` by a dead run, leaves models undone."""
        session = self.session
        run = await self._end_of(models, left)
        if run is None:
            return
        record = await asyncio.to_thread(session.store.runs.take, run.id.hex)  # further runs go on from there
        crashed = bool(run.state and run.state.is_crashed())
        if not left:
            await self._conclude(models, run, record)
        rest = [model for model in models if model.name not in session.progress.outcomes]
        cancelled = bool(run.state and run.state.is_cancelled())
        if (crashed or (left and not cancelled)) and not (again and len(models) == 1):
            if not session.request.refresh:
                rest = [model for model in rest if not await asyncio.to_thread(find_model, session, model)]
            half = (len(rest) + 1) // 2
            await asyncio.gather(*(self.lower(part, again=True) for part in (rest[:half], rest[half:]) if part))
        else:
            await self._conclude(rest, run, record, ended=True)

    async def _conclude(
        self, models: Sequence[PlannedModel], run: FlowRun, record: RunRecord | None, *, ended: bool = False
    ) -> None:
        """Adds the outcome of models, from the record of their run, to this run; unfinished ones if it has `ended`."""
        session = self.session
        for model in models:
            done = record is not None and model.name in record.files
            if model.name in session.progress.outcomes or not (done or ended):
                continue
            failure = _why_not_made(run)
            if done or (run.state and run.state.is_completed()):
                problem = (
                    f"its run {run.name!r} made it, and its stages are not in the store {session.store.url} under the "
                    "keys of this run; let workers have this run's store, and the same versions and code"
                )
                failure = Failure("", problem, "", bad_input=False)
            await asyncio.to_thread(conclude_elsewhere, session, model, record, failure)

    async def _end_of(self, models: Sequence[PlannedModel], left: FlowRun | None) -> FlowRun | None:
        """Awaits the end of a run, which it starts unless one is left; None if Prefect fails, or no worker takes it."""
        if not (self.given_up or self.session.prefect.lost):
            with self.session.prefect.optional():
                run = left or await self.start([model.name for model in models])
                self.session.prefect.note_run(str(run.id), [model.name for model in models])
                return await self.watch(run, () if left else models)
        return None

    async def start(self, names: Sequence[str]) -> FlowRun:
        session = self.session
        key = uuid4().hex  # if its answer is lost, the server gives the run that it has made, not another one
        return await _answered(
            lambda: arun_deployment(
                model_deployment(self.name),
                parameters=self._parameters(names),
                flow_run_name=printable(f"export {session.request.zoo.name} {shortened(names)}"),
                tags=[
                    f"zoo:{session.zoo}",
                    f"{PART_OF}{session.id}",
                    *(f"model:{name}" for name in names if len(names) < 4),
                    *_of_deployment(),
                ],
                timeout=0,
                idempotency_key=key,
            )
        )

    async def watch(self, run: FlowRun, models: Sequence[PlannedModel]) -> FlowRun | None:
        """Waits for the end of a run, and concludes its models as they are done; None if no worker takes it.

        A run whose machine died ends as `Crashed`.
        """
        held = self.session.store.leases.watch(run_lease(run.id.hex))
        seen, looked = False, time.monotonic()
        began, silence = looked, Silence(_BLIND)
        async with get_client() as client:
            while not (run.state and run.state.is_final()):
                taken = bool(run.state and (run.state.is_pending() or run.state.is_running()))
                heard = not taken or await asyncio.to_thread(held)
                if time.monotonic() - began > _BLIND:  # nor could it be seen whether workers take runs
                    self.quiet_since = time.monotonic()
                self._note(run, taken=taken)
                if not taken and not self.taken and time.monotonic() - self.quiet_since > _NO_TAKER:
                    await self._tell_no_taker(client)
                if not taken and self.given_up:
                    await _cancel(run)
                    return None
                if heard:
                    seen = taken
                if silence.look(began, heard=heard) > (_GONE if seen else _NEVER_SEEN):
                    record = await asyncio.to_thread(self.session.store.runs.find, run.id.hex)
                    problem = "nothing was heard of its process any more; its machine may have died"
                    gone = unreported(record, problem)
                    await _answered(partial(client.set_flow_run_state, run.id, gone, force=True))
                if seen and len(models) > 1 and time.monotonic() - looked > _LOOK:
                    record = await asyncio.to_thread(self.session.store.runs.find, run.id.hex)
                    await self._conclude(models, run, record)
                    looked = time.monotonic()
                await asyncio.sleep(self.interval)
                began = time.monotonic()
                run = await _answered(partial(client.read_flow_run, run.id))
        self._note(run, taken=False)
        return run

    def _note(self, run: FlowRun, *, taken: bool) -> None:
        if taken != (run.id in self.taken):
            self.quiet_since = time.monotonic()
            (self.taken.add if taken else self.taken.discard)(run.id)

    async def _tell_no_taker(self, client: PrefectClient) -> None:
        if not self.given_up:
            online = await self._online(client)
            self._give_up(
                f"has taken no model for {_NO_TAKER:.0f} s (workers online: {online}; each may be busy with a run like "
                "this one, start more of them or with a higher --limit)"
            )

    async def _online(self, client: PrefectClient) -> int:
        workers = await _answered(partial(client.read_workers_for_work_pool, self.name))
        return sum(worker.status.value == "ONLINE" for worker in workers)

    def _give_up(self, problem: str) -> None:
        self.given_up = True
        _log.warning("the work pool %r %s; this run lowers the rest itself", self.name, problem)

    def _parameters(self, models: Sequence[str]) -> dict[str, Any]:
        """Parameters of a run of models: those of this run, with files in the worker's folder for the run.

        This run writes the files from the store, and releases them.
        """
        request = self.session.request
        store = request.store if (request.store or "").startswith(BLOCK) else self.session.store.url
        changes = {"models": ",".join(models), "publish": None, "store": store, "on": "local", **self.changes}
        return request.model_copy(update=changes).parameters() | {"out": "out"}

    async def _unfinished(self) -> list[FlowRun]:
        """Runs of models of the zoo that have not ended; running ones first."""
        wanted = {"state": {"type": {"any_": _UNFINISHED}}, "tags": {"all_": [f"zoo:{self.session.zoo}"]}}
        runs: list[FlowRun] = []
        async with get_client() as client:
            while page := await client.read_flow_runs(
                flow_filter=FlowFilter.model_validate({"name": {"any_": ["export-model"]}}),
                flow_run_filter=FlowRunFilter.model_validate(wanted),
                deployment_filter=DeploymentFilter.model_validate({"name": {"any_": [self.name]}}),
                limit=_PAGE,
                offset=len(runs),
            ):
                runs += page
        return sorted(runs, key=lambda run: not (run.state and run.state.is_running()))


def _of_deployment() -> list[str]:
    """The tag of model runs that belong to the current deployment, whose runs never overlap; none without one."""
    context = FlowRunContext.get()
    deployment = context.flow_run.deployment_id if context and context.flow_run else None
    return [f"of:{deployment}"] if deployment else []


async def _answered(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Makes a call to the server, and again, for minutes, while that is away."""
    deadline = time.monotonic() + _SERVER_OUTAGE
    while True:
        try:
            return await call()
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            refused = isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500
            if refused or time.monotonic() > deadline:
                raise
        await asyncio.sleep(1)


async def _cancel(run: FlowRun) -> None:
    """Cancels a run; if a worker has taken it, the worker ends it."""
    waiting = not run.state or run.state.is_scheduled()
    state: State[Any] = Cancelled() if waiting else Cancelling()
    state.message = "the run of the zoo that started it does not need it any more"
    with suppress(ObjectNotFound):
        async with get_client() as client:
            await _answered(partial(client.set_flow_run_state, run.id, state, force=True))


def _first_time(model: PlannedModel) -> float:
    """Expected seconds of a model that never ran, from the size of its files."""
    source = model.source
    files = source.files if isinstance(source, BuilderSource) else (source.program,) if source else ()
    return _NEW + sum(file.stat().st_size for file in files if file.is_file()) / 2**20
