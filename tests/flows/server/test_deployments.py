"""Deployments of a zoo: made by the command line, run by a worker of Prefect's or by `pteforge serve`."""

from __future__ import annotations

import json
import re
import signal
import time

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def inspect(prefect, name):
    return json.loads(prefect("deployment", "inspect", f"export-zoo/{name}", "--output", "json"))


def deploy(project, *args, env):
    return project.run("deploy", "zoo.yaml", "--pool", "forge", *args, "--out", "out", env=env)


def test_a_worker_runs_a_deployment(project, prefect, on_server):
    """Deploying twice changes nothing; the form offers models, recipes and stages; a worker makes the files."""
    project.write_zoo({"linear": "nets:linear", "conv": "nets:conv"})
    prefect("work-pool", "create", "forge", "--type", "process")
    nightly = ("--name", "by-worker", "--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
    for change in ("created", "unchanged", "updated"):
        done = deploy(project, *nightly, env=on_server)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"{change}: export-zoo/by-worker")
        known = inspect(prefect, "by-worker")
        assert known["global_concurrency_limit"] is None
        if change == "unchanged":  # earlier versions set Prefect's limit, which ends runs when the server restarts
            url = f"{on_server['PREFECT_API_URL']}/deployments/{known['id']}"
            assert httpx.patch(url, json={"concurrency_limit": 1}).status_code == 204
    done = deploy(project, "--name", "by-worker", "--jobs", "1", env=on_server)
    assert done.out.startswith("updated: ")
    known = inspect(prefect, "by-worker")
    assert known["schedules"] == []
    assert known["entrypoint"] == "pteforge.flows.zoo_flow.export_zoo"
    assert known["tags"] == ["zoo:zoo"]
    form = known["parameter_openapi_schema"]["properties"]
    assert form["models"]["anyOf"][1]["items"]["enum"] == ["linear", "conv"]
    assert form["recipes"]["anyOf"][1]["items"]["enum"] == ["portable-fp32", "xnnpack-fp32"]
    assert "partition" in form["until"]["anyOf"][0]["enum"]

    prefect("deployment", "run", "export-zoo/by-worker", "--param", 'models=["linear"]', "--param", "recipes=port*")
    prefect("worker", "start", "--pool", "forge", "--run-once")
    assert set(project.files()) == {"linear/portable-fp32.pte", "linear/portable-fp32.json"}


def test_serve(project, prefect, server, on_server, recorded):
    """One process runs what is asked for, and Ctrl-C ends it.

    Cancelling a run in the UI ends all processes of the run. It is `Cancelled` then, as is each stage that was running.
    """
    project.write_zoo({"linear": "nets:linear", "patient": "waiting:patient"}, ("portable-fp32",))
    with project.start("serve", "zoo.yaml", "--name", "served", "--out", "out", env=on_server) as process:
        assert "export-zoo/served" in process.stdout.readline()
        deadline = time.monotonic() + 240
        while "served" not in prefect("deployment", "ls"):
            assert time.monotonic() < deadline
        prefect("deployment", "run", "export-zoo/served", "--param", "models=linear")
        while not (project.out / "linear" / "portable-fp32.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.5)

        assert recorded(project).flow_run().name == "export zoo.yaml linear"
        project.make_pipes()
        started = prefect("deployment", "run", "export-zoo/served")
        builder = int((project.folder / "running").read_text())
        of_run = psutil.Process(process.pid).children(recursive=True)
        assert builder in [child.pid for child in of_run]
        run = re.search(r"UUID: (\S+)", started)[1]
        cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}  # as the button in the UI does
        assert httpx.post(f"{server}/flow_runs/{run}/set_state", json=cancelling).json()["status"] == "ACCEPT"
        psutil.wait_procs(of_run, timeout=60)
        assert not [child for child in of_run if child.is_running()]
        known = recorded(project)
        while known.flow_run().name != "export zoo.yaml":
            assert time.monotonic() < deadline
        assert known.flow_run().state.name == "Cancelled"
        states = {name: task.state.name for name, task in known.task_runs(3).items()}
        assert states == {"model linear": "Cached", "model patient": "Cancelled", "patient export": "Cancelled"}
        known_runs = json.loads(project.run("runs", "--json").out)["runs"]
        assert [run["status"] for run in known_runs] == ["interrupted", "completed"]

        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


@pytest.mark.parametrize(
    ("args", "zoo", "problem"),
    [
        (["--cron", "every night"], "nets:linear", "the schedule 'every night' in UTC cannot be used"),
        (["--cron", "0 2 * * *", "--timezone", "Europe/Berln"], "nets:linear", "Europe/Berln"),
        ([], "nets:liner", "zoo.yaml:"),
        ([], "nets:linear", "there is no work pool 'forge2'"),
    ],
    ids=["cron", "time zone", "zoo", "pool"],
)
def test_bad_input(project, on_server, args, zoo, problem):
    """One clear message, and exit code 2."""
    project.write_zoo({"linear": zoo}, ("portable-fp32",))
    done = project.run("deploy", "zoo.yaml", "--pool", "forge2", *args, env=on_server)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert problem in line


def test_servers_that_do_not_answer(project, unreachable):
    """Without a server, or with one that does not answer, the message names the setting."""
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    for environment, code in (({}, 2), (unreachable | {"PREFECT_CLIENT_MAX_RETRIES": "0"}, 1)):
        done = project.run("deploy", "zoo.yaml", "--pool", "forge", env=environment)
        assert done.code == code
        (line,) = done.err.splitlines()
        assert "PREFECT_API_URL" in line
