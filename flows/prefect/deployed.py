"""What runs of deployments do besides lowering: take turns, and stay until Prefect's server knows how they ended."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.states import Crashed, Scheduled
from prefect.types._datetime import now

from ...artifacts.digest import Digest, digest_json
from ...errors import StoreError
from ..run.session import Session

_log = logging.getLogger(__name__)

_WATCHED = 60.0  # seconds until a lease whose holder died is free on every kind of store, with some to spare
_LATER = timedelta(minutes=2)
_LOOK = 2.0  # seconds between looks at a lease or a server
_UNTIL_THE_SERVER_IS_BACK = 1800.0  # seconds


def turn_lease(deployment: str) -> Digest:
    """The lease that a run of a deployment holds in its store, by the deployment's id."""
    return digest_json({"deployment": deployment})


async def take_turn(session: Session, stack: AsyncExitStack) -> None:
    """Holds the deployment's lease until `stack` is closed, so that runs of a deployment follow each other.

    A run that finds another one at work gives its worker back, and is scheduled again two minutes later. Prefect's own
    limit for deployments is not used: it ends the run that has the only slot when its server is restarted or away, and
    if that run dies meanwhile, the slot stays taken. A run that loses this lease continues: publishing is idempotent.
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
        await _report_lost_runs(session, run)


async def _report_lost_runs(session: Session, run: FlowRun) -> None:
    """Marks runs of the deployment that died with their machine as crashed: a live one would hold the lease."""
    running = {"state": {"type": {"any_": [StateType.RUNNING]}}, "deployment_id": {"any_": [run.deployment_id]}}
    lost: State[Any] = Crashed(message="its process is gone, maybe with its machine; the next run has taken its turn")
    with session.without_prefect_if_it_fails():
        async with get_client() as client:
            for other in await client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(running)):
                if other.id != run.id:
                    await client.set_flow_run_state(other.id, lost, force=True)


async def _come_back_later(session: Session, run: FlowRun) -> None:
    """Schedules the flow run again, and ends this process by raising Prefect's `Pause`; returns if Prefect fails."""
    state: State[Any] = Scheduled(
        name="AwaitingConcurrencySlot",
        scheduled_time=now("UTC") + _LATER,
        message="another run of this deployment is at work",
    )
    with session.without_prefect_if_it_fails():
        async with get_client() as client:
            retries = (run.empirical_policy.retries or 0) + 1  # Prefect counts this start as one of them
            policy = run.empirical_policy.model_copy(update={"retries": retries})
            await client.update_flow_run(run.id, empirical_policy=policy)
            await client.set_flow_run_state(run.id, state, force=True)
        raise Pause(state=state)


async def wait_for_server(_type: Any, error: BaseException | None, _traceback: Any) -> None:
    """Returns when Prefect's server answers, unless the run was ended from outside: Prefect reports its end only once.

    Until then the run would count as running, and in the end as crashed, although its files are made.
    """
    if error is not None and not isinstance(error, Exception):
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(_UNTIL_THE_SERVER_IS_BACK), get_client() as client:
            while problem := await client.api_healthcheck():
                _log.warning("waiting for Prefect's server to report the end of the run: %s", problem)
                await asyncio.sleep(_LOOK)
