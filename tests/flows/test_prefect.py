"""Runs on a Prefect server: recorded whole, also where everything was cached; judged by what was made."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_LIMIT = 240.0  # seconds for a server to start or to write down what it was told, on a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """URL of the API of a server as people run it, with a database of its own."""
    with running_server(tmp_path_factory.mktemp("server")) as (url, _):
        yield url


@contextlib.contextmanager
def running_server(home: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server with its database in `home`: the URL of its API, and its process."""
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
            eventually(lambda: process.poll() is None and answers(url))
            yield url, process
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def on_server(server) -> dict[str, str]:
    """The environment of commands that report to it."""
    return {"PREFECT_API_URL": server}


class Recorded:
    """What the server knows of the runs in a room, read through Prefect's client."""

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

        return eventually(find)

    def task_runs(self, count: int) -> dict[str, Any]:
        """Its task runs by name, once there are so many that have ended: the server writes them with a delay."""
        from prefect.client.schemas.filters import FlowRunFilter

        run = self.flow_run()
        wanted = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})

        def find() -> Any:
            with self._client() as client:
                runs = client.read_task_runs(flow_run_filter=wanted)
            return {each.name: each for each in runs} if sum(each.state.is_final() for each in runs) == count else None

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

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self._server}), get_client(sync_client=True) as client:
            yield client


def eventually(find: Callable[[], Any]) -> Any:
    """Asks again and again until there is an answer."""
    deadline = time.monotonic() + _LIMIT
    while not (found := find()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.2)
    return found


def answers(url: str) -> bool:
    """Whether a server is up."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own address
            return True
    except (urllib.error.URLError, OSError):
        return False


def test_cached_run_is_recorded(warm, server, on_server):
    """With a server, a run in which nothing has to be done is recorded too: a completed flow, every model `Cached`."""
    done = warm.export("--json", "--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    assert done.json["stages"] == {"ran": 0, "cached": 26}
    recorded = Recorded(server, warm)
    run = recorded.flow_run()
    assert (run.name, run.state.name) == ("export zoo.yaml", "Completed")
    models = recorded.task_runs(2)
    assert {name: model.state.name for name, model in models.items()} == {
        "model linear": "Cached",
        "model conv": "Cached",
    }
    assert models["model conv"].tags == ["model:conv"]


def test_model_without_a_recipe_is_recorded(warm, server, on_server):
    """A model that none of its recipes applies to is a completed task run of its own name, which says why."""
    recipes = {
        name: {"extends": name, "not_for": {"linear": f"not {name}"}} for name in ("portable-fp32", "xnnpack-fp32")
    }
    warm.zoo({"linear": "nets:linear", "conv": "nets:conv"}, own=recipes)
    done = warm.export("--json", "--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    models = Recorded(server, warm).task_runs(2)
    assert {name: model.state.name for name, model in models.items()} == {
        "model linear": "NotApplicable",
        "model conv": "Cached",
    }
    assert "xnnpack-fp32 does not apply: not xnnpack-fp32" in models["model linear"].state.message


def test_stages_are_recorded(warm, server, on_server):
    """Stages that ran and stages that were found are task runs with names, tags and states; a failure is the flow's."""
    warm.write(
        "more.yaml",
        "version: 1\ninclude: [zoo.yaml]\nmodels:\n  bad: {source: 'faulty:crashes', recipes: [portable-fp32]}\n",
    )
    done = warm.run(
        "export", "more.yaml", "--set", "models.conv.verify={min_sqnr_db: 90}", "--out", str(warm.out), env=on_server
    )
    assert done.code == 1
    assert not any("prefect" in line.lower() or "|" in line for line in done.err.splitlines())
    recorded = Recorded(server, warm)
    run = recorded.flow_run()
    assert (run.name, run.state.name) == ("export more.yaml", "Failed")
    assert "1 of the files" in run.state.message
    tasks = recorded.task_runs(3 + 13 + 1)
    states = {name: task.state.name for name, task in tasks.items()}
    assert states["model linear"] == "Cached"
    assert states["model conv"] == "Completed"
    assert states["model bad"] == states["bad export"] == "Failed"
    assert states["conv export"] == states["conv compile/xnnpack-fp32"] == "Cached"
    assert states["conv verify/xnnpack-fp32"] == states["conv report/xnnpack-fp32"] == "Completed"
    assert "killed by SIGSEGV" in tasks["bad export"].state.message
    assert set(tasks["conv compile/xnnpack-fp32"].tags) == {"stage:compile", "model:conv", "recipe:xnnpack-fp32"}
    assert set(tasks["conv export"].tags) == {
        "stage:export",
        "model:conv",
        "recipe:portable-fp32",
        "recipe:xnnpack-fp32",
    }


def test_stages_of_a_model_that_fails_stay_what_they_are(room, server, on_server):
    """What was made or found before a stage failed is kept, and shows as completed or cached, not as rolled back."""
    gate = {"evaluator": "scoring:finite", "floor": 1.5}
    room.zoo({"net": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}})
    made = room.export("--out", str(room.out), env=on_server)
    states = {name: task.state.name for name, task in Recorded(server, room).task_runs(8).items()}
    assert made.code == 1, made.err
    assert states.pop("model net") == states.pop("net gate/scored") == "Failed"
    assert set(states.values()) == {"Completed"}

    found = room.export("--out", str(room.out), env=on_server)
    assert found.code == 1, found.err
    states = {name: task.state.name for name, task in Recorded(server, room).task_runs(8).items()}
    assert states.pop("model net") == states.pop("net gate/scored") == "Failed"
    assert set(states.values()) == {"Cached"}


def test_scores_are_a_table(warm, server, on_server):
    """What files scored is an artifact of the model's task run: a table with a row for each."""
    gate = {"evaluator": "scoring:finite", "floor": 0.5}
    warm.zoo({"Small_net": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}})
    done = warm.export("--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    table = Recorded(server, warm).table("accuracy-small-net")
    assert [(row["recipe"], row["score"], row["floor"], row["eager"]) for row in table] == [("scored", 1.0, 0.5, None)]


def test_numerics_are_tables(warm, server, on_server):
    """A ladder is a table of the model's task run; what bisect finds is a page and a plot on the server, too."""
    laddered = {"extends": "portable-fp32", "verify": {"ladder": True}}
    warm.zoo({"conv": "nets:conv"}, ("laddered",), {"laddered": laddered})
    done = warm.export("--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    table = Recorded(server, warm).table("numerics-conv")
    assert {row["recipe"] for row in table} == {"laddered"}
    assert table[0]["SQNR"] == "exact"
    assert [row["rung"] for row in table] == ["exported", "edge", "payload"]

    looked = warm.run("bisect", "zoo.yaml", "conv/laddered", env=on_server)
    assert (looked.code, looked.err) == (0, "")
    known = Recorded(server, warm)
    page = known.artifact("bisect-conv-laddered")
    assert "# conv/laddered" in page
    assert "| exported | forward | 0 | 0 | exact |" in page
    assert known.artifact("bisect-conv-laddered-plot").startswith("data:image/png;base64,iVBOR")


def test_bisect_without_its_server(warm):
    """A server that does not answer costs a warning: the result is on the terminal."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    done = warm.run("bisect", "zoo.yaml", "conv/portable-fp32", env=environment)
    assert done.code == 0
    assert "loses no quality" in done.out
    assert "Prefect could not take the result" in done.err


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "models"),
    [
        ("pteforge.flows.export_zoo:export_zoo", {"models": "*"}, {"linear", "conv"}),
        ("pteforge.flows.export_model:export_model", {"model": "conv"}, {"conv"}),
    ],
)
def test_entrypoints(warm, server, entrypoint, parameters, models):
    """Deployments load the flows by entrypoint and run them with parameters that are plain JSON."""
    program = f"""
import json, sys
from prefect.flows import load_flow_from_entrypoint
flow = load_flow_from_entrypoint({entrypoint!r})
parameters = flow.validate_parameters(json.loads(sys.argv[1]))
state = flow(**parameters, return_state=True)
print(json.dumps([state.name, state.result()]))
"""
    given = {
        "zoo": str(warm.folder / "zoo.yaml"),
        "store": str(warm.store),
        "out": str(warm.out),
        "overrides": ["models.conv.seed=0"],
        "jobs": 1,
        **parameters,
    }
    done = run_python(warm.folder, program, given, {"PREFECT_API_URL": server})
    name, result = done
    assert name == "Completed"
    assert set(result["models"]) == models
    assert result["exit_code"] == 0
    states = {task.state.name for task in Recorded(server, warm).task_runs(len(models)).values()}
    assert states == {"Cached"}


def test_failed_flow_raises_where_it_is_called(warm, server):
    """A flow that is called from Python raises if a file could not be made, and what could be made is there."""
    warm.edit("zoo.yaml", "nets:conv", "faulty:misunderstood")
    program = """
import json, sys
from pteforge.flows.export_zoo import export_zoo
try:
    export_zoo(**json.loads(sys.argv[1]))
except Exception as error:
    print(json.dumps(str(error)))
"""
    (warm.out / "linear" / "portable-fp32.pte").unlink()
    given = {"zoo": str(warm.folder / "zoo.yaml"), "store": str(warm.store), "out": str(warm.out)}
    message = run_python(warm.folder, program, given, {"PREFECT_API_URL": server})
    assert "2 of the files were not made" in message
    assert (warm.out / "linear" / "portable-fp32.pte").exists()
    assert Recorded(server, warm).flow_run().state.name == "Failed"


def test_interrupted_run_is_recorded(room, server, on_server):
    """Ctrl-C of a run is told to the server: its flow run does not look as if it went on."""
    import signal

    room.zoo({"patient": "waiting:patient"}, ("portable-fp32",))
    os.mkfifo(room.folder / "running")
    os.mkfifo(room.folder / "proceed")
    with room.start("export", "zoo.yaml", "--out", str(room.out), env=on_server) as process:
        assert (room.folder / "running").read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    assert Recorded(server, room).flow_run().state.name == "Crashed"


@pytest.fixture
def unreachable() -> dict[str, str]:
    """The environment of commands whose server is not there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}


def test_server_that_is_not_there(room, unreachable):
    """A server that cannot be reached is one clear error, with what to check, and nothing is half done."""
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    done = room.export(env=unreachable)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("error: Prefect could not run the flow: ")
    assert unreachable["PREFECT_API_URL"] in line
    assert "PREFECT_API_URL" in line
    assert not room.out.exists()
    assert room.run("store", "verify").code == 0


def test_server_that_is_not_there_for_a_cached_run(warm, unreachable):
    """What is cached is there all the same; that the run was not recorded is a warning."""
    (warm.out / "conv" / "portable-fp32.pte").unlink()
    done = warm.export(env=unreachable)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("WARNING: Prefect could not record the run, which is complete: ")
    assert (warm.out / "conv" / "portable-fp32.pte").exists()


def test_server_that_dies_under_way(room, tmp_path_factory):
    """A server that goes away while a run goes on costs the record of the run and nothing else: files are made."""
    room.zoo({"patient": "waiting:patient", "prompt": "waiting:prompt"}, ("portable-fp32",))
    os.mkfifo(room.folder / "running")
    os.mkfifo(room.folder / "proceed")
    with running_server(tmp_path_factory.mktemp("dying")) as (url, server):
        environment = {"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1"}
        with room.start("export", "zoo.yaml", env=environment) as process:
            assert (room.folder / "running").read_text()
            server.kill()
            (room.folder / "proceed").write_text("")
            out, err = process.communicate(timeout=_LIMIT)
    assert process.returncode == 0, err
    assert "2 files verified" in out
    assert err.count("WARNING: Prefect failed") == 1
    assert set(room.files()) == {
        f"{name}/portable-fp32.{end}" for name in ("patient", "prompt") for end in ("pte", "json")
    }


def test_embedded_server(room, tmp_path_factory):
    """Without a server of the user's, the run is recorded whole in their Prefect database by the time it ends."""
    home = tmp_path_factory.mktemp("home")
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    done = room.export(env={"PREFECT_HOME": str(home)})
    assert done.code == 0, done.err
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as database:
        flows = database.execute("select name, state_name from flow_run").fetchall()
        tasks = {
            name: (state, json.loads(tags))
            for name, state, tags in database.execute("select name, state_name, tags from task_run")
        }
        (logged,) = database.execute("select count(*) from log").fetchone()
    assert flows == [("export zoo.yaml", "Completed")]
    assert {state for state, _ in tasks.values()} == {"Completed"}
    assert len(tasks) == 1 + 6
    assert tasks["net edge/forward/portable-fp32"][1] == ["stage:edge", "model:net", "recipe:portable-fp32"]
    assert logged > 0


def test_embedded_server_that_cannot_start(room, tmp_path):
    """A Prefect database that cannot be opened is one clear error, before any stage runs."""
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    folder = tmp_path / "a folder"
    folder.mkdir()
    done = room.export(env={"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}"})
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("error: Prefect's server could not be started")
    assert "unable to open database file" in line
    assert not room.out.exists()


def run_python(folder: Path, program: str, argument: Any, environment: dict[str, str]) -> Any:
    """The last line that a Python program prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(argument)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
