"""Prefect servers as people run them, and the runs that they have recorded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from pteforge.tests.conftest import run_process

_LIMIT = 240.0  # seconds for a server to start or to record an event, on a busy machine


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[str]:
    """URL of the API of a server with a database of its own."""
    with running_server(tmp_path_factory.mktemp("server")) as (url, _):
        yield url


@pytest.fixture
def mortal_server(tmp_path_factory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server that the test may kill: the URL of its API, and its process."""
    with running_server(tmp_path_factory.mktemp("mortal")) as running:
        yield running


@pytest.fixture
def server_without_scheduler(tmp_path_factory, monkeypatch) -> Iterator[str]:
    """URL of the API of a server that creates no runs for schedules."""
    monkeypatch.setenv("PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED", "false")
    with running_server(tmp_path_factory.mktemp("unscheduled")) as (url, _):
        yield url


@contextlib.contextmanager
def running_server(
    home: Path, python: str | Path = sys.executable, **more: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server that a Python starts, with more variables: the URL of its API, and its process."""
    home.mkdir(exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        **more,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_API_URL": url,
    }
    command = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            eventually(lambda: process.poll() is None and _answers(url), 600)
            yield url, process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def on_server(server) -> dict[str, str]:
    """The environment of commands that use the server."""
    return {"PREFECT_API_URL": server}


@pytest.fixture
def prefect(project, on_server):
    """Runs Prefect's command line in the project's folder."""

    def run(*args: str) -> str:
        command = (sys.executable, "-m", "prefect", "--no-prompt", *args)
        done = run_process(*command, cwd=project.folder, env=project.environment(on_server), timeout=600.0)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@contextlib.contextmanager
def running_worker(project: Any, env: Mapping[str, str], pool: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of a pool, in a process of its own, which looks for runs each second."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool]
    environment = project.environment(env) | {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    with (
        (project.folder / "worker.log").open("wb") as log,
        subprocess.Popen(command, cwd=project.folder, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, Queue[Any]]]:
    """The URL of a server that takes JSON, as a webhook does, and all that it was sent."""
    sent: Queue[Any] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


def run_python(folder: Path, program: str, argument: Any, environment: Mapping[str, str]) -> list[Any]:
    """The lists and texts that a program prints as JSON, one a line; its argument is JSON, too."""
    command = (sys.executable, "-c", program, json.dumps(argument))
    done = run_process(*command, cwd=folder, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"'))]


@pytest.fixture
def unreachable() -> dict[str, str]:
    """The environment of commands whose server is unreachable."""
    return {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}


@pytest.fixture
def recorded(server) -> Callable[[Any], Recorded]:
    """Reads the runs of a project from the server."""
    return partial(Recorded, server)


class Recorded:
    """The runs of a project that a server has recorded, read through Prefect's client."""

    def __init__(self, server: str, project: Any) -> None:
        self._server = server
        self._project = project

    def flow_run(self) -> Any:
        """The project's last run, once it has ended."""
        from prefect.client.schemas.filters import FlowRunFilter
        from prefect.client.schemas.sorting import FlowRunSort

        tag = str(self._project.out)
        ended = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]
        wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": ended}}})

        def find() -> Any:
            with self._client() as client:
                runs = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.START_TIME_DESC)
            return next((run for run in runs if run.parameters.get("out") == tag), None)

        return eventually(find)

    def task_runs(self, count: int) -> dict[str, Any]:
        """Its task runs by name, once `count` of them have ended: the server writes them with a delay."""
        from prefect.client.schemas.filters import FlowRunFilter

        wanted = FlowRunFilter.model_validate({"id": {"any_": [self.flow_run().id]}})

        def find() -> Any:
            with self._client() as client:
                runs = client.read_task_runs(flow_run_filter=wanted)
            ended = [run for run in runs if run.state is not None and run.state.is_final()]  # a new one has none yet
            return {run.name: run for run in runs} if len(ended) == count else None

        return eventually(find)

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

    def events(self, count: int) -> dict[str, Any]:
        """Payloads of the server's events of pteforge by name, once there are so many: they come with a delay."""

        def find() -> Any:
            listed = self._post("/events/filter", {"filter": {"event": {"prefix": ["pteforge."]}}})["events"]
            return {event["event"]: event["payload"] for event in listed} if len(listed) == count else None

        return eventually(find)

    def event(self, name: str) -> Any:
        """Payload of the server's newest event of that name: it comes with a delay."""
        wanted = {"filter": {"event": {"name": [name]}}}
        return eventually(lambda: self._post("/events/filter", wanted)["events"])[0]["payload"]

    def logged(self) -> list[str]:
        """The messages of the run's log and of those of its tasks, once there are any: they come with a delay."""
        wanted = {"logs": {"flow_run_id": {"any_": [str(self.flow_run().id)]}}}
        return [line["message"] for line in eventually(lambda: self._post("/logs/filter", wanted))]

    def _post(self, path: str, wanted: Any) -> Any:
        with self._client() as client:
            return client._client.post(path, json=wanted).raise_for_status().json()

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self._server}), get_client(sync_client=True) as client:
            yield client


def eventually(find: Callable[[], Any], limit: float = _LIMIT) -> Any:
    """Polls until the result is true."""
    deadline = time.monotonic() + limit
    while not (found := find()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.2)
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own address
            return True
    except (urllib.error.URLError, OSError):
        return False
