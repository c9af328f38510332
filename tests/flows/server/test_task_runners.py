"""Stage tasks take values, so any of Prefect's task runners can have them: other processes make the same files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest
from pteforge.tests.conftest import run_process
from pteforge.tests.flows.conftest import PTEFORGE, delivered

pytestmark = pytest.mark.timeout(900)

STARTER = Path(__file__).parents[3] / "examples" / "zoo" / "starter.yaml"
MODELS = "lstm,sdpa"

# The driver, as in docs/how-to/prefect.md: its task runner by name, the zoo, and where things go. Notes how large the
# submissions are.
DRIVER = """
import asyncio, json, sys
import cloudpickle
from pteforge.flows.prefect import runner as prefect_runner
from pteforge.flows.prefect.zoo_flow import export_zoo

{import_}
sizes = []

def noting(task_runner):
    def submit(self, task, parameters, **options):
        sizes.append(len(cloudpickle.dumps((task, parameters))))
        return submit_task(self, task, parameters, **options)

    submit_task, task_runner.submit = task_runner.submit, submit

noting({noted})

def main():
    flow = export_zoo.with_options(task_runner={runner}, retries=0)
    state = asyncio.run(flow(**json.loads(sys.argv[1]), return_state=True))
    print(json.dumps({{"state": state.name, "largest": max(sizes), "submissions": len(sizes)}}))

if __name__ == "__main__":
    main()
"""
PROCESSES = DRIVER.format(
    import_="from prefect.task_runners import ProcessPoolTaskRunner",
    runner="ProcessPoolTaskRunner(max_workers=2)",
    noted="ProcessPoolTaskRunner",
)
DASK = DRIVER.format(
    import_="from prefect_dask import DaskTaskRunner",
    runner="export_zoo.task_runner",  # used next to a cluster, as the flow's parameter `on` says
    noted="DaskTaskRunner",
)


def run_driver(folder: Path, program: str, server: str, **parameters):
    """Runs a driver in a process of its own; returns what it prints, and all processes that were ever below it."""
    (folder / "driver.py").write_text(program)
    folders = {"store": str(folder / "store"), "out": str(folder / "out")}
    given = {"zoo": str(STARTER), "models": MODELS, "jobs": 1, **folders, **parameters}
    environment = {**os.environ, "PREFECT_API_URL": server, "PTEFORGE_TEST_RUN": str(folder)}
    done = run_process(sys.executable, "driver.py", json.dumps(given), cwd=folder, env=environment, timeout=850)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def left_behind(folder: Path) -> list[str]:
    """Command lines of processes that a driver's run has started and not ended."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if process.environ().get("PTEFORGE_TEST_RUN") == str(folder):
                found.append(" ".join(process.info["cmdline"] or []))
        except psutil.Error:
            continue
    return found


def export(folder: Path, store: Path, out: str) -> str:
    """What the command line prints for an export, whose tasks run in threads."""
    command = (PTEFORGE, "export", STARTER, "--model", MODELS, "--store", store, "--out", folder / out)
    done = run_process(*command, cwd=folder, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def by_threads(tmp_path_factory):
    """Two models of the starter zoo, made in threads: the folder with store and out."""
    folder = tmp_path_factory.mktemp("threads")
    export(folder, folder / "store", "out")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(("program", "on"), [(PROCESSES, "local"), (DASK, "dask")], ids=["process pool", "dask"])
def test_other_processes_make_the_same_files(tmp_path, server, by_threads, program, on):
    """Under a process pool and under Dask, files and provenance are byte for byte those that threads make."""
    done = run_driver(tmp_path, program, server, on=on)
    assert done["state"] == "Completed"
    assert done["largest"] <= 16 << 10
    assert left_behind(tmp_path) == []
    assert "; 0 stages run" in export(tmp_path, tmp_path / "store", "found")
    assert delivered(tmp_path / "found") == delivered(tmp_path / "out") == delivered(by_threads / "out")


@pytest.mark.slow
def test_another_toolchain_is_refused(tmp_path, server):
    """A process whose key for a stage is not the driver's does not run it, and names what differs."""
    program = PROCESSES.replace(
        "def main():",
        "def main():\n"
        "    key = prefect_runner.Executor.key\n"
        "    def other(self, call):\n"
        "        made = key(self, call)\n"
        "        versions = {**made.versions, 'torch': '1.0'}\n"
        "        return type(made)(made.stage, made.code, versions, made.inputs, made.params)\n"
        "    prefect_runner.Executor.key = other",
    )
    done = run_driver(tmp_path, program, server, models="lstm", recipes="portable-fp32")
    assert done["state"] == "Failed"
    assert not (tmp_path / "out").exists() or not delivered(tmp_path / "out")


STAGES = 26  # of the models
CACHED = """
import asyncio, json, sys, time
from prefect import flow, task
from pteforge.flows.prefect import zoo_flow

@task
def bare(number):
    return number

@flow
def bare_tasks(count):
    for future in [bare.submit(number) for number in range(count)]:
        future.result()

def main():
    given = json.loads(sys.argv[1])
    asyncio.run(zoo_flow.export_zoo(**given, return_state=True))
    zoo_flow.find_models = lambda session: None  # so that every cached stage is submitted
    asyncio.run(zoo_flow.export_zoo(**given, return_state=True))
    before = time.process_time()
    state = asyncio.run(zoo_flow.export_zoo(**given, return_state=True))
    spent, stages = time.process_time() - before, state.result()["stages"]
    bare_tasks(5)
    before = time.process_time()
    bare_tasks(stages["cached"])
    print(json.dumps({"spent": spent, "bare": time.process_time() - before, **stages}))

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly
def test_cached_stages_cost_little(tmp_path, server, by_threads):
    """Showing a stage that is cached takes at most three times the CPU time of a Prefect task that does nothing."""
    done = run_driver(tmp_path, CACHED, server, store=str(by_threads / "store"))
    assert done["ran"] == 0
    assert done["cached"] == STAGES
    assert done["spent"] <= 3 * done["bare"], done
