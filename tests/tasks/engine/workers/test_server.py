"""What a stage process is: alone, in its own session, and no copy of the main program."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pteforge.configs.model import Limits
from pteforge.errors import StageCrashed
from pteforge.tasks.engine.workers import WorkerCall, Workers


def test_surroundings(run, bodies):
    """Working directory of the caller, given folders in front of sys.path, no thread, no torch that nobody asked for.

    A process leads its own session: Ctrl-C in the terminal does not reach it, and its group can be killed as a whole.
    Each call has a fresh one, with random numbers of its own, that sees nothing of what another call left behind.
    """
    seen, other = run("environment").result, run("environment").result
    assert seen["pid"] == seen["group"] == seen["session"] != os.getsid(0)
    assert (seen["cwd"], seen["path"], seen["threads"], seen["torch"]) == (str(Path.cwd()), [bodies], 1, False)
    assert os.getpid() != seen["pid"] != other["pid"]
    assert seen["random"] != other["random"]
    assert [run("remember", number).result for number in (1, 2)] == [[], []]


def test_only_its_own_descriptors_are_open(run, announcement):
    """A process holds the ends of its own channels, and nothing of the server or of calls that run meanwhile."""
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(run, "announce_and_hang", str(announcement))
        pid = int(announcement.read_text())
        descriptors = run("environment").result["descriptors"]
        os.kill(pid, signal.SIGTERM)
        assert isinstance(hanging.exception(), StageCrashed)
    assert sum(name.startswith("pipe:") for name in descriptors) == 4  # stdout, stderr, answer, progress
    assert sum(name.startswith("socket:") for name in descriptors) == 1  # for further calls
    assert not any(name.startswith("anon_inode:") for name in descriptors)


MAIN = """
import sys
from pteforge.configs.model import Limits
from pteforge.tasks.engine.workers import Workers, WorkerCall
print("main runs")
with Workers(jobs=1, preload=()) as pool:
    limits = Limits(timeout=60, memory=1 << 30)
    report = pool.run(WorkerCall("worker_bodies:environment", None, limits, python_path=(sys.argv[1],)))
print(report.result["main"], report.log, sorted({"torch", "executorch", "prefect", "numpy"} & set(sys.modules)))
"""


def test_main_program(tmp_path, bodies):
    """A script without a main guard can use the pool: its processes do not run it, and the pool imports no torch."""
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    output = subprocess.check_output([sys.executable, script, bodies], text=True, timeout=120)
    assert output == "main runs\nNone b'' []\n"


def test_modules_that_are_found(shared_workers, monkeypatch, tmp_path):
    """A module that a user has just written is found, whatever the import system has cached of its folder."""
    for name in ("early", "late"):
        (tmp_path / f"{name}.py").write_text(f"def name(_): return {name!r}")
        limits = Limits(timeout=60, memory=1 << 30)
        assert shared_workers.run(WorkerCall(f"{name}:name", None, limits, python_path=(str(tmp_path),))).result == name
    monkeypatch.syspath_prepend(str(tmp_path))
    with Workers(jobs=1, preload=("early",)) as pool:
        assert pool.run(WorkerCall("early:name", None, limits)).result == "early"
