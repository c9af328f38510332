"""Projects to lower, the command line that runs in them, and the same lowering without Prefect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from pteforge.artifacts.runs import StageOutcome
from pteforge.artifacts.store import Store, open_store
from pteforge.configs.load import load_zoo
from pteforge.flows.run.outcome import ZooOutcome
from pteforge.flows.run.request import ExportRequest
from pteforge.flows.run.select import select_models
from pteforge.flows.run.session import Session
from pteforge.flows.run.zoo import find_models, lower_rest
from pteforge.tasks.engine.executor import Executor, LocalRunner
from pteforge.tasks.engine.workers import Workers
from pteforge.tests.conftest import Said, run_process

ZOO = Path(__file__).parent / "zoo"
PACKAGES = Path(__file__).parent / "packages"
PTEFORGE = Path(sys.executable).with_name("pteforge")
_LIMIT = 280  # seconds for a command on a busy machine, unless the test has a limit of its own

BOTH = ("portable-fp32", "xnnpack-fp32")
BATCH = {"forward": [{0: {"min": 1, "max": 4}}]}
"""A dynamic first dimension of the only input."""
FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives these tests ten minutes, on a busy machine, unless they ask for another limit."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


def delivered(folder: Path) -> dict[str, bytes]:
    """What is in a model's folder of results, by relative path; provenance without the run that wrote it."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.glob("*/*"))}
    for name in [name for name in found if f"{name.removesuffix('.json')}.pte" in found and name.endswith(".json")]:
        provenance = json.loads(found[name])
        run = provenance.pop("run")
        assert set(run) == {"id", "zoo", "started", "host", "version", "commit", "zoo_digest", "request"}
        found[name] = json.dumps(provenance).encode()
    return found


class Finished(Said):
    """A command in a process of its own that has ended; what it printed as JSON may come with progress."""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Project:
    """A folder with a zoo file and its builders, a store, and a folder for results."""

    folder: Path
    limit: float = _LIMIT

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def write_zoo(
        self, models: Mapping[str, Any], recipes: tuple[str, ...] = BOTH, own: Mapping[str, Any] | None = None
    ) -> None:
        """Writes `zoo.yaml`: models (a string is a source), names of recipes for all models, and recipes to define."""
        entries = {name: {"source": model} if isinstance(model, str) else model for name, model in models.items()}
        content = {"version": 1, "defaults": {"recipes": list(recipes)}, "models": entries}
        if own:
            content["recipes"] = dict(own)
        self.write("zoo.yaml", yaml.safe_dump(content, sort_keys=False))

    def edit(self, name: str, before: str, after: str) -> None:
        """Replaces text that must be in the file."""
        text = (self.folder / name).read_text(encoding="utf-8")
        assert before in text
        self.write(name, text.replace(before, after))

    def copy(self, folder: Path) -> Project:
        """Copies everything, including modes and times of the store's objects."""
        shutil.copytree(self.folder, folder)
        return Project(folder, self.limit)

    def install(self, package: str) -> dict[str, str]:
        """Installs a package of tests/flows/packages as pip would; returns the environment in which it is found."""
        shutil.copytree(PACKAGES / package, self.folder / "site", ignore=shutil.ignore_patterns("__pycache__"))
        return {"PYTHONPATH": str(self.folder / "site")}

    def make_pipes(self) -> None:
        """Makes the named pipes that `waiting:patient` reports to and waits for."""
        for name in ("running", "proceed"):
            os.mkfifo(self.folder / name)

    def run(self, *args: str, env: Mapping[str, str] | None = None, unprivileged: bool = False) -> Finished:
        """Runs the command line in a process of its own, to its end; `unprivileged` holds root to files' modes."""
        plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        command = (*(plain if unprivileged else ()), PTEFORGE, *args)
        done = run_process(*command, cwd=self.folder, env=self.environment(env), timeout=self.limit)
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts the command line as the leader of a process group, as an interactive shell does."""
        return subprocess.Popen(
            [str(PTEFORGE), *args],
            cwd=self.folder,
            env=self.environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def in_terminal(self, *args: str) -> tuple[int, str]:
        """Runs the command line in a terminal of its own; returns its exit code and output."""
        ours, theirs = pty.openpty()
        environment = self.environment({"TERM": "xterm", "COLUMNS": "160"})
        with subprocess.Popen(
            [str(PTEFORGE), *args], cwd=self.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        ) as run:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # how Linux says that the other side was closed
                while chunk := os.read(ours, 65536):
                    shown += chunk
            os.close(ours)
            return run.wait(60), shown.decode()

    def export(self, *args: str, env: Mapping[str, str] | None = None, unprivileged: bool = False) -> Finished:
        return self.run("export", "zoo.yaml", *args, env=env, unprivileged=unprivileged)

    def files(self) -> dict[str, bytes]:
        """Results by relative path, see `delivered`."""
        return delivered(self.out)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, "PTEFORGE_STORE": str(self.store), **(more or {})}


@pytest.fixture(scope="session")
def make_project() -> Callable[[Path], Project]:
    """Makes a project with copies of the builders of tests/flows/zoo and no zoo file yet."""

    def make(folder: Path) -> Project:
        shutil.copytree(ZOO, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return Project(folder)

    return make


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, make_project: Callable[[Path], Project]) -> Project:
    mark, made = request.node.get_closest_marker("timeout"), make_project(tmp_path / "project")
    return replace(made, limit=mark.args[0] - 20) if mark else made


@dataclass(frozen=True)
class Collector:
    """A collector of OpenTelemetry, by OTLP over HTTP.

    Attributes:
        variables: the environment of commands that report to it.
        requests: what it was sent.
    """

    variables: Mapping[str, str]
    requests: list[bytes]

    def spans(self) -> list[dict[str, Any]]:
        """All spans: their attributes, and name, trace, id, parent, start and end in seconds, scope and service."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for sent in map(ExportTraceServiceRequest.FromString, self.requests):
            for resource in sent.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for scope, span in ((each.scope.name, span) for each in resource.scope_spans for span in each.spans):
                    ids = {"trace": span.trace_id.hex(), "id": span.span_id.hex(), "parent": span.parent_span_id.hex()}
                    times = {"start": span.start_time_unix_nano / 1e9, "end": span.end_time_unix_nano / 1e9}
                    status = ("unset", "ok", "error")[span.status.code]
                    facts = {"name": span.name, "scope": scope, "service": service, "status": status}
                    found.append({**_values(span.attributes), **ids, **times, **facts})
        return found


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    received: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Collector({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}, received)
        server.shutdown()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Folder for pictures of pages; `PICTURES=docs/images` makes those of the documentation again."""
    return Path(os.environ.get("PICTURES", tmp_path)).absolute()


@pytest.fixture
def pteforge(monkeypatch: pytest.MonkeyPatch, run_here: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the command line in this process, in a project: for commands that run no stage."""

    def run(project: Project, *args: str) -> Any:
        monkeypatch.setenv("PTEFORGE_STORE", str(project.store))
        return run_here(project.folder, *args)

    return run


@dataclass(frozen=True)
class Cold:
    """A project after its first export, and how that export ended."""

    project: Project
    first: Finished


@pytest.fixture(scope="session")
def cold(made_once: Callable[..., Path], make_project: Callable[[Path], Project]) -> Cold:
    """The one cold run of the command line that all tests share. A test that changes anything takes `warm`."""

    def fill(folder: Path) -> None:
        project = make_project(folder / "project")
        project.write_zoo({"linear": {"source": "nets:linear", "dynamic_shapes": BATCH}, "conv": "nets:conv"})
        (folder / "first.json").write_text(json.dumps(asdict(project.export())), encoding="utf-8")

    folder = made_once("cold", fill)
    first = Finished(**json.loads((folder / "first.json").read_text(encoding="utf-8")))
    return Cold(Project(folder / "project"), first)


@pytest.fixture
def warm(cold: Cold, tmp_path: Path) -> Project:
    """A copy of the project in which everything is cached."""
    assert cold.first.code == 0, cold.first.err
    return cold.project.copy(tmp_path / "warm")


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """One warm server for all tests that lower without the command line."""
    with Workers(jobs=2) as pool:
        yield pool


@dataclass(frozen=True)
class Lowered:
    """A run without the command line and without Prefect.

    Attributes:
        outcome: what became of each model and recipe.
        stages: model name to its stages.
    """

    outcome: ZooOutcome
    stages: Mapping[str, tuple[StageOutcome, ...]]

    def ran(self, model: str) -> set[str]:
        """Names of the steps that ran."""
        return {stage.step for stage in self.stages[model] if stage.status == "ran"}

    def changes(self, model: str, name: str) -> set[str]:
        """Key fields of a step that ran that differ from its last run."""
        (stage,) = (stage for stage in self.stages[model] if stage.step == name)
        return {change.field for change in stage.differs}


@contextlib.contextmanager
def open_run(
    project: Project,
    pool: Workers,
    *overrides: str,
    models: str = "*",
    recipes: str = "*",
    refresh: str = "",
    store: AbstractContextManager[Store] | None = None,
    engine: Callable[..., Executor] = Executor,
) -> Iterator[Session]:
    """A run of a project's zoo that has not begun. The store, by default the project's, is closed at the end."""
    zoo = project.folder / "zoo.yaml"
    loaded = load_zoo(zoo, overrides)
    chosen, asked = select_models(loaded, models, recipes), ExportRequest(zoo=zoo, out=project.out)
    with store or open_store(str(project.store)) as opened:
        executor = engine(opened, pool, refresh)
        yield Session(loaded, chosen, executor, pool, asked)


def lower_zoo(project: Project, pool: Workers, *overrides: str, at_once: int = 8, **options: Any) -> Lowered:
    """Lowers a project's zoo in this process, as the command line does except for Prefect, with stages in workers.

    Overrides are those of ``--set``, options those of `open_run`.
    """
    with open_run(project, pool, *overrides, **options) as session:
        with session.recording.open():
            find_models(session)
            asyncio.run(lower_rest(session, LocalRunner(session.executor, at_once, session.progress)))
        return Lowered(
            session.progress.outcome(), {name: outcome.stages for name, outcome in session.progress.outcomes.items()}
        )


@pytest.fixture(scope="session")
def lower(workers: Workers) -> Callable[..., Lowered]:
    """`lower_zoo` with the workers that tests share, unless it gets a `pool`."""

    def run(project: Project, *overrides: str, pool: Workers = workers, **options: str) -> Lowered:
        return lower_zoo(project, pool, *overrides, **options)

    return run


@pytest.fixture(scope="session")
def lower_project(
    tmp_path_factory: pytest.TempPathFactory, make_project: Callable[[Path], Project], lower: Callable[..., Lowered]
) -> Callable[..., tuple[Project, Lowered]]:
    """Makes a project with a zoo (arguments as of `write_zoo`) and files, and lowers it; tests change copies of it."""

    def make(*zoo: Any, files: Mapping[str, str] = MappingProxyType({})) -> tuple[Project, Lowered]:
        project = make_project(tmp_path_factory.mktemp("lowered") / "project")
        for name, text in files.items():
            project.write(name, text)
        project.write_zoo(*zoo)
        run = lower(project)
        assert run.outcome.exit_code == 0, run.outcome.failures
        return project, run

    return make


@pytest.fixture
def made(lowered: tuple[Project, Lowered], tmp_path: Path) -> Project:
    """A copy of the project that the module's `lowered` is about, in another folder; a test may change it."""
    return lowered[0].copy(tmp_path / "copy")


@pytest.fixture
def complete(run_here, monkeypatch) -> Callable[[Path, str], list[str]]:
    """What bash offers at the end of a line, which follows `pteforge `, in a folder."""

    def run(folder: Path, line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", f"pteforge {line}")
        monkeypatch.setenv("COMP_CWORD", str(1 + line.count(" ")))
        monkeypatch.setenv("_PTEFORGE_COMPLETE", "complete_bash")
        said = run_here(folder)
        monkeypatch.delenv("_PTEFORGE_COMPLETE")
        assert (said.code, said.err) == (0, "")
        return said.out.split()

    return run
