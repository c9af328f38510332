"""A zoo in production: PostgreSQL, a Prefect server, an S3 store, two workers with nothing in common, two nights."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pteforge
import pytest
from pteforge.tests.contract.conftest import run_s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ENTRYPOINT = Path(pteforge.__file__).parent / "docker" / "entrypoint"
MODELS = 8
STAGES = 6  # of a model with one portable recipe

# Each call of a builder leaves a line, which counts the exports of each model on all machines.
NETS = """
from pathlib import Path
import torch

def net(name, width):
    with (Path(__file__).parent / "built").open("a") as file:
        file.write(f"{name}\\n")
    return torch.nn.Linear(4, width).eval(), (torch.zeros(1, 4),)
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _eventually(find: Callable[[], Any], limit: float = 240.0) -> Any:
    deadline = time.monotonic() + limit
    while not (found := find()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.5)
    return found


@pytest.fixture
def database() -> Iterator[str]:
    """URL of a database of a PostgreSQL server, which does not run as root."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [Path(shutil.which("initdb") or "initdb").parent]
    binaries, port = found[-1], _free_port()
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="pteforge-database-") as folder:
        if as_user:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = f"{folder}/data"
        initdb = [binaries / "initdb", "--pgdata", data, "--username", "prefect", "--auth", "trust"]
        subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd="/")
        serve = [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder]
        with (
            Path(folder, "log").open("wb") as log,
            subprocess.Popen([*as_user, *serve], stdout=log, stderr=log, cwd="/") as server,
        ):
            ready = [binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
            _eventually(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0)
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
            server.terminate()


class Site:
    """Everything that runs, and commands on it."""

    def __init__(self, project: Any, environment: Mapping[str, str]) -> None:
        self.project = project
        self._environment = environment
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def starts(self, name: str, *args: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process of the image's entry point on a machine of its own: home, cache and Prefect's home."""
        home = self.project.folder / name
        home.mkdir()
        own = {"HOME": str(home), "PTEFORGE_CACHE": str(home / "cache"), "PREFECT_HOME": str(home / "prefect")}
        with (
            (home / "log").open("wb") as log,
            subprocess.Popen(
                ["sh", ENTRYPOINT, *args],
                cwd=home,
                env={**self.environment(), **own, **environment},
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                yield process
            finally:
                _kill(process)

    def environment(self) -> dict[str, str]:
        return self.project.environment(self._environment)

    def entry(self, *args: str) -> str:
        """Runs the entry point to its end."""
        done = subprocess.run(
            ["sh", ENTRYPOINT, *args],
            cwd=self.project.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def read(self, path: str, **wanted: Any) -> Any:
        """Asks Prefect's API."""
        import httpx

        url = self._environment["PREFECT_API_URL"]
        return httpx.post(f"{url}/{path}", json=wanted, timeout=60).raise_for_status().json()

    def start_night(self) -> str:
        """Runs the deployment; the id of the run."""
        (deployment,) = self.read("deployments/filter", deployments={"name": {"any_": ["nightly"]}})
        run: str = self.read(f"deployments/{deployment['id']}/create_flow_run")["id"]
        return run

    def wait_for(self, run: str, models: int | None = None) -> Any:
        """The run's state at its end, or as soon as runs of so many models are done."""

        def reached() -> Any:
            (found,) = self.read("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
            ended = found["state"]["type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
            done = models and len(self.runs_of_models(run, "COMPLETED")) >= models
            return found["state"] if ended or done else None

        return _eventually(reached, 900)

    def runs_of_models(self, run: str, *states: str) -> Any:
        """The runs of models that a zoo's run has started, in any state or in some."""
        chosen = {"state": {"type": {"any_": states}}} if states else {}
        (zoo,) = self.read("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
        started = self.read("flow_runs/filter", flow_runs={"name": {"like_": "export"}, **chosen})
        return [entry for entry in started if entry["id"] != zoo["id"] and entry["created"] > zoo["created"]]

    def record(self, run: str) -> Any:
        """What pteforge's own record says of the run."""
        listed = json.loads(self.entry("pteforge", "runs", "--json", "--limit", "50"))["runs"]
        (found,) = [entry for entry in listed if entry["id"] == run.replace("-", "")]
        return found


@pytest.fixture
def site(project, database) -> Iterator[Site]:
    """Prefect's server on the database, an S3 server, and two workers of one pool."""
    port = _free_port()
    with run_s3_server() as bucket, contextlib.ExitStack() as stack:
        site = Site(
            project,
            {
                "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
                "PREFECT_WORKER_QUERY_SECONDS": "1",
                "PTEFORGE_STORE": "s3://forge/store",
                "PTEFORGE_SIGNING_KEY_FILE": str(project.write("key", "k" * 40)),
                "AWS_ENDPOINT_URL": bucket.endpoint,
                "AWS_ACCESS_KEY_ID": "tests",
                "AWS_SECRET_ACCESS_KEY": "tests-secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
        )
        of_server = {"PREFECT_API_DATABASE_CONNECTION_URL": database, "PREFECT_SERVER_API_PORT": str(port)}
        stack.enter_context(site.starts("server", "server", PREFECT_SERVER_API_HOST="127.0.0.1", **of_server))
        _eventually(lambda: _answers(port))
        zoo = ("zoo.yaml", "--name", "nightly", "--on", "pool", "--publish", "s3://forge/releases")
        _write_zoo(project, {})
        site.entry("deploy", *zoo, "--out", str(project.out))
        for name in ("one", "two"):
            own = {"WORKER_NAME": name, "WORKER_LIMIT": "3", "PREFECT_WORKER_WEBSERVER_PORT": str(_free_port())}
            site.workers[name] = stack.enter_context(site.starts(name, "worker", **own))
        yield site


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def _write_zoo(project: Any, widths: Mapping[str, int]) -> None:
    project.write("nets.py", NETS)
    models = {}
    for index in range(MODELS):
        name = f"net{index:02}"
        arguments = {"name": name, "width": widths.get(name, index + 1)}
        models[name] = {"source": {"builder": "nets:net", "kwargs": arguments}}
    project.write_zoo(models, ("portable-fp32",))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started at once, as the loss of its machine does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(process.pid)
        for each in (leader, *leader.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def _runs_of(process: subprocess.Popen[bytes]) -> set[str]:
    """Ids of the flow runs that a worker's processes execute."""
    found = set()
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.add(child.environ().get("PREFECT__FLOW_RUN_ID", ""))
    return found - {""}


def _ran(record: Any) -> dict[str, int]:
    """Number of stages that ran, by model, without those where none did."""
    return {name: counts["ran"] for name, counts in record["models"].items() if counts.get("ran")}


def test_two_nights(site):
    """A machine that dies costs what it was doing. The next night runs what has changed, and says what that was."""
    night = site.start_night()
    assert site.wait_for(night, models=3)["type"] == "RUNNING"
    victim = next(worker for worker in site.workers.values() if night not in _runs_of(worker))
    _eventually(lambda: _runs_of(victim))
    lost = _runs_of(victim)
    _kill(victim)
    state = site.wait_for(night)
    assert state["type"] == "COMPLETED", state
    assert f"{MODELS} files verified" in state["message"]
    assert len(list(site.project.out.glob("*/portable-fp32.pte"))) == MODELS

    ended = site.runs_of_models(night)
    crashed = {run["parameters"]["model"] for run in ended if run["state"]["type"] == "CRASHED"}
    assert crashed <= {run["parameters"]["model"] for run in ended if run["id"] in lost}
    counts = {name: Counter(found) for name, found in site.record(night)["models"].items()}
    assert {name: count["ran"] + count["cached"] for name, count in counts.items()} == dict.fromkeys(counts, STAGES)
    assert {name for name, count in counts.items() if count["cached"]} <= crashed
    built = Counter((site.project.folder / "built").read_text().split())
    assert len(built) == MODELS
    assert {name for name, count in built.items() if count > 1} <= crashed

    before = site.project.folder / "before"
    shutil.copytree(site.project.out, before)
    _write_zoo(site.project, {"net07": 100})
    second = site.start_night()
    state = site.wait_for(second)
    assert state["type"] == "COMPLETED", state
    assert set(_ran(site.record(second))) == {"net07"}
    releases = json.loads(site.entry("pteforge", "release", "list", "s3://forge/releases", "--json"))
    assert len(releases["releases"]) == 2
    compared = json.loads(site.entry("pteforge", "diff", str(before), str(site.project.out), "--json"))
    assert [file["name"] for file in compared["files"] if file["status"] != "equal"] == ["net07/portable-fp32"]
    page = (site.project.out / "index.html").read_text()
    assert "net07" in page
