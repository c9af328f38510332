"""Running a flow's stages on a Dask or Ray cluster, and the checks before work starts."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from ...configs.zoo import RunConfig
from ...errors import InputError, first_line
from ..run.session import Session
from .settings import server_configured

_log = logging.getLogger(__name__)

_SELDOM = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "1s",
}
"""Processes of a Dask cluster do this every 10 to 500 ms by default. Their tasks wait for others."""

_ANSWERS_WITHIN = 10.0  # seconds for a cluster to accept a connection


def check_machines(session: Session) -> None:
    """Checks that stages can run where they are to; raises InputError if not. Does not import Prefect."""
    config = session.run_config
    if config.on == "local" or session.progress.complete:
        return
    if config.on == "pool":
        if not server_configured():
            raise InputError("runs on a work pool need a Prefect server; start one, and set PREFECT_API_URL")
        return
    if find_spec(f"prefect_{config.on}") is None:
        raise InputError(f'running on {config.on} needs a package; install it: pip install "pteforge[{config.on}]"')
    if config.address and config.address != "auto":
        _check_address(config.on, config.address)


def _check_address(on: str, address: str) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    if not host or not port:
        raise InputError(f"the address of the {on} cluster is {address!r}, and has to be SCHEME://HOST:PORT")
    try:
        socket.create_connection((host, port), _ANSWERS_WITHIN).close()
    except OSError as error:
        raise InputError(
            f"no {on} cluster answers at {address} ({error}); start it, or leave out `address` for one on this machine"
        ) from error
    if not _is_here(host) and not server_configured():
        raise InputError(
            f"the workers of the {on} cluster at {address} cannot reach the Prefect server that this command would "
            "start for itself; start one that they can reach, and set PREFECT_API_URL"
        )


def _is_here(host: str) -> bool:
    """Whether a name or address is surely this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def cluster_of(session: Session) -> Iterator[Any]:
    """Yields the task runner of the session's cluster; None without one, or if it does not start."""
    config = session.run_config
    if config.on not in ("dask", "ray"):
        yield None
        return
    with ExitStack() as stack:
        if not config.address:
            stack.enter_context(_settings_as_they_are())
        try:
            runner = stack.enter_context(_task_runner(config, session.submitted_at_once))
            if config.on == "dask":
                _ = runner.client  # starts the cluster, or connects to it
        except Exception as error:  # noqa: BLE001 - Dask's or Ray's, whatever it is
            problem = f"{type(error).__name__}: {first_line(error)}"
            _log.warning("%s failed to start, stages run on this machine: %s", config.on.capitalize(), problem)
            runner = None
        yield runner


def _settings_as_they_are() -> AbstractContextManager[Any]:
    """A context in which tasks for other processes of this machine take Prefect's settings along as an object.

    Prefect would convert them to plain values for each task, and validate these where it runs: 50 ms of CPU time.
    """
    from prefect.context import SettingsContext, get_settings_context  # noqa: PLC0415 - slow, and imported by now

    class Settings(SettingsContext):
        def serialize(self, include_secrets: bool = True) -> dict[str, Any]:  # noqa: ARG002 - Prefect's
            return {"profile": self.profile, "settings": self.settings}

    context = get_settings_context()
    return Settings(profile=context.profile, settings=context.settings)


def _task_runner(config: RunConfig, at_once: int) -> Any:
    """Prefect's task runner. Dask's processes together take `at_once` stages, mostly waiting; Ray's take one each."""
    if config.on == "dask":
        import dask  # noqa: PLC0415 - an extra, and slow
        from prefect_dask.task_runners import DaskTaskRunner  # noqa: PLC0415 - as above

        if config.address:
            return DaskTaskRunner(address=config.address)
        dask.config.set(_SELDOM)
        threads = at_once // (config.processes or 1)
        cluster = {"n_workers": config.processes, "threads_per_worker": threads, "dashboard_address": None}
        return DaskTaskRunner(cluster_kwargs=cluster)
    from prefect_ray.task_runners import RayTaskRunner  # noqa: PLC0415 - as above

    if config.address:
        return RayTaskRunner(address=config.address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it reports each cluster to its makers
    return RayTaskRunner(init_kwargs={"num_cpus": config.processes, "include_dashboard": False, "log_to_driver": False})
