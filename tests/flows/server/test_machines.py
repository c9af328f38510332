"""Stages that run elsewhere: models as runs on a work pool, stages on a Dask cluster that runs already."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pteforge
import pytest
from pteforge.artifacts.store import open_store
from pteforge.tasks.upstream.patches import OFF
from pteforge.tests.conftest import run_process
from pteforge.tests.flows.conftest import PTEFORGE
from pteforge.tests.flows.server.conftest import eventually, running_worker

pytestmark = pytest.mark.nightly

ROOT = Path(pteforge.__file__).parent


@pytest.fixture
def worker(project, prefect, on_server, collector):
    """A worker of the pool `models`, in a process of its own."""
    prefect("work-pool", "create", "models", "--type", "process")
    with running_worker(project, {**on_server, **collector.variables}, "models") as process:
        yield process


DEADLY = """
import itertools, psutil

def kills():
    parents = psutil.Process().parents()
    of_run = list(itertools.takewhile(lambda process: "PREFECT__FLOW_RUN_ID" in process.environ(), parents))
    for process in reversed(of_run):  # first the flow run itself, which the worker started
        process.kill()
"""


@pytest.mark.usefixtures("worker")
def test_models_run_on_a_work_pool(project, on_server, collector):
    """Each model has a run of its own; one that fails, or is killed, fails alone. Files are written by the zoo's run.

    The records of models' runs become part of the zoo's: `pteforge runs` lists one run. All spans are one trace.
    """
    project.write("deadly.py", DEADLY)
    project.write_zoo(
        {"linear": "nets:linear", "killed": "deadly:kills", "raises": "faulty:raises"}, ("portable-fp32",)
    )
    chosen = ("--on", "pool", "--set", "run.pool=models", "--out", "out", "--json")
    for change in ("created", "unchanged"):
        done = project.run("deploy", "zoo.yaml", "--pool", "models", "--on", "pool", "--name", "on-pool", env=on_server)
        assert done.out.startswith(change), done.err
    done = project.export(*chosen, env={**on_server, **collector.variables})
    assert done.code == 1, done.err
    models = {name: recipes["portable-fp32"] for name, recipes in done.json["models"].items()}
    assert models["linear"]["status"] == "made"
    assert set(project.files()) == {"linear/portable-fp32.pte", "linear/portable-fp32.json"}
    assert "Crashed" in models["killed"]["problem"]
    assert models["raises"]["step"].startswith("export")
    assert done.json["stages"]["ran"] >= 6
    (run,) = project.run("runs", "--json").json["runs"]
    assert run["status"] == "failed"
    spans = {span["id"]: span for span in collector.spans()}
    assert {span["scope"] for span in spans.values()} == {"prefect", "pteforge"}
    assert len({span["trace"] for span in spans.values()}) == 1
    (stage,) = (span for span in spans.values() if span.get("pteforge.step") == "edge/forward/portable-fp32")
    above = [stage]
    while parent := above[-1]["parent"]:
        above.append(spans[parent])
    flows = ["export zoo.yaml linear", "export zoo.yaml"]  # Prefect's: the model's run, and the zoo's
    own = ["recipe portable-fp32", "model linear", "run zoo"]
    assert [span["name"] for span in above[1:]] == [*own, *flows, "run zoo"]


OF_TWO_TOOLCHAINS = """
version: 1
models: {linear: {source: nets:linear, recipes: [portable-fp32, other]}}
recipes: {other: {extends: portable-fp32, toolchain: old}}
toolchains: {old: {pool: old}}
"""


def test_a_toolchain_on_a_work_pool(project, prefect, on_server):
    """Its recipes are lowered by the workers of its pool, in their environment; the run of the zoo writes the files."""
    project.write("zoo.yaml", OF_TWO_TOOLCHAINS)
    prefect("work-pool", "create", "old", "--type", "process")
    done = project.run("deploy", "zoo.yaml", "--pool", "old", "--name", "nights", env=on_server)
    assert done.code == 0, done.err
    with running_worker(project, {**on_server, OFF: "code_on_demand"}, "old"):
        first, second = (project.export("--out", "out", "--json", env=on_server) for _ in range(2))
    assert first.code == 0, first.err
    assert {entry["status"] for entry in first.json["models"]["linear"].values()} == {"made"}
    assert second.json["stages"]["ran"] == 0
    own, other = (json.loads((project.out / f"linear/{name}.json").read_bytes()) for name in ("portable-fp32", "other"))
    assert own["file"]["sha256"] == other["file"]["sha256"]
    assert own["stage_keys"]["export"] != other["stage_keys"]["export"]


def test_an_upgrade_by_a_work_pool(project, prefect, on_server):
    """Its workers export, this command compares; their files also run on the runtime that is here."""
    zoo = OF_TWO_TOOLCHAINS.replace("toolchain: old", "description: with no other toolchain")
    project.write("zoo.yaml", zoo.replace("{pool: old}", "{pool: older}"))
    prefect("work-pool", "create", "older", "--type", "process")
    assert project.run("deploy", "zoo.yaml", "--pool", "older", "--name", "nights", env=on_server).code == 0
    with running_worker(project, {**on_server, OFF: "code_on_demand"}, "older"):
        done = project.run("upgrade", "zoo.yaml", "--to", "old", "--json", env=on_server)
    assert done.code == 0, done.err
    assert [file["status"] for file in done.json["files"]] == ["equal", "equal"]
    assert [len(crossed["ran"]) for crossed in done.json["on_the_other_runtime"].values()] == [2]
    assert done.json["toolchains"]["next"]["versions"]["executorch"] == version("executorch")
    assert "next: workers of the pool older" in done.err


ON_A_CLUSTER = """
import subprocess, sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        code = subprocess.run([*sys.argv[1:], "--set", f"run.address={cluster.scheduler_address}"]).returncode
        print("finished on the cluster:", sum(entry[2] == "memory" for entry in cluster.scheduler.transition_log))
    sys.exit(code)
"""


def test_stages_run_on_a_dask_cluster(project):
    """A cluster that runs already gets all stages that are not cached and need a process of their own."""
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    program = project.write("cluster.py", ON_A_CLUSTER)
    options = ("--on", "dask", "--out", "out", "--set", "run.memory=1MiB")
    command = (sys.executable, program, PTEFORGE, "export", "zoo.yaml", *options)
    done = run_process(*command, cwd=project.folder, env=project.environment())
    assert done.returncode == 0, done.stderr
    ran = int(re.search(r"(\d+) stages run", done.stdout)[1])
    finished = int(re.search(r"finished on the cluster: (\d+)", done.stdout)[1])
    assert finished == ran - 2 > 0  # `serialize` and `report`
    with open_store(str(project.store)) as store:
        stages = {stage.stage: stage for stage in next(iter(store.runs)).models["linear"]}
    assert stages["export"].predicted_memory > stages["edge"].predicted_memory > 2**20
    assert stages["export"].peak_memory > 0
    assert stages["export"].queued > 0
    assert set(project.files()) == {"linear/portable-fp32.pte", "linear/portable-fp32.json"}


EDITED_BETWEEN = """
import subprocess, sys
from pathlib import Path
from distributed import LocalCluster

if __name__ == "__main__":
    code, *command = sys.argv[1:]
    for edit in ("", "import math\\n"):
        Path(code).write_text(Path(code).read_text() + edit)
        with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
            on_cluster = [*command, "--set", f"run.address={cluster.scheduler_address}"]
            print("ended with", subprocess.run(on_cluster).returncode)
            if not edit:
                Path(code).write_text(Path(code).read_text() + "import os\\n")
                print("ended with", subprocess.run(on_cluster).returncode)
"""


def test_a_dask_worker_that_is_older_than_the_code(project, package):
    """It refuses the stages of a driver that has the new code, and says what to do; one that is started again does not.

    The worker keeps running, so the run before the edit made its stages.
    """
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    program = project.write("cluster.py", EDITED_BETWEEN)
    code = package / "tasks" / "backend" / "stages" / "edge.py"
    command = (sys.executable, program, code, PTEFORGE, "export", "zoo.yaml", "--on", "dask")
    environment = project.environment({"PYTHONPATH": str(package.parent)})
    done = run_process(*command, cwd=project.folder, env=environment, timeout=550)
    assert re.findall("ended with (.)", done.stdout) == ["0", "1", "0"], done.stderr
    assert "pteforge's code of stage 'edge'); restart this worker" in done.stderr


def test_another_checkout_under_a_deployed_run(project, prefect, on_server, package):
    """The run ends well, with records of the code that it has loaded: with the new code, its stages will run."""
    environment = {**on_server, "PYTHONPATH": str(package.parent)}
    project.write_zoo({"patient": "waiting:patient"}, ("portable-fp32",))
    project.make_pipes()
    prefect("work-pool", "create", "edited", "--type", "process")
    with running_worker(project, environment, "edited"):
        done = project.run("deploy", "zoo.yaml", "--pool", "edited", "--name", "edited", env=environment)
        assert done.code == 0, done.err
        prefect("deployment", "run", "export-zoo/edited")
        (project.folder / "running").read_text()
        code = package / "tasks" / "file" / "stages" / "serialize.py"
        before = code.read_text()
        code.write_text(before.replace(") -> Outputs:\n", ") -> Outputs:\n        raise NotImplementedError\n"))
        (project.folder / "proceed").write_text("")
        eventually(lambda: project.run("runs", "--json").json["runs"][0]["status"] == "completed", 300)
    for pipe in ("running", "proceed"):
        (project.folder / pipe).unlink()
    for text, due in ((code.read_text(), ["patient serialize/portable-fp32"]), (before, [])):
        code.write_text(text)
        plan = project.run("plan", "zoo.yaml", "--json", env=environment).json
        assert [stage["stage"] for stage in plan["stages"] if stage["runs"] == "yes"] == due


WITHIN_RAY = """
import nets, psutil

def linear():
    titles = [part for process in psutil.process_iter(["cmdline"]) for part in (process.info["cmdline"] or [])[:1]]
    assert any(title.startswith("ray::") and "IDLE" not in title for title in titles), titles
    return nets.linear()
"""


def test_stages_run_on_ray(project):
    """Stages run while tasks of Ray wait for them, and make the same file as this machine does by itself."""
    project.write("within_ray.py", WITHIN_RAY)
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    assert project.export("--out", "here").code == 0
    project.write_zoo({"linear": "within_ray:linear"}, ("portable-fp32",))
    done = project.export("--on", "ray", "--set", "run.workers=1", "--store", "of-ray", "--out", "there")
    assert done.code == 0, done.err
    assert "6 stages run, 0 cached" in done.out
    here, there = (project.folder / out / "linear" / "portable-fp32.pte" for out in ("here", "there"))
    assert here.read_bytes() == there.read_bytes()


def test_prefects_own_forms(prefect):
    """`prefect deploy` takes the flow by its file, and the example of a `prefect.yaml`."""
    (example,) = (ROOT / "examples" / "prefect").glob("prefect.yaml")
    prefect("work-pool", "create", "forge", "--type", "process", "--overwrite")
    file = ROOT / "flows" / "prefect" / "zoo_flow.py"
    prefect("deploy", f"{file}:export_zoo", "--name", "by-file", "--pool", "forge")
    prefect("deploy", "--prefect-file", str(example), "--all")
    known = json.loads(prefect("deployment", "inspect", "export-zoo/nightly", "--output", "json"))
    assert known["entrypoint"] == "pteforge.flows.prefect.zoo_flow.export_zoo"
    assert known["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert "until" in known["parameter_openapi_schema"]["properties"]
    by_file = json.loads(prefect("deployment", "inspect", "export-zoo/by-file", "--output", "json"))
    assert by_file["parameter_openapi_schema"] == known["parameter_openapi_schema"]


REGISTERED = """
from pteforge import PteforgeStore
PteforgeStore(url="memory://", signing_key="k" * 40).save("shared")
"""


def test_a_block_names_a_store(project, prefect, on_server):
    """After the type is registered, `--store block:NAME` opens the store; a name that is not there is one message."""
    prefect("block", "register", "-m", "pteforge")
    url = f"file://{project.folder}/of-block"
    saving = REGISTERED.replace("memory://", url)
    subprocess.run([sys.executable, "-c", saving], env=project.environment(on_server), check=True, capture_output=True)
    project.write_zoo({"linear": "nets:linear"}, ("portable-fp32",))
    done = project.run("plan", "zoo.yaml", "--store", "block:shared", env=on_server)
    assert done.code == 3, done.err
    assert (project.folder / "of-block").is_dir()
    missing = project.run("plan", "zoo.yaml", "--store", "block:other", env=on_server)
    assert missing.code == 2
    assert "no block pteforge-store/other" in missing.err
