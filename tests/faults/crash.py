"""SIGKILL to a process of `pteforge export` at a random moment: the next run completes, and nothing tells of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil
from pteforge.artifacts.store import open_store
from pteforge.tasks.engine.workers import Workers
from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.faults.zoo import STAGES, Made, check_store, make_project
from pteforge.tests.flows.conftest import Project, delivered, lower_zoo
from pteforge.tests.flows.server.conftest import running_server

_MARK = "PTEFORGE_TRIAL"  # environment variable that all processes of a trial have
_LIMIT = 120.0  # seconds for one command, on a busy machine
_ONE_RETRY = {"PREFECT_CLIENT_MAX_RETRIES": "1"}  # by default, Prefect's clients wait for minutes for a lost server
_STRAY = 10.0  # seconds until all processes of a run that was killed have ended
_BY_COMMAND = 0.25  # share of the trials whose next run is the whole command; the others leave Prefect out
_BESIDE = 0.3  # share of the trials with a second run
_AT_START = 0.2  # share of the kills that are timed from the start, and not by what is in the store
_DELAY = 0.1  # seconds
_SERVER = "pteforge.tasks.engine.workers.server"
_TARGETS = {"main process": 5, "worker": 3, "worker server": 3, "Prefect server": 1}
"""How often each is killed, relative to the others."""


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing happened to.

    Attributes:
        head: seconds from its start to its first file.
        files: how many files it wrote, see `written`.
    """

    project: Project
    made: Made
    head: float
    files: int
    workers: Workers

    def close(self) -> None:
        self.workers.stop()


def prepare(folder: Path) -> Undisturbed:
    """Lowers the zoo once with the command line."""
    project = make_project(folder / "project")
    blank = project.copy(folder / "blank")
    start = time.monotonic()
    with project.start("export", "zoo.yaml") as process:
        until(lambda: written(project) > 0 or process.poll() is not None)
        head = time.monotonic() - start
        _, said = process.communicate(timeout=2 * _LIMIT)
    assert process.returncode == 0, said
    files = written(project)
    with open_store(str(project.store)) as store:
        check_store(store)
        made = Made.of(project, store)
    assert len(made.stages) == STAGES
    return Undisturbed(blank, made, head, files, Workers(jobs=2))


def trial(undisturbed: Undisturbed, rng: random.Random, folder: Path) -> str:
    """Kills one process, and looks at what is left after the next run."""
    target = rng.choices([*_TARGETS], [*_TARGETS.values()])[0]
    beside, by_command = rng.random() < _BESIDE, rng.random() < _BY_COMMAND
    kind = target + (" beside another run" if beside else "")
    with trying(kind), marked(folder) as environment:
        project = undisturbed.project.copy(folder / "project")
        killed = disturb(undisturbed, project, rng, target, environment, beside=beside)
        begin = time.monotonic()
        run_again(undisturbed, project, environment, by_command=by_command)
        assert time.monotonic() - begin < _LIMIT, "the next run was held up"
        until(lambda: not list(strays(environment)), _STRAY)
        with open_store(str(project.store)) as store:
            check_store(store)
            made = Made.of(project, store)
        assert not (differing := made.differences(undisturbed.made)), differing
        if beside:
            assert delivered(project.folder / "beside") == undisturbed.made.files
        with mock.patch("tempfile.tempdir", str(folder / "tmp")), Workers(jobs=1, preload=()) as next_workers:
            next_workers.start(shared=True)
        assert not (left := left_behind(folder)), left
    return kind if killed else f"{kind}, too late"


def disturb(
    undisturbed: Undisturbed,
    project: Project,
    rng: random.Random,
    target: str,
    environment: dict[str, str],
    *,
    beside: bool,
) -> bool:
    """Starts a run, or two, and kills a process of the first one; returns whether it was in time for that."""
    at_start, part, choice, delay = rng.random() < _AT_START, rng.random(), rng.random(), rng.random() * _DELAY
    with contextlib.ExitStack() as stack:
        servers, own = [], {}
        if target == "Prefect server":
            url, server = stack.enter_context(running_server(project.folder / "server", **environment))
            servers, own = [psutil.Process(server.pid)], {"PREFECT_API_URL": url, **_ONE_RETRY}
        run = project.start("export", "zoo.yaml", env=environment | own)
        other = project.start("export", "zoo.yaml", "--out", "beside", env=environment) if beside else None
        victims: dict[str, Callable[[], list[psutil.Process]]] = {
            "main process": lambda: [psutil.Process(run.pid)],
            "worker server": lambda: worker_servers(run.pid),
            "worker": lambda: [worker for server in worker_servers(run.pid) for worker in server.children()],
            "Prefect server": lambda: servers,
        }

        def ended() -> bool:
            return run.poll() is not None

        if at_start:
            delay += part * undisturbed.head
        else:
            until(lambda: ended() or written(project) > part * undisturbed.files)
        time.sleep(delay)
        until(lambda: ended() or len(victims[target]()) > 0)
        killed = not ended() and kill(victims[target](), choice)
        _, said = run.communicate(timeout=_LIMIT)
        _, said_beside = other.communicate(timeout=_LIMIT) if other else ("", "")
    codes = {"main process": {0, -signal.SIGKILL}, "Prefect server": {0}}.get(target, {0, 1})
    assert run.returncode in (codes if killed else {0}), said
    assert "Traceback" not in said + said_beside, said + said_beside
    assert other is None or other.returncode == 0, said_beside
    return killed


def kill(victims: list[psutil.Process], choice: float) -> bool:
    """Kills one of some processes; returns whether it was there."""
    if not victims:
        return False
    try:
        victims[int(choice * len(victims))].kill()
    except psutil.NoSuchProcess:
        return False
    return True


def run_again(undisturbed: Undisturbed, project: Project, environment: dict[str, str], *, by_command: bool) -> None:
    """Runs the same again, and once more with nothing to do."""
    if by_command:
        done = project.run("export", "zoo.yaml", env=environment)
        assert (done.code, "Prefect failed" in done.err) == (0, False), done.err
    else:
        outcome = lower_zoo(project, undisturbed.workers).outcome
        assert outcome.exit_code == 0, outcome.failures
    assert sum(model.ran for model in lower_zoo(project, undisturbed.workers).outcome.models) == 0


def written(project: Project) -> int:
    """Number of objects, records and results: how far a run is, on a busy machine too."""
    folders = project.store / "objects", project.store / "ledger", project.out
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))


def worker_servers(pid: int) -> list[psutil.Process]:
    """Servers that a process has started, one at most."""
    try:
        return [child for child in psutil.Process(pid).children() if any(_SERVER in part for part in child.cmdline())]
    except psutil.Error:
        return []


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[dict[str, str]]:
    """Environment variables by which processes are found, with a folder for temporary files; kills what is left."""
    (folder / "tmp").mkdir()
    environment = {_MARK: uuid.uuid4().hex, "TMPDIR": str(folder / "tmp")}
    try:
        yield environment
    finally:
        for process in strays(environment):
            process.kill()


def strays(environment: dict[str, str]) -> Iterator[psutil.Process]:
    """Processes with the mark of these environment variables, however they descend from those that were started."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == environment[_MARK] and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def left_behind(folder: Path) -> list[str]:
    """Temporary files of processes that have ended, but for torch's cache of each user, and half-written results."""
    results = [path for out in ("out", "beside") for path in (folder / "project" / out).rglob(".*")]
    temporary = [path for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    return sorted(str(path.relative_to(folder)) for path in (*temporary, *results))


def until(condition: Callable[[], bool], limit: float = _LIMIT) -> None:
    """Waits for a condition; fails after so many seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {limit:g} s"
        time.sleep(0.005)


CRASH = Campaign("Crash points", prepare, trial, 300)
