"""The parts of a Prefect server that pteforge uses: the block of a store, schedules, and workers.

Register the block once: ``prefect block register -m pteforge``. It replaces a store's URL and key in environments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import prefect
from prefect import get_client
from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from pydantic import Field, SecretStr

from ...artifacts.records import KEY_VARIABLE
from ...errors import InputError, PteforgeError, first_line


class PteforgeStore(Block):
    """An artifact store that several machines share; use it as ``--store block:NAME``."""

    _block_type_name = "Pteforge Store"
    _block_type_slug = "pteforge-store"
    _description = "An artifact store of pteforge that several machines share."

    url: str = Field(description="URL of the store, such as s3://bucket/prefix.")
    signing_key: SecretStr | None = Field(
        None, title="Signing key", description="Signs the store's records; 32 characters or more."
    )


def open_block(name: str) -> str:
    """The URL of a block's store; sets its signing key for this process and its children.

    Raises InputError if the server does not have the block, or does not answer.
    """
    load: Any = PteforgeStore.load
    try:
        block = load(name, _sync=True)
    except ValueError as error:  # Prefect's for a block that is not there
        raise InputError(
            f"Prefect's server has no block pteforge-store/{name}; register its type with "
            "`prefect block register -m pteforge`, then make it in the UI"
        ) from error
    except Exception as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        problem = f"the block pteforge-store/{name} cannot be read ({problem})"
        raise InputError(f"{problem}; check PREFECT_API_URL") from error
    if block.signing_key:
        os.environ[KEY_VARIABLE] = block.signing_key.get_secret_value()
    return str(block.url)


_SCHEDULED_WITHIN = 60.0  # seconds; the scheduler looks for new deployments every 5 s
_LATE = timedelta(minutes=5)
_PAGE = 200


@dataclass(frozen=True)
class Check:
    """The result of looking at a part of the server."""

    name: str
    found: str
    well: bool = True


def wait_for_schedule(client: SyncPrefectClient, deployment: DeploymentResponse) -> None:
    """Returns when the server has scheduled a run of a deployment; raises PteforgeError if it does not do so."""
    if problem := _paused(deployment):
        raise PteforgeError(f"the deployment {deployment.name!r} is there, but {problem}")
    deadline = time.monotonic() + _SCHEDULED_WITHIN
    while not _scheduled(client, deployment):
        if time.monotonic() > deadline:
            raise PteforgeError(
                f"the deployment {deployment.name!r} is there, but the server has scheduled no run of it within "
                f"{_SCHEDULED_WITHIN:.0f} s: its scheduler does not work; see the log of `prefect server start`, and "
                "whether PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED is false there"
            )
        time.sleep(1)


def check_server() -> list[Check]:
    """Looks at the configured server, and at its deployments of zoos; raises PteforgeError if it does not answer."""
    with get_client(sync_client=True) as client:
        if problem := client.api_healthcheck():
            raise PteforgeError(f"no Prefect server answers at {client.api_url}: {problem}; check PREFECT_API_URL")
        version = client.api_version()
        same = version.split(".")[:2] == prefect.__version__.split(".")[:2]
        advice = "" if same else f"; this machine has {prefect.__version__}, install the same on both"
        server = Check("server", f"{client.api_url}, Prefect {version}{advice}", same)
        return [server, *_deployments(client)]


def _deployments(client: SyncPrefectClient) -> Iterator[Check]:
    flows = FlowFilter.model_validate({"name": {"any_": ["export-zoo"]}})
    pools: dict[str, None] = {}
    for deployment in client.read_deployments(flow_filter=flows, limit=_PAGE):
        name = f"deployment {deployment.name}"
        if deployment.work_pool_name:
            pools[deployment.work_pool_name] = None
        if deployment.global_concurrency_limit:
            advice = "has Prefect's concurrency limit, which ends its run when the server restarts; deploy it again"
            yield Check(name, advice, well=False)
        if problem := _paused(deployment):
            yield Check(name, problem, well=False)
        elif not deployment.schedules:
            yield Check(name, "no schedule")
        elif run := _scheduled(client, deployment):
            yield Check(name, f"next run at {run.expected_start_time:%Y-%m-%d %H:%M %Z}")
        else:
            yield Check(name, "has a schedule and no scheduled run: the server's scheduler does not work", well=False)
        if late := _late(client, deployment):
            yield Check(name, f"{late} runs are late by more than {_LATE.seconds // 60} minutes", well=False)
    for pool in pools:
        yield _pool(client, pool)


def _paused(deployment: DeploymentResponse) -> str:
    """Says that somebody has paused a deployment or its schedule, and how to resume it; empty if not."""
    if deployment.paused:
        return f"it is paused; prefect api POST /deployments/{deployment.id}/resume_deployment"
    resume = f"prefect deployment schedule resume export-zoo/{deployment.name}"
    resumed = [f"{resume} {schedule.id}" for schedule in deployment.schedules if not schedule.active]
    return f"its schedule is paused; {' && '.join(resumed)}" if resumed else ""


def _pool(client: SyncPrefectClient, name: str) -> Check:
    what = f"work pool {name}"
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        return Check(what, f"does not exist; make it with: prefect work-pool create {name}", well=False)
    if pool.is_paused:
        return Check(what, f"is paused; prefect work-pool resume {name}", well=False)
    for queue in client.read_work_queues(name):
        if queue.is_paused:
            resume = f"prefect work-queue resume {queue.name} --pool {name}"
            return Check(what, f"its queue is paused; {resume}", well=False)
    online = [worker.name for worker in client.read_workers_for_work_pool(name) if worker.status.value == "ONLINE"]
    limit = "" if pool.concurrency_limit is None else f", at most {pool.concurrency_limit} runs at once"
    workers = ", ".join(sorted(online)) or f"none; start one with: prefect worker start --pool {name}"
    return Check(what, f"workers online: {workers}{limit}", well=bool(online))


def _scheduled(client: SyncPrefectClient, deployment: DeploymentResponse) -> FlowRun | None:
    """The next run that the server's scheduler has made for a deployment; None if there is none."""
    soon = {"expected_start_time": {"after_": datetime.now(UTC)}, "tags": {"all_": ["auto-scheduled"]}}
    return next(iter(_waiting(client, deployment, soon)), None)


def _late(client: SyncPrefectClient, deployment: DeploymentResponse) -> int:
    """How many of a deployment's runs are late, and wait for a worker."""
    runs = _waiting(client, deployment, {"expected_start_time": {"before_": datetime.now(UTC) - _LATE}})
    return sum(run.state is not None and run.state.name != "AwaitingConcurrencySlot" for run in runs)


def _waiting(client: SyncPrefectClient, deployment: DeploymentResponse, wanted: dict[str, Any]) -> list[FlowRun]:
    """Runs of a deployment that have not started, the next one first."""
    scheduled = {"state": {"type": {"any_": [StateType.SCHEDULED]}}}
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(scheduled | wanted),
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=_PAGE,
    )
