"""What all tests share: their own folders, one Hypothesis profile, the command line, and a zoo of models."""

from __future__ import annotations

import itertools
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import settings

if TYPE_CHECKING:
    from pteforge.tests.artifacts.hub_server import Hub
    from pteforge.tests.lowering import Lowered, Stages

_RUNTIME = Path(__file__).parents[1] / "runtime"
_ROOM = pytest.StashKey[tempfile.TemporaryDirectory]()

# Settings of the person who runs the tests must not reach them.
_FOREIGN = ("PREFECT_", "PTEFORGE_", "AWS_", "EXECUTORCH_", "OTEL_", "PIP_CONSTRAINT")
_MEANT = ("PTEFORGE_VULKAN_LIBRARY",)  # a delegate that some tests run files on, where there is one

# Every run draws the same examples, unless it is started with --hypothesis-profile=random.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Gives the session, and every process it starts, its own cache, Prefect home and temporary environment.

    This happens before collection and not in a fixture, since Prefect reads its settings when it is imported.
    """
    room = tempfile.TemporaryDirectory(prefix="pteforge-tests-", ignore_cleanup_errors=True)
    config.stash[_ROOM] = room
    isolate(Path(room.name))
    # A shell without job control starts its background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def isolate(room: Path) -> None:
    """Gives this process, and those it starts, a cache and a Prefect home in a folder; forgets the user's settings."""
    for name in [name for name in os.environ if name.startswith(_FOREIGN) and name not in _MEANT]:
        del os.environ[name]
    os.environ["PTEFORGE_CACHE"] = str(room / "cache")
    os.environ["PREFECT_HOME"] = str(room / "prefect")
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
    os.environ["DO_NOT_TRACK"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the session's folders."""
    config.stash[_ROOM].cleanup()


PARTS = range(1, 25)
"""Numbers of the parts of the nightly tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that CI uses to run some of the nightly tests at each push, and all of them in 24 days."""
    parser.addoption("--part", type=int, choices=PARTS, help="leave out nightly tests of the other parts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files first that may take longest, so that no process is left alone with one of them at the end."""
    of_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        of_file.setdefault(item.path, []).append(item)
    items[:] = [item for found in sorted(of_file.values(), key=_weight, reverse=True) for item in found]
    if part := config.getoption("part"):
        others = {item for number, nightly in parts(items).items() if number != part for item in nightly}
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def parts(items: Iterable[pytest.Item]) -> dict[int, list[pytest.Item]]:
    """Deals the nightly tests into parts whose time limits have about the same sum.

    Those of a file stay together, since they share fixtures, unless they are more than a part.
    """
    of_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("nightly"):
            of_file.setdefault(item.path, []).append(item)
    limit = {path: sum(map(_limit, tests)) for path, tests in of_file.items()}
    mean = sum(limit.values()) / len(PARTS)
    stacks = [[test] for path, tests in of_file.items() if limit[path] > mean for test in tests]
    stacks += [tests for path, tests in of_file.items() if limit[path] <= mean]
    dealt: dict[int, list[pytest.Item]] = {number: [] for number in PARTS}
    for stack in sorted(stacks, key=lambda stack: sum(map(_limit, stack)), reverse=True):
        min(dealt.values(), key=lambda part: sum(map(_limit, part))).extend(stack)
    return dealt


def _weight(items: list[pytest.Item]) -> tuple[float, int]:
    """What a file may take: the longest time limit of a test, and the number of its tests."""
    return max(map(_limit, items)), len(items)


def _limit(item: pytest.Item) -> float:
    """The seconds a test may take: what it asks for, or pyproject.toml's."""
    mark = item.get_closest_marker("timeout")
    return mark.args[0] if mark else 300


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints how long each kind of test took, in all processes; with ``--durations`` the longest files, too."""
    of_kind: Counter[str] = Counter()
    of_file: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            kind = next((mark for mark in ("nightly", "slow") if mark in report.keywords), "default")
            of_kind[kind] += report.duration
            of_file[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("seconds of tests, in all processes")
    for kind, total in of_kind.most_common():
        terminalreporter.line(f"{total:8.1f} s  {kind}")
    if config.option.durations is not None:
        for path, total in of_file.most_common(config.option.durations or None):
            terminalreporter.line(f"{total:8.1f} s  {path}")


def run_process(
    *command: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, and takes what it prints."""
    arguments = [*map(str, command)]
    return subprocess.run(arguments, cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, which must be one JSON document and all there is."""
        assert self.err == ""
        return json.loads(self.out)

    def refused(self, *telling: str) -> None:
        """Checks that it ended with 2 and one message, on standard error, with everything in it that tells."""
        assert (self.code, self.out) == (2, ""), self.err
        assert self.err.startswith("error: ")
        assert "Traceback" not in self.err
        for part in telling:
            assert part in self.err


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of pteforge that a test may edit; commands use it with its folder's parent in `PYTHONPATH`."""
    root, copy = Path(__file__).parents[1], tmp_path / "copied" / "pteforge"
    for path in root.glob("*/__init__.py"):
        if path.parent.name != "tests":
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path.parent, copy / path.parent.name, ignore=ignored)
    for path in root.glob("*.py"):
        shutil.copy(path, copy)
    return copy


@pytest.fixture
def run_here(monkeypatch, capfd) -> Iterator[Callable[..., Said]]:
    """Runs the command line in this process, with the working directory given first."""
    # Imported late: what it imports may read settings that `pytest_configure` makes.
    from pteforge.tests.command import run_command

    log = logging.getLogger("pteforge")
    before = log.handlers[:], log.level, log.propagate

    def run(folder: Path, *args: str | Path) -> Said:
        log.handlers[:] = []
        capfd.readouterr()
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pteforge", *map(str, args)])
        code = run_command()
        return Said(code, *capfd.readouterr())

    yield run
    log.handlers[:], log.level, log.propagate = before


def _cmake(source: Path, build: Path, *options: str) -> Path:
    for command in (
        ["cmake", "-S", source, "-B", build, f"-DPython_EXECUTABLE={sys.executable}", *options],
        ["cmake", "--build", build, "--parallel"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.fixture(scope="session")
def cmake() -> Callable[..., Path]:
    """Configures and builds a source folder in a build folder, with options; gives the latter."""
    return _cmake


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Path]:
    """Fills a folder, by a name and a function that takes it: once for all processes that run tests of this session."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, made = shared / name, shared / f"{name}.made"
        with FileLock(shared / f"{name}.lock"):
            if not made.exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                made.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def build(made_once: Callable[..., Path]) -> Path:
    """Folder of the library and of nfat_run, as they are shipped."""
    return made_once("build", lambda folder: _cmake(_RUNTIME, folder, "-DNFAT_BUILD_HOST=ON"))


@pytest.fixture(scope="session")
def python_path() -> Path:
    """Where the Python package of the runtime is imported from."""
    return _RUNTIME / "python"


@pytest.fixture
def file_limit() -> Callable[[int], AbstractContextManager[None]]:
    """Makes writing more than so many bytes to a file fail, as on a full disk."""
    return limited_size


@contextmanager
def limited_size(size: int) -> Iterator[None]:
    """Lets no file be longer: the system writes what fits, and then fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def install_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Installs a distribution whose entry points are targets: name to ``module:Class``."""

    def install(targets: Mapping[str, str], distribution: str = "acme_targets") -> None:
        folder = tmp_path / "site" / f"{distribution}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in targets.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[pteforge.targets]", *lines, ""]))
        monkeypatch.syspath_prepend(folder.parent)

    return install


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of models that tests use, on the import path."""
    from pteforge.tests.lowering import ZOO

    monkeypatch.syspath_prepend(ZOO)
    return ZOO


@pytest.fixture(scope="session")
def lowered_before(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The store in which tests lower models, and the results of stages there, by key."""
    from pteforge.artifacts.local_store import LocalStore

    return LocalStore.open(tmp_path_factory.mktemp("lowered") / "store"), {}


@pytest.fixture
def stages(zoo: Path, lowered_before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    """Stages on a store for all tests, which run once where their keys are equal.

    Afterwards the working directory and the import path are what they were.
    """
    del zoo
    from pteforge.tests.lowering import Stages

    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    store, results = lowered_before
    return Stages(store, tmp_path / "zoo", results)


@pytest.fixture
def lower(stages: Stages) -> Callable[..., Lowered]:
    """Lowers a builder's model with a recipe, in this process, by stages that no other test has run."""
    return stages.lower


@pytest.fixture
def lower_fresh(stages: Stages, tmp_path: Path) -> Callable[..., Lowered]:
    """The same on a new store, where every stage runs: for tests that patch what no key has, or watch stages run."""
    return type(stages)(type(stages.store).open(tmp_path / "store"), stages.folder).lower


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, to which this process and those that it starts are logged in."""
    from pteforge.tests.artifacts.hub_server import TOKEN, run_hub

    with run_hub() as running:
        monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps({"endpoint": running.url}))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield running
