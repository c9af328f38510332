"""Rooms: folders with a zoo, a store and a folder for results, the command line to run in them, and shared workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
import yaml
from pteforge.artifacts.runs import StageOutcome
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.flows.outcome import ZooOutcome
from pteforge.flows.select import select_models
from pteforge.flows.session import Session
from pteforge.flows.settling import settle_plainly
from pteforge.tasks.executor import Executor
from pteforge.tasks.workers import Workers

ZOO = Path(__file__).parent / "zoo"
PTEFORGE = Path(sys.executable).with_name("pteforge")
_LIMIT = 280  # seconds that a command may take on a busy machine

BOTH = ("portable-fp32", "xnnpack-fp32")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """What it printed, which must be one JSON document."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Room:
    """A folder with a zoo file and its builders, a store, and a folder for results."""

    folder: Path

    @property
    def store(self) -> Path:
        """Of all commands that are run here."""
        return self.folder / "store"

    @property
    def out(self) -> Path:
        """Where files go."""
        return self.folder / "out"

    def write(self, name: str, text: str) -> Path:
        """Writes a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def zoo(
        self, models: Mapping[str, Any], recipes: tuple[str, ...] = BOTH, own: Mapping[str, Any] | None = None
    ) -> None:
        """Writes `zoo.yaml`: models (text is a source), recipes for all of them, and recipes of the zoo's own."""
        entries = {name: {"source": model} if isinstance(model, str) else model for name, model in models.items()}
        content = {"version": 1, "defaults": {"recipes": list(recipes)}, "models": entries}
        if own:
            content["recipes"] = dict(own)
        self.write("zoo.yaml", yaml.safe_dump(content, sort_keys=False))

    def edit(self, name: str, before: str, after: str) -> None:
        """Replaces text in a file that has it."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert before in text
        path.write_text(text.replace(before, after), encoding="utf-8")

    def copy(self, folder: Path) -> Room:
        """The same in another folder, modes and times of the store's objects included."""
        shutil.copytree(self.folder, folder)
        return Room(folder)

    def run(self, *args: str, env: Mapping[str, str] | None = None) -> Finished:
        """Runs the command line here, to its end."""
        started = time.monotonic()
        done = subprocess.run(
            [str(PTEFORGE), *args],
            cwd=self.folder,
            env=self._environment(env),
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr, time.monotonic() - started)

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts the command line as the leader of a process group, as an interactive shell does."""
        return subprocess.Popen(
            [str(PTEFORGE), *args],
            cwd=self.folder,
            env=self._environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def export(self, *args: str, env: Mapping[str, str] | None = None) -> Finished:
        """`pteforge export zoo.yaml`."""
        return self.run("export", "zoo.yaml", *args, env=env)

    def files(self) -> dict[str, bytes]:
        """Everything in the folder for results, by relative path."""
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes() for path in self.out.rglob("*") if path.is_file()
        }

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, "PTEFORGE_STORE": str(self.store), **(more or {})}


@pytest.fixture(scope="session")
def make_room() -> Callable[[Path], Room]:
    """Makes a room with copies of the builders of tests/flows/zoo and no zoo file yet."""

    def make(folder: Path) -> Room:
        shutil.copytree(ZOO, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return Room(folder)

    return make


@pytest.fixture
def room(tmp_path: Path, make_room: Callable[[Path], Room]) -> Room:
    """A room of the test's own."""
    return make_room(tmp_path / "room")


@dataclass(frozen=True)
class Cold:
    """A room after its first export, and how that went."""

    room: Room
    first: Finished


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory, make_room: Callable[[Path], Room]) -> Cold:
    """The one cold run of the command line that tests share. Those that change anything take a copy of the room."""
    room = make_room(tmp_path_factory.mktemp("cold") / "room")
    room.zoo({"linear": {"source": "nets:linear", "dynamic_shapes": BATCH}, "conv": "nets:conv"})
    return Cold(room, room.export())


BATCH = {"forward": [{0: {"min": 1, "max": 4}}]}
"""The first dimension of the only input varies."""


@pytest.fixture
def warm(cold: Cold, tmp_path: Path) -> Room:
    """A copy of the room in which everything was made."""
    assert cold.first.code == 0, cold.first.err
    return cold.room.copy(tmp_path / "warm")


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """One warm server for all tests that lower without the command line."""
    with Workers(jobs=2) as pool:
        yield pool


@dataclass(frozen=True)
class Lowered:
    """A run without the command line and without Prefect.

    Attributes:
        outcome: what became of it.
        stages: model name to its stages.
    """

    outcome: ZooOutcome
    stages: Mapping[str, tuple[StageOutcome, ...]]

    def ran(self, model: str) -> set[str]:
        """Names of the steps that ran."""
        return {step(stage) for stage in self.stages[model] if stage.status == "ran"}

    def changes(self, model: str, name: str) -> set[str]:
        """Fields of the key of a step that ran which had changed."""
        (stage,) = (stage for stage in self.stages[model] if step(stage) == name)
        return {change.field for change in stage.differs}


def step(stage: StageOutcome) -> str:
    """Name of the step."""
    return stage.slot.partition("/")[2]


class Lower(Protocol):
    """Lowers a room's zoo in this process, stages in worker processes."""

    def __call__(self, room: Room, *overrides: str, models: str = "*", recipes: str = "*") -> Lowered:
        """Overrides are those of ``--set``."""
        ...


@pytest.fixture(scope="session")
def make_lower() -> Callable[[Workers], Lower]:
    """Lowers as the command line does, but for Prefect; its real thing for all the rest."""

    def make(workers: Workers) -> Lower:
        def run(room: Room, *overrides: str, models: str = "*", recipes: str = "*") -> Lowered:
            loaded = load_zoo(room.folder / "zoo.yaml", overrides)
            chosen = select_models(loaded, models, recipes)
            with open_store(str(room.store)) as store:
                session = Session(loaded.zoo.name, chosen, Executor(store, workers), workers, room.out, workers.jobs)
                if not session.settle_from_ledger():
                    for model in chosen:
                        if model.name not in session.outcomes:
                            run = session.run_of(model)
                            run.run(settle_plainly(session, run), threads=8)
                            session.complete(model)
                session.record()
                stages = {name: run.stage_outcomes() for name, run in session.runs.items()}
                return Lowered(session.outcome(), stages)

        return run

    return make


@pytest.fixture(scope="session")
def lower(make_lower: Callable[[Workers], Lower], workers: Workers) -> Lower:
    """With the shared workers."""
    return make_lower(workers)


@pytest.fixture(scope="session")
def lower_room(
    tmp_path_factory: pytest.TempPathFactory, make_room: Callable[[Path], Room], lower: Lower
) -> Callable[..., tuple[Room, Lowered]]:
    """Makes a room with a zoo, takes what `Room.zoo` takes, and lowers all of it; gives the room, and that run."""

    def make(*zoo: Any) -> tuple[Room, Lowered]:
        room = make_room(tmp_path_factory.mktemp("lowered") / "room")
        room.zoo(*zoo)
        run = lower(room)
        assert run.outcome.exit_code == 0, run.outcome.failures
        return room, run

    return make


@pytest.fixture
def gone() -> Callable[[psutil.Process], bool]:
    """Waits some seconds for the end of any process, says whether it came. A zombie has ended."""

    def ended(process: psutil.Process) -> bool:
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return True
        try:
            if not process.is_running():
                return True
            import select

            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(10_000))
        finally:
            os.close(fd)

    return ended
