"""Prefect servers as people run them, and what they know of a run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_LIMIT = 240.0  # seconds for a server to start or to write down what it was told, on a busy machine


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[str]:
    """URL of the API of a server as people run it, with a database of its own."""
    with _running_server(tmp_path_factory.mktemp("server")) as (url, _):
        yield url


@pytest.fixture
def mortal_server(tmp_path_factory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of the test's own: the URL of its API, and its process."""
    with _running_server(tmp_path_factory.mktemp("mortal")) as running:
        yield running


@contextlib.contextmanager
def _running_server(home: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server with its database in `home`."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}/api"
            _eventually(lambda: process.poll() is None and _answers(url))
            yield url, process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def on_server(server) -> dict[str, str]:
    """The environment of commands that report to it."""
    return {"PREFECT_API_URL": server}


@pytest.fixture
def recorded(server) -> Callable[[Any], Recorded]:
    """What the server knows of a room."""
    return partial(Recorded, server)


class Recorded:
    """What a server knows of the runs in a room, read through Prefect's client."""

    def __init__(self, server: str, room: Any) -> None:
        self._server = server
        self._room = room

    def flow_run(self) -> Any:
        """The room's last run, once it has ended."""
        from prefect.client.schemas.filters import FlowRunFilter
        from prefect.client.schemas.sorting import FlowRunSort

        tag = str(self._room.out)
        wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}})

        def find() -> Any:
            with self._client() as client:
                runs = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.START_TIME_DESC)
            return next((run for run in runs if run.parameters.get("out") == tag), None)

        return _eventually(find)

    def task_runs(self, count: int) -> dict[str, Any]:
        """Its task runs by name, once there are so many that have ended: the server writes them with a delay."""
        from prefect.client.schemas.filters import FlowRunFilter

        run = self.flow_run()
        wanted = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})

        def find() -> Any:
            with self._client() as client:
                runs = client.read_task_runs(flow_run_filter=wanted)
            return {each.name: each for each in runs} if sum(each.state.is_final() for each in runs) == count else None

        return _eventually(find)

    def table(self, key: str) -> Any:
        """The rows of an artifact of the run."""
        from prefect.client.schemas.filters import ArtifactFilter

        wanted = ArtifactFilter.model_validate({"flow_run_id": {"any_": [self.flow_run().id]}, "key": {"any_": [key]}})
        with self._client() as client:
            (artifact,) = client.read_artifacts(artifact_filter=wanted)
        return json.loads(artifact.data)

    def artifact(self, key: str) -> Any:
        """Content of the newest artifact of that key."""
        from prefect.client.schemas.filters import ArtifactCollectionFilter

        wanted = ArtifactCollectionFilter.model_validate({"key": {"any_": [key]}})
        with self._client() as client:
            (artifact,) = client.read_latest_artifacts(artifact_filter=wanted)
        return artifact.data

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self._server}), get_client(sync_client=True) as client:
            yield client


def _eventually(find: Callable[[], Any]) -> Any:
    """Asks again and again until there is an answer."""
    deadline = time.monotonic() + _LIMIT
    while not (found := find()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.2)
    return found


def _answers(url: str) -> bool:
    """Whether a server is up."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own address
            return True
    except (urllib.error.URLError, OSError):
        return False
