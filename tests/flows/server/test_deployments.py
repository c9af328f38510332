"""Deployments of a zoo: made by the command line, run by a worker of Prefect's or by `pteforge serve`."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import uuid

import httpx
import psutil
import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.settings import PREFECT_API_URL, temporary_settings
from pteforge.tests.conftest import run_process
from pteforge.tests.flows.server.conftest import eventually, receiver, running_worker
from pteforge.tests.flows.test_upgrade import planted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def inspect(prefect, name):
    return json.loads(prefect("deployment", "inspect", f"export-zoo/{name}", "--output", "json"))


def deploy(project, *args, env, pool="forge"):
    return project.run("deploy", "zoo.yaml", "--pool", pool, *args, "--out", "out", env=env)


def test_a_worker_runs_a_deployment(project, prefect, on_server, collector):
    """Deploying twice changes nothing; the form offers models, recipes and stages; a worker makes the files.

    Its run reports as the worker's environment says: its log as JSON, a trace that begins with Prefect's run, metrics.
    """
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
    assert known["entrypoint"] == "pteforge.flows.prefect.zoo_flow.export_zoo"
    assert known["tags"] == ["zoo:zoo"]
    form = known["parameter_openapi_schema"]["properties"]
    assert form["models"]["anyOf"][0]["items"]["enum"] == ["*", "linear", "conv"]
    assert form["recipes"]["anyOf"][0]["items"]["enum"] == ["*", "portable-fp32", "xnnpack-fp32"]
    assert "partition" in form["until"]["enum"]
    assert not any({"type": "null"} in field.get("anyOf", ()) for field in form.values())

    prefect("deployment", "run", "export-zoo/by-worker", "--param", 'models=["linear"]', "--param", "recipes=port*")
    asked = {"PTEFORGE_LOG_FORMAT": "json", "PTEFORGE_METRICS": str(project.folder), **collector.variables}
    command = (sys.executable, "-m", "prefect", "worker", "start", "--pool", "forge", "--run-once")
    done = run_process(*command, cwd=project.folder, env=project.environment({**on_server, **asked}))
    assert set(project.files()) == {"linear/portable-fp32.pte", "linear/portable-fp32.json"}
    said = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith('{"time"')]
    assert (said[-1]["event"], said[-1]["status"]) == ("run_finished", "completed")
    assert {event["model"] for event in said if event["event"] == "stage_finished"} == {"linear"}
    (first,) = (span for span in collector.spans() if not span["parent"])
    assert (first["scope"], first["name"]) == ("prefect", "export zoo.yaml linear port*")
    (run,) = (span for span in collector.spans() if span["parent"] == first["id"])
    assert (run["scope"], run["name"]) == ("pteforge", "run zoo")
    assert {span["trace"] for span in collector.spans()} == {run["trace"]}
    metrics = (project.folder / "pteforge_zoo.prom").read_text(encoding="utf-8")
    assert 'pteforge_runs_total{status="completed",zoo="zoo"} 1.0\n' in metrics


@pytest.mark.nightly
def test_an_upgrade_is_rehearsed(project, prefect, on_server, recorded):
    """A deployed run compares the zoo with another toolchain, fails if files are worse, and releases nothing."""
    project.write_zoo({"net": "nets:linear"}, ("portable-fp32",))
    project.edit("zoo.yaml", "models:", "publish: {url: shared}\nmodels:")
    python = planted(project, "executorch.exir.program._program.transform_op_to_aten_op")
    prefect("work-pool", "create", "rehearsals", "--type", "process")
    refused = deploy(project, "--upgrade-to", python, "--until", "edge", env=on_server, pool="rehearsals")
    assert refused.code == 2
    assert "leave out until" in refused.err
    done = deploy(project, "--upgrade-to", python, "--fail-on", "growth=1%", env=on_server, pool="rehearsals")
    assert done.out.startswith("created: upgrade-zoo/nightly"), done.err
    prefect("deployment", "run", "upgrade-zoo/nightly")
    prefect("worker", "start", "--pool", "rehearsals", "--run-once")
    state = recorded(project).flow_run().state
    assert state.is_failed()
    assert "net/portable-fp32: " in state.message
    assert "net/portable-fp32: removed" in recorded(project).artifact("upgrade-zoo")
    assert [path.parent.parent.name for path in project.out.glob("upgrade/*/net/*.pte")] == ["now"]
    assert not (project.folder / "shared").exists()


def runs_of(server, deployment):
    """A deployment's flow runs that have ended."""
    ended = {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}
    wanted = {"flow_runs": ended, "deployments": {"name": {"any_": [deployment]}}}
    return httpx.post(f"{server}/flow_runs/filter", json=wanted).raise_for_status().json()


def test_a_schedule_starts_runs(project, prefect, server, on_server):
    """The server's scheduler creates a run of the schedule by itself, a worker takes it, and it completes."""
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    prefect("work-pool", "create", "cron", "--type", "process")
    done = project.run(
        "deploy", "zoo.yaml", "--pool", "cron", "--name", "minutely", "--cron", "*/1 * * * *", env=on_server
    )
    assert done.code == 0, done.err
    with running_worker(project, on_server, "cron"):
        runs = eventually(lambda: runs_of(server, "minutely"), 300)
        looked = project.run("doctor", "--server", "--json", env=on_server)
    assert runs[-1]["auto_scheduled"]
    assert runs[-1]["state"]["type"] == "COMPLETED", runs[-1]["state"]
    checks = {check["name"]: check for check in looked.json["checks"]}
    assert checks["deployment minutely"]["found"].startswith("next run at ")
    assert checks["work pool cron"]["well"]

    def paused(what):
        """A pause is a fault, with the command that ends it; deploying again says so, too."""
        looked = project.run("doctor", "--server", "--json", env=on_server)
        check = next(check for check in looked.json["checks"] if check["name"] == "deployment minutely")
        assert (looked.code, check["well"]) == (1, False)
        assert check["found"].startswith(f"{what} is paused; prefect ")
        again = ("--pool", "cron", "--name", "minutely", "--cron", "*/1 * * * *")
        assert f"{what} is paused; prefect " in project.run("deploy", "zoo.yaml", *again, env=on_server).err
        prefect(*check["found"].partition("; prefect ")[2].split())

    (known,) = httpx.post(f"{server}/deployments/filter", json={"deployments": {"name": {"any_": ["minutely"]}}}).json()
    prefect("deployment", "schedule", "pause", "export-zoo/minutely", known["schedules"][0]["id"])
    paused("its schedule")
    httpx.post(f"{server}/deployments/{known['id']}/pause_deployment").raise_for_status()
    paused("it")
    prefect("work-queue", "pause", "default", "--pool", "cron")
    looked = eventually(
        lambda: "next run at " in (told := project.run("doctor", "--server", env=on_server)).out and told
    )
    assert "work pool cron: its queue is paused; prefect work-queue resume default --pool cron" in looked.out
    prefect("deployment", "delete", "export-zoo/minutely")


def test_a_server_without_a_scheduler(project, server_without_scheduler, monkeypatch):
    """`deploy` and `doctor --server` say that the server schedules nothing."""
    from pteforge.errors import PteforgeError
    from pteforge.flows.prefect import server
    from pteforge.flows.prefect.deployments import ZooDeployment
    from pteforge.flows.run.request import ExportRequest

    env = {"PREFECT_API_URL": server_without_scheduler}
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    pool = {"name": "forge", "type": "process"}
    assert httpx.post(f"{server_without_scheduler}/work_pools/", json=pool).status_code == 201
    monkeypatch.setattr(server, "_SCHEDULED_WITHIN", 8)
    deployment = ZooDeployment(ExportRequest(zoo=project.folder / "zoo.yaml"), "nightly", cron="0 2 * * *")
    with (
        temporary_settings({PREFECT_API_URL: server_without_scheduler}),
        pytest.raises(PteforgeError, match="its scheduler does not work"),
    ):
        deployment.apply("forge")
    looked = project.run("doctor", "--server", env=env)
    assert looked.code == 1
    assert "deployment nightly: has a schedule and no scheduled run" in looked.out
    assert "work pool forge: workers online: none" in looked.out


def test_alerts(project, prefect, server, on_server):
    """A block of the user's reports a run that failed; deploying again changes the alerts in place."""
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    prefect("work-pool", "create", "alerts", "--type", "process")
    with receiver() as (url, told):
        with temporary_settings({PREFECT_API_URL: server}):
            webhook = {"name": "nights", "url": url, "json_data": {"subject": "{{subject}}", "body": "{{body}}"}}
            CustomWebhookNotificationBlock(**webhook, allow_private_urls=True).save("nights")
        deployed = ("deploy", "zoo.yaml", "--pool", "alerts", "--name", "alerting", "--out", "out")
        unknown = project.run(*deployed, "--alerts", "slack-webhook/none", env=on_server)
        assert (unknown.code, "there is no block 'slack-webhook/none'" in unknown.err) == (2, True)
        for _ in range(2):
            done = project.run(*deployed, "--alerts", "custom-webhook/nights", env=on_server)
            assert done.code == 0, done.err
            assert done.out.count("alert: pteforge alerting: ") == 5
        automations = httpx.post(f"{server}/automations/filter", json={}).json()
        assert len([found for found in automations if found["name"].startswith("pteforge alerting: ")]) == 5
        prefect("deployment", "run", "export-zoo/alerting", "--param", "models=none")
        prefect("worker", "start", "--pool", "alerts", "--run-once")
        message = told.get(timeout=240)
    assert message["subject"] == "pteforge alerting: failed"
    assert message["body"].startswith("export zoo.yaml none: ")


def test_serve(project, prefect, server, on_server, recorded):
    """One process runs what is asked for, and Ctrl-C ends it."""
    project.write_zoo({"linear": "nets:linear", "patient": "waiting:patient"}, ("portable-fp32",))
    with project.start("serve", "zoo.yaml", "--name", "served", "--out", "out", env=on_server) as process:
        assert "export-zoo/served" in process.stdout.readline()
        eventually(lambda: "served" in prefect("deployment", "ls"))
        prefect("deployment", "run", "export-zoo/served", "--param", "models=linear")
        eventually((project.out / "linear" / "portable-fp32.json").exists)

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
        eventually(lambda: known.flow_run().name == "export zoo.yaml")
        assert known.flow_run().state.name == "Cancelled"
        states = {name: task.state.name for name, task in known.task_runs(3).items()}
        assert states == {"model linear": "Cached", "model patient": "Cancelled", "patient export": "Cancelled"}
        known_runs = project.run("runs", "--json").json["runs"]
        assert [run["status"] for run in known_runs] == ["interrupted", "completed"]

        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


_RUN = """
import asyncio
from pteforge.flows.prefect.zoo_flow import export_zoo
asyncio.run(export_zoo(zoo="zoo.yaml", out="out", store="store", return_state=True))
"""


def test_cancelled_without_a_worker(project, server, on_server):
    """A run that is cancelled, and that no worker ends, ends by itself within half a minute, with its processes."""
    project.write_zoo({"patient": "waiting:patient"}, ("portable-fp32",))
    project.make_pipes()
    environment = project.environment(on_server)
    with subprocess.Popen([sys.executable, "-c", _RUN], cwd=project.folder, env=environment) as process:
        builder = psutil.Process(int((project.folder / "running").read_text()))
        (recorded,) = project.run("runs", "--json").json["runs"]
        assert recorded["status"] == "running"
        run = f"{server}/flow_runs/{uuid.UUID(recorded['id'])}"
        cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        assert httpx.post(f"{run}/set_state", json=cancelling).json()["status"] == "ACCEPT"
        process.wait(180)
    assert not builder.is_running()
    assert httpx.get(run).json()["state"]["type"] == "CANCELLED"
    assert project.run("runs", "--json").json["runs"][0]["status"] == "interrupted"


def test_what_a_failed_deployment_prints(project, prefect, on_server):
    """A worker's output names the cause of a failure, and has no empty traceback."""
    project.write_zoo({"bad": "faulty:raises"}, ("portable-fp32",))
    prefect("work-pool", "create", "failing", "--type", "process")
    done = deploy(project, "--name", "failing", env=on_server, pool="failing")
    assert done.code == 0, done.err
    prefect("deployment", "run", "export-zoo/failing")
    worker = subprocess.run(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "failing", "--run-once"],
        cwd=project.folder,
        env=project.environment(on_server),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert "NoneType: None" not in worker.stdout
    lines = [line for line in worker.stdout.splitlines() if "| ERROR" in line and "no such width" in line]
    assert sorted(line.partition("| ERROR   | ")[2].partition(" - ")[0] for line in lines) == [
        *["Flow run 'export zoo.yaml'"] * 3,  # when the model ended, and as the flow's exception
        "Task run 'bad export'",
        "Task run 'model bad'",
    ]


def test_a_killed_deployment(project, prefect, on_server, tmp_path):
    """When worker and run are killed, the store knows at once: the run is lost, `why` has its stages, `gc` is free."""
    project.write_zoo({"prompt": "waiting:prompt", "patient": "waiting:patient"}, ("portable-fp32",))
    project.make_pipes()
    prefect("work-pool", "create", "killed", "--type", "process")
    done = deploy(project, "--name", "killed", env=on_server, pool="killed")
    assert done.code == 0, done.err
    prefect("deployment", "run", "export-zoo/killed")
    (tmp_path / "left").mkdir()
    secrets = {
        "PTEFORGE_SIGNING_KEY": "a signing key of the worker's, which is secret",
        "PREFECT_API_KEY": "s3cr3t-word",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "killed"],
        cwd=project.folder,
        env=project.environment({**on_server, **secrets, "TMPDIR": str(tmp_path / "left")}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as worker:
        assert int((project.folder / "running").read_text()) > 0
        processes = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
        (run, *_) = eventually(lambda: [run for run in project.run("runs", "--json").json["runs"] if run["models"]])
        assert run["status"] == "running"
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    left = [path for path in (tmp_path / "left").rglob("*") if path.is_file()]
    assert any(path.name == "workspace.json" for path in left)
    assert not [path for path in left for secret in secrets.values() if secret.encode() in path.read_bytes()]
    psutil.wait_procs(processes, timeout=60)
    assert project.run("runs", "--json").json["runs"][0]["status"] == "lost"
    assert "export" in project.run("why", "prompt").out
    collected = project.run("store", "gc", "--keep-last", "0", "--keep-newer-than", "0s", "--explain", "--json")
    assert (collected.json["objects_kept"], collected.json["reasons"]) == (0, {})


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
