"""Deployments of a zoo: made by the command line, run by a worker of Prefect's or by `pteforge serve`."""

from __future__ import annotations

import json
import signal
import time

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
    for change in ("created", "unchanged"):
        done = deploy(project, *nightly, env=on_server)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"{change}: export-zoo/by-worker")
    done = deploy(project, "--name", "by-worker", "--jobs", "1", env=on_server)
    assert done.out.startswith("updated: ")
    known = inspect(prefect, "by-worker")
    assert known["schedules"] == []
    assert known["entrypoint"] == "pteforge.flows.zoo_flow.export_zoo"
    assert known["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert known["tags"] == ["zoo:zoo"]
    form = known["parameter_openapi_schema"]["properties"]
    assert form["models"]["anyOf"][1]["items"]["enum"] == ["linear", "conv"]
    assert form["recipes"]["anyOf"][1]["items"]["enum"] == ["portable-fp32", "xnnpack-fp32"]
    assert "partition" in form["until"]["anyOf"][0]["enum"]

    prefect("deployment", "run", "export-zoo/by-worker", "--param", 'models=["linear"]', "--param", "recipes=port*")
    prefect("worker", "start", "--pool", "forge", "--run-once")
    assert set(project.files()) == {"linear/portable-fp32.pte", "linear/portable-fp32.json"}


def test_serve(project, prefect, on_server):
    """One process runs what is asked for, and Ctrl-C ends it."""
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    with project.start("serve", "zoo.yaml", "--name", "served", "--out", "out", env=on_server) as process:
        assert "export-zoo/served" in process.stdout.readline()
        deadline = time.monotonic() + 240
        while "served" not in prefect("deployment", "ls"):
            assert time.monotonic() < deadline
        prefect("deployment", "run", "export-zoo/served")
        while not (project.out / "linear" / "portable-fp32.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.5)
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
