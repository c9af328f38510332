"""The Prefect flows for a zoo and for models of it; how runs of a deployment take turns, and how they end."""

from __future__ import annotations

__package__ = "pteforge.flows.prefect"  # as it is; but `prefect deploy FILE:export_zoo` loads the file by its path

import asyncio
import atexit
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from prefect import flow, get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy, State, StateType
from prefect.context import FlowRunContext, SyncClientContext
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY, temporary_settings
from prefect.states import Cancelled, Completed, Failed, Scheduled
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.types._datetime import now
from prefect.utilities.urls import url_for

from ...artifacts.digest import Digest, digest_json
from ...errors import ReleaseHeldBack, StoreAway, StoreError, ZooFailed, first_line, is_bad_input, printable
from ...tasks.lowering.model import PlannedModel
from ..run.disk import check_space
from ..run.interrupt import leave, prompt_termination
from ..run.json_log import VARIABLE, log_json
from ..run.request import ExportRequest, describe, joined
from ..run.session import Session, check_names, start_workers
from ..run.telemetry import tracer_provider
from ..run.toolchains import lower_elsewhere
from ..run.zoo import find_models, lower_one, lower_rest
from .machines import check_machines, cluster_of
from .pages import announce, progress_shown, show_findings, show_tables, show_zoo
from .pool import PART_OF, lower_in_pool, shortened, unreported
from .runner import PrefectRunner, add_tags, runner_of
from .settings import by_pool, open_configured, redact_workspaces, server_configured

tracer_provider()  # Prefect begins the span of a deployed run before it calls the flow
_log = logging.getLogger(__name__)

_TASKS_AT_ONCE = 64  # threads that wait for workers
_MODELS_AT_ONCE = 16  # they mostly wait; how many stages run at once is the workers' to decide
_WATCHED = 60.0  # seconds until a lease whose holder died is free on every kind of store, with some to spare
_LATER = timedelta(minutes=2)
_LOOK = 2.0  # seconds between looks at a lease or a server
_UNTIL_THE_SERVER_IS_BACK = 1800.0  # seconds
_CANCEL_LOOK = 10.0  # seconds between looks at whether the run is cancelled
_ENDING = 10.0  # seconds for a cancelled run to end


def _takes_request(body: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the body of a flow a parameter for each field of a request, which Prefect describes in its form."""
    arguments = "\n".join(f"    {name}: {describe(name)}" for name in ExportRequest.model_fields)
    body.__doc__ = f"{inspect.getdoc(body)}\n\nArgs:\n{arguments}"
    body.__dict__["__signature__"] = inspect.signature(ExportRequest)
    return body


@_takes_request
async def _export_zoo(**fields: Any) -> Any:
    """Lowers a zoo: every model with every recipe, each file verified against eager on the ExecuTorch runtime.

    Models and recipes that fail do not keep others from being made.

    Returns:
        A state, `Cached` if no stage had to run; its result is the JSON of `flows.run.outcome.ZooOutcome`.

    Raises:
        ZooFailed: files were not made. Prefect's retries apply, and go on from what is cached, unless all failures are
            due to the user's input, or models whose runs were cancelled.
        InputError: the zoo or an argument cannot be used. Prefect's retries do not apply.
        ReleaseHeldBack: the files are worse than the current release by more than the gates allow. Prefect's retries
            do not apply.
    """
    return await _run(fields)


@_takes_request
async def _export_model(**fields: Any) -> Any:
    """Lowers models of a zoo, and verifies the files, for a run of `export_zoo`, which publishes them."""
    return await _run(fields, part=True)


def export_opened(session: Session) -> Any:
    """Runs the flow `export-zoo` for an open session, without the retries of deployed runs."""
    opened: Any = export_zoo.with_options(retries=0, validate_parameters=False)
    opened.fn = _Export(session, opened=True)
    return opened(**session.request.parameters(), return_state=True)


async def _run(fields: Mapping[str, Any], *, part: bool = False) -> Any:
    """The body of both flows, until the run is cancelled. `part`: another run publishes the files."""
    run, cancelled = asyncio.create_task(_lower(fields, part=part)), asyncio.create_task(_cancelled())
    try:
        await asyncio.wait((run, cancelled), return_when=asyncio.FIRST_COMPLETED)
        if run.done() or cancelled.exception():  # Prefect's handler of signals raises in whatever is running
            ended = run if run.done() else cancelled
            failed = not ended.cancelled() and isinstance(ended.exception(), Exception)
            if failed:
                if await _is_cancelling():  # a zoo's run fails, too, when a run of its models is cancelled with it
                    return _cancelled_state()
                if server_configured():
                    atexit.register(_end_cancelled, UUID(flow_run.id))
            return await ended
        _log.warning("the run is cancelled on the server, and its worker does not end it: it ends by itself")
        end = threading.Timer(_ENDING, leave, (0,))  # threads may wait for a store that is away
        end.daemon = True
        end.start()
        run.cancel()
        await asyncio.wait((run,))
        return cancelled.result()
    finally:
        cancelled.cancel()
        if not run.done():
            run.cancel()
            await asyncio.wait((run,))


def _cancelled_state() -> State[Any]:
    return Cancelled(message="the run was cancelled, and has ended by itself")


async def _cancelled() -> State[Any]:
    """Returns the state `Cancelled`, which it has reported, when the run has been cancelling for two looks.

    Normally a worker ends the run first. Prefect's gives up listening for cancellations, with nothing but a line in its
    log, once its server was away for half a minute.
    """
    state, looks = _cancelled_state(), 0
    while True:
        await asyncio.sleep(_CANCEL_LOOK)
        looks = looks + 1 if await _is_cancelling() else 0
        if looks >= 2:
            with suppress(Exception):  # Prefect's server may be away: the next look tries again
                async with get_client() as client:
                    await client.set_flow_run_state(UUID(flow_run.id), state, force=True)
                return state


async def _is_cancelling() -> bool:
    """Whether the run is about to be cancelled; no, if the server does not say."""
    with suppress(Exception):  # Prefect's
        async with get_client() as client:
            current = (await client.read_flow_run(UUID(flow_run.id))).state
        return bool(current and current.is_cancelling())
    return False


def _end_cancelled(run: UUID) -> None:
    """Ends a run that was cancelled while it waited for its next attempt: Prefect leaves it `Cancelling`."""
    with suppress(Exception), get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        if state and state.is_cancelling():
            client.set_flow_run_state(run, _cancelled_state(), force=True)


async def _lower(fields: Mapping[str, Any], *, part: bool) -> Any:
    async with AsyncExitStack() as stack:
        stack.push_async_exit(_refuse_to_retry)
        stack.push_async_exit(wait_for_server)
        redact_workspaces()
        if os.environ.get(VARIABLE) == "json":
            log_json()
        session = await _open(stack, ExportRequest(**fields), part=part)
        if part:
            start_workers(session)  # its imports take seconds
        else:
            await take_turn(session, stack)
        if flow_run.run_count > 1:
            await asyncio.to_thread(session.recording.find_attempt)
        metrics = None if part else os.environ.get("PTEFORGE_METRICS")
        await asyncio.to_thread(stack.enter_context, session.recording.open(Path(metrics) if metrics else None))
        if not part:
            with _workers_stopped_on_abort(session):
                await asyncio.to_thread(lower_elsewhere, session, by_pool)
        await asyncio.to_thread(find_models, session)
        check_machines(session)
        await asyncio.to_thread(check_space, session)
        await asyncio.to_thread(check_names, session)
        return await _Export(session)()


async def _open(stack: AsyncExitStack, request: ExportRequest, *, part: bool) -> Session:
    """Opens the session; waits for a store that is away if the run of the zoo or an earlier attempt had it."""
    from ...artifacts.remote_files import longest_outage  # noqa: PLC0415 - imports fsspec

    deadline = time.monotonic() + (longest_outage() if part or flow_run.run_count > 1 else 0.0)
    whole = next((tag.removeprefix(PART_OF) for tag in flow_run.tags if tag.startswith(PART_OF)), "") if part else None
    while True:
        try:
            # the id is the same in Prefect's retries, so that `refresh` goes on from the first attempt's results
            return stack.enter_context(open_configured(request, id=UUID(flow_run.id).hex, part_of=whole))
        except StoreAway as error:
            if time.monotonic() > deadline:
                raise
            _log.warning("waiting for the store: %s", first_line(error))
        await asyncio.sleep(_LOOK)


@dataclass(frozen=True)
class _Export:
    """Lowers the models of a session that have no outcome, publishes the files, and shows the outcome.

    For a session that the command line has opened, this is the body of the flow, with the parameters of a request for
    Prefect to record. Prefect sends the flow along with each task to other processes, without the session.
    """

    session: Session | None
    opened: bool = False
    __signature__: ClassVar = inspect.signature(ExportRequest)

    async def __call__(self, **_fields: Any) -> Any:
        session, slots = self.session, asyncio.Semaphore(_MODELS_AT_ONCE)
        assert session  # noqa: S101 - other processes only run tasks

        async def lower(model: PlannedModel) -> None:
            async with slots:
                with session.prefect.optional():
                    run_model: Any = model_task.with_options(task_run_name=printable(f"model {model.name}"))
                    await run_model(model.name, session.id, return_state=True)

        await _tag_run(session)
        async with AsyncExitStack() as stack:
            # The session traces models and stages itself. Prefect traces its flow runs, and joins those of a pool.
            stack.enter_context(temporary_settings({PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY: False}))
            stack.enter_context(prompt_termination(session) if self.opened else nullcontext())
            await stack.enter_async_context(progress_shown(session))
            start_workers(session)
            stack.enter_context(_workers_stopped_on_abort(session))
            cluster = stack.enter_context(cluster_of(session))
            runner = stack.enter_context(PrefectRunner(session, cluster))
            # An async flow has an async client. Without a sync one in their context, sync tasks would each make two of
            # their own: 50 ms of CPU time apiece, most of it for TLS certificates.
            stack.enter_context(_sync_client(session))
            if session.run_config.on == "pool":
                await lower_in_pool(session)
            await asyncio.gather(*map(lower, session.models))
            await lower_rest(session, runner)
        return await self._conclude(session)

    async def _conclude(self, session: Session) -> Any:
        """Publishes and shows the outcome of a session, and returns it as a state."""
        outcome = session.progress.outcome()
        try:
            published = await asyncio.to_thread(session.recording.publish)
        finally:
            if session.part_of is None:
                with session.prefect.optional():
                    await show_zoo(session)
        if outcome.failures:
            raise ZooFailed(
                f"{len(outcome.failures)} of the files were not made: {first_line(outcome.failures[0].problem)}",
                in_vain=all(failure.bad_input or failure.cancelled for failure in outcome.failures),
            )
        message = f"{outcome.summary}; {outcome.ran} stages run, {outcome.cached} cached"
        if published:
            with session.prefect.optional():
                announce(session.zoo, published)
            if published.regressions:
                raise ReleaseHeldBack(published.describe())
            message += f"; {published.describe()}"
        return Completed(name=None if outcome.ran else "Cached", message=printable(message), data=outcome.to_json())

    def __reduce__(self) -> Any:
        return _Export, (None,)


async def _lower_model(name: str, run: str) -> Any:
    """Lowers one model in the flow's own loop; only its stages are submitted.

    Ends in `Cached` if no stage had to run, in `NotApplicable` if no requested recipe applies to it.
    """
    add_tags(f"model:{name}")
    runner = runner_of(run)
    assert runner  # noqa: S101 - the flow waits for its models
    session = runner.session
    model = next(model for model in session.models if model.name == name)
    try:
        outcome = session.progress.outcomes.get(name) or await lower_one(session, model, runner)
    except asyncio.CancelledError:
        return Cancelled(message="the run was cancelled")
    with session.prefect.optional():
        await show_findings(outcome)
        await show_tables(outcome)
    if failed := [recipe for recipe in outcome.recipes if recipe.failure]:
        if session.progress.aborted:
            return Cancelled(message="the run was cancelled")
        problems = (f"{r.recipe}: {first_line(r.failure.problem)}" for r in failed if r.failure)
        cancelled = all(recipe.failure and recipe.failure.cancelled for recipe in failed)
        return (Cancelled if cancelled else Failed)(message=printable("; ".join(problems)))
    message = [f"{outcome.ran} stages run, {outcome.cached} found"]
    message += [f"{recipe} does not apply: {reason}" for recipe, reason in model.not_applicable.items()]
    state = None if outcome.ran else "Cached" if model.recipes else "NotApplicable"
    return Completed(name=state, message=printable("; ".join(message)), data=len(model.recipes))


@contextmanager
def _workers_stopped_on_abort(session: Session) -> Iterator[None]:
    """Stops the worker processes if the flow is interrupted or cancelled."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        session.abort()
        raise


@contextmanager
def _sync_client(session: Session) -> Iterator[None]:
    """A client for the flow's sync tasks; if the server does not answer it, Prefect is lost."""
    with ExitStack() as stack:
        with session.prefect.optional():
            stack.enter_context(SyncClientContext.get_or_create())
        yield


async def _tag_run(session: Session) -> None:
    """Gives the flow run the tag of its zoo, and the session the flow run's URL."""
    tags = sorted({*flow_run.tags, printable(f"zoo:{session.zoo}")})
    with session.prefect.optional():
        session.prefect.show_at(url_for("flow-run", flow_run.id) or "")
        async with get_client() as client:
            await client.update_flow_run(UUID(flow_run.id), tags=tags)


async def _refuse_to_retry(_type: Any, error: BaseException | None, _traceback: Any) -> None:
    """Removes the flow run's retries where trying again cannot help: bad input, a release that is held back."""
    in_vain = isinstance(error, ReleaseHeldBack) or (isinstance(error, ZooFailed) and error.in_vain)
    if not (in_vain or is_bad_input(error)):
        return
    with suppress(Exception):  # Prefect's: then it tries again in vain
        async with get_client() as client:
            policy = FlowRunPolicy(retries=0, retry_delay=0)
            await client.update_flow_run(UUID(flow_run.id), empirical_policy=policy)


def _run_name() -> str:
    """The zoo file and the selection, such as ``export zoo.yaml resnet*``."""
    parameters = flow_run.parameters  # not validated yet
    selected = [shortened(joined(parameters.get(name, "*")).split(",")) for name in ("models", "recipes")]
    return printable(" ".join(["export", Path(parameters["zoo"]).name, *(globs for globs in selected if globs != "*")]))


def _never(_task: Any, _run: Any, _state: Any) -> bool:
    """Never retries a model's task: its stages have their own retries.

    With `retries=0`, Prefect 3.9 logs each failed state twice, the second time with an empty traceback.
    """
    return False


def turn_lease(deployment: str) -> Digest:
    """The lease that a run of a deployment holds in its store, by the deployment's id."""
    return digest_json({"deployment": deployment})


async def take_turn(session: Session, stack: AsyncExitStack) -> None:
    """Holds the deployment's lease until `stack` is closed, so that runs of a deployment follow each other.

    A run that finds another one at work frees its worker, and is scheduled again two minutes later. Prefect's own limit
    for deployments is not used: it ends the run that has the only slot when its server restarts or is away, and if that
    run dies meanwhile, the slot stays taken. A run that loses this lease continues: publishing is idempotent. The lease
    is held until the end of the run can be reported to the server.
    """
    context = FlowRunContext.get()
    run = context and context.flow_run
    if not run or not run.deployment_id:
        return
    lease = turn_lease(str(run.deployment_id))
    with suppress(StoreError):  # a store that cannot be written can still serve what it has
        held, since = session.store.leases.watch(lease), time.monotonic()
        while await asyncio.to_thread(held):
            if time.monotonic() - since > _WATCHED:
                await _come_back_later(session, run)
                since = time.monotonic()
            await asyncio.sleep(_LOOK)
        await asyncio.to_thread(stack.enter_context, session.store.leases.hold(lease, "another run of the deployment"))
        stack.push_async_exit(wait_for_server)
        await _report_lost_runs(session, run)


async def _report_lost_runs(session: Session, run: FlowRun) -> None:
    """Ends runs of the deployment whose process is gone: a live one would hold the lease."""
    running = {"state": {"type": {"any_": [StateType.RUNNING]}}, "deployment_id": {"any_": [run.deployment_id]}}
    problem = "its process is gone, maybe with its machine; the next run has taken its turn"
    with session.prefect.optional():
        async with get_client() as client:
            for other in await client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(running)):
                if other.id != run.id:
                    record = await asyncio.to_thread(session.store.runs.find, other.id.hex)
                    await client.set_flow_run_state(other.id, unreported(record, problem), force=True)


async def _come_back_later(session: Session, run: FlowRun) -> None:
    """Schedules the flow run again, and ends this process by raising Prefect's `Pause`; returns if Prefect fails."""
    state: State[Any] = Scheduled(
        name="AwaitingConcurrencySlot",
        scheduled_time=now("UTC") + _LATER,
        message="another run of this deployment is at work",
    )
    with session.prefect.optional():
        async with get_client() as client:
            retries = (run.empirical_policy.retries or 0) + 1  # Prefect counts this start as one of them
            policy = run.empirical_policy.model_copy(update={"retries": retries})
            await client.update_flow_run(run.id, empirical_policy=policy)
            await client.set_flow_run_state(run.id, state, force=True)
        raise Pause(state=state)


async def wait_for_server(_type: Any, error: BaseException | None, _traceback: Any) -> None:
    """Waits until Prefect's server answers, unless the run was ended from outside.

    Prefect reports the end of a run only once: without a server, the run would count as running, and later as crashed.
    """
    if error is not None and not isinstance(error, Exception):
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(_UNTIL_THE_SERVER_IS_BACK), get_client() as client:
            while problem := await client.api_healthcheck():
                _log.warning("waiting for Prefect's server to report the end of the run: %s", problem)
                await asyncio.sleep(_LOOK)


# Flows and tasks have other names than their bodies, so that pickles name the bodies and do not carry them.
model_task = task(
    name="model",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=1,
    retry_delay_seconds=0,
    retry_condition_fn=_never,
)(_lower_model)
export_zoo = flow(
    name="export-zoo",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=_TASKS_AT_ONCE),  # type: ignore[arg-type]  # Prefect's own example
    persist_result=False,
    retries=2,  # go on from what is cached; the command line sets none
    retry_delay_seconds=60,
)(_export_zoo)
export_model = flow(
    name="export-model",
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=_TASKS_AT_ONCE),  # type: ignore[arg-type]  # as above
    persist_result=False,
)(_export_model)
