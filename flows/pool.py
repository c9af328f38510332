"""A run on a Prefect work pool: each model is a flow run of its own, `export-model`, wherever a worker takes it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from ..errors import InputError
from ..tasks.model import PlannedModel
from .session import BLOCK, Session, run_lease
from .zoo import conclude_elsewhere

_POLLS_PER_SECOND = 10  # of all runs together: the server is asked for each
_GONE = 30.0  # seconds without a lease until a run counts as crashed: it ends soon after it has released its lease
_NEVER_SEEN = 120.0  # the same from when a worker has taken it, until it holds its lease


def model_deployment(pool: str) -> str:
    """The deployment whose runs lower one model each on a pool. It serves all zoos: runs bring their parameters."""
    return f"export-model/{pool}"


async def lower_in_pool(session: Session) -> None:
    """Has the models that have no outcome yet lowered by runs on the session's work pool, and publishes their files.

    A run that crashes, by itself or with its machine, is started once more. One that crashes again, or is cancelled,
    fails its model only. If Prefect fails, models are left without an outcome.

    Raises:
        InputError: the pool has no deployment for models.
    """
    rest = [model for model in session.models if model.name not in session.outcomes]
    if not rest:
        return
    assert session.place.pool  # noqa: S101 - validated with the zoo
    session.executor.refresh = ""  # the models' runs refresh; what they have made is found here
    with session.without_prefect_if_it_fails():
        await _check_deployment(session.place.pool)
    await asyncio.gather(*(_lower(session, model, max(1, len(rest) / _POLLS_PER_SECOND)) for model in rest))


async def _lower(session: Session, model: PlannedModel, interval: float) -> None:
    run = await _run_unless_lost(session, model, interval)
    if run and run.state and run.state.is_crashed():
        await asyncio.to_thread(session.store.runs.take, run.id.hex)  # the next run goes on from there
        run = await _run_unless_lost(session, model, interval)
    if run:
        await asyncio.to_thread(_conclude, session, model, run)


async def _run_unless_lost(session: Session, model: PlannedModel, interval: float) -> FlowRun | None:
    """A run of a model at its end; None if Prefect fails, or has."""
    if not session.server_lost:
        with session.without_prefect_if_it_fails():
            return await _run(session, model, interval)
    return None


async def _run(session: Session, model: PlannedModel, interval: float) -> FlowRun:
    """Starts a run of a model, and waits for its end. The run of a machine that died has ended as `Crashed`."""
    run = await arun_deployment(
        model_deployment(session.place.pool or ""),
        parameters=_parameters(session, model),
        tags=[f"zoo:{session.zoo}", f"model:{model.name}"],
        timeout=0,
    )
    held = session.store.leases.watch(run_lease(run.id.hex))
    seen, heard = False, time.monotonic()
    async with get_client() as client:
        while not (run.state and run.state.is_final()):
            await asyncio.sleep(interval)
            run = await client.read_flow_run(run.id)
            taken = run.state and (run.state.is_pending() or run.state.is_running())
            if not taken or await asyncio.to_thread(held):
                seen, heard = bool(taken), time.monotonic()
            elif time.monotonic() - heard > (_GONE if seen else _NEVER_SEEN):
                gone: State[Any] = Crashed(
                    message="nothing was heard of its process any more; its machine may have died"
                )
                await client.set_flow_run_state(run.id, gone, force=True)
                run = await client.read_flow_run(run.id)
    return run


def _parameters(session: Session, model: PlannedModel) -> dict[str, Any]:
    """Parameters of the model's run: those of this one, but files go to the worker's own folder for the run.

    This run writes them, from the store, and releases them.
    """
    given = {name: value for name, value in session.parameters.items() if name not in ("models", "publish")}
    store = given["store"] if str(given["store"]).startswith(BLOCK) else session.store.url
    return given | {"model": model.name, "store": store, "out": "out", "on": "local"}


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


async def _check_deployment(pool: str) -> None:
    async with get_client() as client:
        try:
            await client.read_deployment_by_name(model_deployment(pool))
        except ObjectNotFound as error:
            with suppress(ObjectNotFound):
                await client.read_work_pool(pool)
                raise InputError(
                    f"the work pool {pool!r} has no deployment {model_deployment(pool)!r}; "
                    f"make it with: pteforge deploy ZOO.yaml --pool {pool} --on pool"
                ) from error
            raise InputError(
                f"there is no work pool {pool!r}; make it with: prefect work-pool create {pool} -t process"
            ) from error
