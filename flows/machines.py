"""Running a flow's stages on a Dask or Ray cluster, and what has to be there before work starts."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from ..configs.run import RunConfig
from ..errors import InputError, first_line
from .prefect_settings import server_configured
from .session import Session

_log = logging.getLogger(__name__)

_ANSWERS_WITHIN = 10.0  # seconds for a cluster to accept a connection


def check_place(session: Session) -> None:
    """Checks, without importing Prefect, that the place where stages are to run can be used.

    Raises:
        InputError: the package for it is not installed, its cluster does not answer, or it could not report to Prefect.
    """
    place = session.place
    if place.on == "local" or session.complete:
        return
    if place.on == "pool":
        if not server_configured():
            raise InputError("runs on a work pool need a Prefect server; start one, and set PREFECT_API_URL")
        return
    if find_spec(f"prefect_{place.on}") is None:
        raise InputError(f'running on {place.on} needs a package; install it with: pip install "pteforge[{place.on}]"')
    if place.address and place.address != "auto":
        _check_address(place.on, place.address)


def _check_address(on: str, address: str) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    if not host or not port:
        raise InputError(
            f"the address {address!r} of the {on} cluster names no host and port; write SCHEME://HOST:PORT"
        )
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
def on_cluster(session: Session) -> Iterator[None]:
    """While the context is open, tasks that the current flow submits go to the session's cluster, if it has one.

    A cluster that does not start is a warning, and stages run on this machine.
    """
    if session.place.on not in ("dask", "ray"):
        yield
        return
    from prefect.context import FlowRunContext  # noqa: PLC0415 - slow, and imported by now

    with ExitStack() as stack:
        try:
            runner = stack.enter_context(_task_runner(session.place, session.jobs))
            if session.place.on == "dask":
                _ = runner.client  # starts the cluster, or connects to it
            context = FlowRunContext.get()
            assert context  # noqa: S101 - the flow is running
            stack.enter_context(context.model_copy(update={"task_runner": runner}))
        except Exception as error:  # noqa: BLE001 - Dask's or Ray's, whatever it is
            _log.warning(
                "%s failed to start, stages run on this machine: %s: %s",
                session.place.on.capitalize(),
                type(error).__name__,
                first_line(error),
            )
        yield


def _task_runner(place: RunConfig, jobs: int) -> Any:
    """Prefect's task runner. A Dask worker runs `jobs` stages at once; a process of Ray's runs one."""
    if place.on == "dask":
        from prefect_dask.task_runners import DaskTaskRunner  # noqa: PLC0415 - an extra, and slow

        if place.address:
            return DaskTaskRunner(address=place.address)
        cluster = {"n_workers": place.processes, "threads_per_worker": jobs, "dashboard_address": None}
        return DaskTaskRunner(cluster_kwargs=cluster)
    from prefect_ray.task_runners import RayTaskRunner  # noqa: PLC0415 - as above

    if place.address:
        return RayTaskRunner(address=place.address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it reports each cluster to its makers
    return RayTaskRunner(init_kwargs={"num_cpus": place.processes, "include_dashboard": False, "log_to_driver": False})
