"""What a stage process is: alone, in its own session, and no copy of the main program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pteforge.errors import StageCrashed
from pteforge.tasks.workers import WorkerLimits, Workers


def test_process_leads_its_own_session(run):
    """Ctrl-C in the terminal does not reach it, and its group can be killed as a whole."""
    seen = run("environment").result
    assert seen["pid"] == seen["group"] == seen["session"]
    assert seen["session"] != os.getsid(0)


def test_surroundings_are_those_of_the_caller(run, bodies):
    """Working directory unchanged, given folders in front of sys.path, no thread and no torch that nobody asked for."""
    seen = run("environment").result
    assert seen["cwd"] == str(Path.cwd())
    assert seen["path"] == [bodies]
    assert seen["threads"] == 1
    assert seen["torch"] is False


def test_random_numbers_differ_between_processes(run):
    """Processes forked from one server do not share Python's random state."""
    assert run("environment").result["random"] != run("environment").result["random"]


def test_only_its_own_descriptors_are_open(shared_workers, run, bodies, announcement):
    """A process holds its log, its answer, its progress and nothing of the server or of calls that run beside it."""

    def hang() -> None:
        limits = WorkerLimits(60, 1 << 30)
        shared_workers.run("worker_bodies:announce_and_hang", str(announcement), limits, python_path=(bodies,))

    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(hang)
        pid = int(announcement.read_text())
        descriptors = run("environment").result["descriptors"]
        os.kill(pid, signal.SIGTERM)
        assert isinstance(hanging.exception(), StageCrashed)
    assert sum(name.startswith("pipe:") for name in descriptors) == 4  # stdout, stderr, answer, progress
    assert not any(name.startswith(("socket:", "anon_inode:")) for name in descriptors)


def test_main_program_is_not_imported_again(tmp_path, bodies):
    """A script without a main guard can use the pool: its processes do not run the script."""
    script = tmp_path / "script.py"
    call = f"'worker_bodies:environment', None, WorkerLimits(60, 1 << 30), python_path=({bodies!r},)"
    script.write_text(
        "from pteforge.tasks.workers import Workers, WorkerLimits\n"
        "print('main runs')\n"
        "with Workers(jobs=1, preload=()) as pool:\n"
        f"    report = pool.run({call})\n"
        "print(report.result['main'], report.log)\n"
    )
    output = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, timeout=120).stdout
    assert output == "main runs\nNone b''\n"


def test_parent_needs_no_torch():
    """Neither the pool nor a server without preload imports torch or executorch here."""
    program = (
        "import sys\n"
        "from pteforge.tasks.workers import Workers, WorkerLimits\n"
        "with Workers(preload=()) as pool: pool.run('json:dumps', 1, WorkerLimits(60, 1 << 30))\n"
        "print(sorted({'torch', 'executorch', 'prefect', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


def test_module_written_after_the_warm_up_is_found(shared_workers, tmp_path):
    """The import system's cached listing of a folder does not hide a module that a user has just written."""
    limits = WorkerLimits(60, 1 << 30)
    (tmp_path / "early.py").write_text("def name(_): return 'early'")
    assert shared_workers.run("early:name", None, limits, python_path=(str(tmp_path),)).result == "early"
    (tmp_path / "late.py").write_text("def name(_): return 'late'")
    assert shared_workers.run("late:name", None, limits, python_path=(str(tmp_path),)).result == "late"


def test_server_sees_the_search_path_of_its_maker(monkeypatch, tmp_path):
    """What can be imported here can be imported there."""
    (tmp_path / "only_here.py").write_text("def name(_): return 'here'")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Workers(jobs=1, preload=("only_here",)) as pool:
        assert pool.run("only_here:name", None, WorkerLimits(60, 1 << 30)).result == "here"
