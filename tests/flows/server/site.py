"""A zoo in production: PostgreSQL, a Prefect server, an S3 store that can be away, and workers that share nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pteforge
from pteforge.flows.prefect.pool import ALONE
from pteforge.tests.conftest import run_process
from pteforge.tests.contract.conftest import run_s3_server
from pteforge.tests.faulty_proxy import Proxy, run_proxy
from pteforge.tests.flows.server.conftest import eventually, free_port

ENTRYPOINT = Path(pteforge.__file__).parent / "docker" / "entrypoint"
MODELS = 6
STAGES = 6  # of a model with one portable recipe
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

# Each call of a builder leaves a line, which counts the exports of each model on all machines, and one elsewhere if
# another call for the model is going on. All weights are the value in a module beside it.
NETS = """
import fcntl
import time
from pathlib import Path
import torch
from values import VALUE

FOLDER = Path(__file__).parent

def note(file, name):
    with (FOLDER / file).open("a") as lines:
        lines.write(f"{name}\\n")

def net(name, width, seconds):
    note("built", name)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("twice", name)
        time.sleep(seconds)
    model = torch.nn.Linear(4, width, bias=False).eval()
    torch.nn.init.constant_(model.weight, VALUE)
    return model, (torch.zeros(1, 4),)
"""


@contextlib.contextmanager
def run_database() -> Iterator[str]:
    """URL of a database of a PostgreSQL server, which does not run as root."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [Path(shutil.which("initdb") or "initdb").parent]
    binaries, port = found[-1], free_port()
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
            eventually(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0)
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
            server.terminate()


class Machine:
    """A process of the image's entry point, and all that it has started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self._known: dict[int, psutil.Process] = {}

    def processes(self) -> list[psutil.Process]:
        """Those that live, with children of processes that have ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            leader = psutil.Process(self.process.pid)
            self._known |= {each.pid: each for each in (leader, *leader.children(recursive=True))}
        return [each for each in self._known.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def runs(self) -> dict[str, psutil.Process]:
        """The first process of each flow run that it executes, by the run's id."""
        found: dict[str, psutil.Process] = {}
        for each in self.processes():
            with contextlib.suppress(psutil.Error):
                if run := each.environ().get("PREFECT__FLOW_RUN_ID"):
                    found.setdefault(run, each)
        return found

    def kill(self) -> None:
        """Ends everything at once, as the loss of its machine does."""
        for each in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()


class Site:
    """Everything that runs, and commands on it."""

    def __init__(self, project: Any, database: str, bucket: str, away: threading.Event) -> None:
        self.project = project
        self.store_away = away  # while it is set, the object store answers nobody
        self.workers: dict[str, Machine] = {}
        self._port = free_port()
        self._server: Machine | None = None
        self._stack = contextlib.ExitStack()
        self._database = database
        self._environment = {
            "PREFECT_API_URL": f"http://127.0.0.1:{self._port}/api",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PTEFORGE_STORE": "s3://forge/store",
            "PTEFORGE_SIGNING_KEY_FILE": str(project.write("key", "k" * 40)),
            "AWS_ENDPOINT_URL": bucket,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def close(self) -> None:
        self._stack.close()

    def start_server(self) -> None:
        """Starts Prefect's server; again, on the same database, if it was stopped."""
        of_server = {
            "PREFECT_API_DATABASE_CONNECTION_URL": self._database,
            "PREFECT_API_DATABASE_CONNECTION_TIMEOUT": "60",  # by default 5 s, which a busy machine may need
            "PREFECT_API_DATABASE_TIMEOUT": "60",
            "PREFECT_SERVER_API_PORT": str(self._port),
        }
        self._server = self.start("server", "server", PREFECT_SERVER_API_HOST="127.0.0.1", **of_server)
        eventually(self._ready)

    def stop_server(self) -> None:
        assert self._server
        self._server.kill()

    def _ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self._environment['PREFECT_API_URL']}/ready", timeout=5).status_code == 200
        return False

    def start_worker(self, name: str, limit: int = 3, **environment: str) -> Machine:
        own = {"WORKER_NAME": name, "WORKER_LIMIT": str(limit), "PREFECT_WORKER_WEBSERVER_PORT": str(free_port())}
        self.workers[name] = self.start(name, "worker", **own, **environment)
        return self.workers[name]

    def start(self, name: str, *args: str, **environment: str) -> Machine:
        """A process of the image's entry point on a machine of its own: home, cache and Prefect's home."""
        home = self.project.folder / name
        home.mkdir(exist_ok=True)
        own = {"HOME": str(home), "PTEFORGE_CACHE": str(home / "cache"), "PREFECT_HOME": str(home / "prefect")}
        log = self._stack.enter_context((home / "log").open("ab"))
        process = subprocess.Popen(
            ["sh", ENTRYPOINT, *args],
            cwd=home,
            env={**self.environment(), **own, **environment},
            stdout=log,
            stderr=log,
        )
        machine = Machine(process, home / "log")
        self._stack.callback(machine.kill)
        return machine

    def environment(self) -> dict[str, str]:
        return self.project.environment(self._environment)

    def entry(self, *args: str, code: int = 0) -> str:
        """Runs the entry point to its end; what it printed."""
        done = run_process("sh", ENTRYPOINT, *args, cwd=self.project.folder, env=self.environment())
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    def deploy(self, *args: str, zoo: str = "zoo.yaml", name: str = "nightly") -> str:
        """Deploys the zoo for the pool, with releases."""
        publish = ("--publish", "s3://forge/releases")
        return self.entry("deploy", zoo, "--name", name, *publish, "--out", str(self.project.out), *args)

    def read(self, path: str, **wanted: Any) -> Any:
        """Asks Prefect's API, again where a busy machine does not answer: what is asked can be repeated."""
        url = f"{self._environment['PREFECT_API_URL']}/{path}"

        def ask() -> Any:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.post(url, json=wanted, timeout=60)
                return answer if answer.status_code < 500 else None

        return eventually(ask, 600).raise_for_status().json()

    def start_night(self, name: str = "nightly", **parameters: Any) -> str:
        """Runs the deployment; the id of the run."""
        (deployment,) = self.read("deployments/filter", deployments={"name": {"any_": [name]}})
        path = f"deployments/{deployment['id']}/create_flow_run"
        made = self.read(path, parameters=parameters, idempotency_key=secrets.token_hex(8))
        run: str = made["id"]
        return run

    def run(self, run: str) -> Any:
        (found,) = self.read("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
        return found

    def wait_for(self, run: str, models: int | None = None) -> Any:
        """The run's state at its end, or as soon as runs of so many models are done."""

        def reached() -> Any:
            state = self.run(run)["state"]
            done = models is not None and len(self.runs_of_models(run, "COMPLETED")) >= models
            return state if state["type"] in FINAL or done else None

        return eventually(reached, 900)

    def runs_of_models(self, run: str, *states: str) -> Any:
        """The runs of models that a zoo's run has started, in any state or in some."""
        chosen = {"state": {"type": {"any_": states}}} if states else {}
        zoo = self.run(run)
        started = self.read("flow_runs/filter", flows={"name": {"any_": ["export-model"]}}, flow_runs=chosen)
        return [entry for entry in started if entry["created"] > zoo["created"]]

    def unfinished(self) -> list[str]:
        """Names of all flow runs that have not ended, without those that are scheduled for later."""
        found = self.read("flow_runs/filter", flow_runs={"state": {"type": {"not_any_": FINAL}}})
        return [entry["name"] for entry in found if "auto-scheduled" not in entry["tags"]]

    def record(self, run: str) -> Any:
        """What pteforge's own record says of the run; of its last attempt."""
        listed = json.loads(self.entry("pteforge", "runs", "--json", "--limit", "50"))["runs"]
        return next(entry for entry in listed if entry["id"] == run.replace("-", ""))

    def releases(self) -> Any:
        return json.loads(self.entry("pteforge", "release", "list", "s3://forge/releases", "--json"))

    def built(self) -> Counter[str]:
        """How often each model's builder was called, on all machines."""
        return Counter((self.project.folder / "built").read_text().split())

    def files(self) -> list[str]:
        return sorted(path.parent.name for path in self.project.out.glob("*/portable-fp32.pte"))

    def write_zoo(
        self,
        widths: Mapping[str, int] | None = None,
        *,
        seconds: float = 0,
        slow: Mapping[str, float] | None = None,
        name: str = "zoo.yaml",
        weights: int = int(ALONE) << 20,
        count: int = MODELS,
    ) -> None:
        """Writes the zoo: models of one layer, each of whose builders takes so many seconds, some of them more.

        Each has a file of as many bytes as `weights`: by default, so many that the model has a flow run of its own.
        """
        self.project.write("nets.py", NETS)
        if not (self.project.folder / "values.py").exists():
            self.project.write("values.py", "VALUE = 0.5\n")
        os.truncate(self.project.write("weights", ""), weights)
        models, files = {}, ["weights"]
        for index in range(count):
            model = f"net{index:02}"
            takes = (slow or {}).get(model, seconds)
            arguments = {"name": model, "width": (widths or {}).get(model, index + 1), "seconds": takes}
            models[model] = {"source": {"builder": "nets:net", "kwargs": arguments, "files": files}}
        self.project.write_zoo(models, ("portable-fp32",))
        if name != "zoo.yaml":
            (self.project.folder / "zoo.yaml").rename(self.project.folder / name)


NAMES = [f"net{index:02}" for index in range(MODELS)]


@contextlib.contextmanager
def run_site(project: Any, workers: Mapping[str, int]) -> Iterator[Site]:
    """Prefect's server on PostgreSQL, an S3 server, and workers of one pool by name, with their limits."""
    away = threading.Event()
    with (
        run_database() as database,
        run_s3_server() as bucket,
        run_proxy(Proxy(bucket.endpoint, lambda *_: "unavailable" if away.is_set() else "")) as proxy,
    ):
        site = Site(project, database, proxy, away)
        try:
            site.write_zoo()
            site.start_server()
            site.deploy("--on", "pool")
            for name, limit in workers.items():
                site.start_worker(name, limit)
            yield site
        finally:
            away.clear()
            site.close()
