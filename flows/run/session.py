"""A run of a zoo: its request, models, store and workers."""

from __future__ import annotations

import logging
import os
import platform
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from threading import Lock

from ... import __version__
from ...artifacts.digest import digest_json
from ...artifacts.store import Store, open_store
from ...configs.load import LoadedZoo, load_source, load_zoo, recipe_names, split_source
from ...configs.model import Limits
from ...configs.zoo import RunConfig
from ...errors import PteforgeError, StageFailed, TargetError, first_line
from ...tasks.engine.executor import Executor, LocalRunner
from ...tasks.engine.workers import WorkerCall, Workers, memory_for_calls
from ...tasks.lowering.model import PlannedModel, torchao_calls
from ...tasks.lowering.toolchain import unmended
from ...tasks.upstream import TESTED
from ..releases.publish import Publication, ResultsFolder, check_folders
from .origin import git_commit
from .progress import Progress, expected_stages
from .recording import Recording
from .request import ExportRequest
from .select import publication_of, select_models
from .whole import WholeModels

_log = logging.getLogger(__name__)

_SUBMITTED_TO_A_CLUSTER = 256  # stages that are submitted at once to a cluster whose size is not known


@dataclass
class PrefectState:
    """The state of Prefect in a run, which does not depend on it."""

    lost: bool = False  # Prefect failed
    embedded: bool = False  # its server ends with the run
    url: str = ""  # of the run's page, if the server stays
    flow_runs: dict[str, str] = field(default_factory=dict)  # ids of those that lower models elsewhere, by model
    quiet: bool = False  # its failures are not logged, since the run is aborted

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Ends at a failure of Prefect, and logs the first one. Raises errors of ours."""
        try:
            yield
        except PteforgeError:
            raise
        except Exception as error:  # noqa: BLE001 - Prefect's, whatever it is
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """Notes that Prefect failed; logs it the first time."""
        if not self.lost and not self.quiet:
            _log.warning(
                "Prefect failed (check its server and PREFECT_HOME), the run goes on without it: %s: %s",
                type(error).__name__,
                first_line(error),
            )
        self.lost = True

    def embed(self) -> None:
        """Notes that its server ends with the run."""
        self.embedded = True

    def show_at(self, url: str) -> None:
        """Notes the URL of the run's page, unless that ends with the run."""
        self.url = "" if self.embedded else url

    def note_run(self, run: str, models: Iterable[str]) -> None:
        """Notes the id of a flow run that lowers these models elsewhere."""
        self.flow_runs |= dict.fromkeys(models, run)


@dataclass(frozen=True)
class Session:
    """One run. Only `progress`, `recording` and `prefect` change while it runs."""

    loaded: LoadedZoo
    models: tuple[PlannedModel, ...]
    executor: Executor
    workers: Workers  # processes for stages, started when the first stage has to run
    request: ExportRequest
    publication: Publication | None = None  # of the files at the end
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    part_of: str | None = None  # id of the run that publishes and shows the files, empty if unknown; None for this run
    prefect: PrefectState = field(default_factory=PrefectState)
    progress: Progress = field(init=False)
    recording: Recording = field(init=False)
    _expecting: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "progress", Progress(self.zoo, [model.name for model in self.models]))
        object.__setattr__(self, "recording", Recording(self))

    @property
    def zoo(self) -> str:
        return self.loaded.zoo.name

    @property
    def run_config(self) -> RunConfig:
        """The zoo's settings of where stages run."""
        return self.loaded.zoo.run

    @property
    def store(self) -> Store:
        return self.executor.store

    @property
    def out(self) -> Path:
        return self.request.out.absolute()

    @property
    def submitted_at_once(self) -> int:
        """Stages that are submitted at once: some more than can run, so that no process has to wait for its next."""
        processes = self.run_config.processes
        return _SUBMITTED_TO_A_CLUSTER if processes is None else self._submitted_here * processes

    @property
    def _submitted_here(self) -> int:
        return 2 * self.workers.jobs + 2

    def local_runner(self) -> LocalRunner:
        """Runs stages in this machine's workers, without Prefect."""
        return LocalRunner(self.executor, self._submitted_here, self.progress)

    def expect_stages(self) -> None:
        """Estimates the stages of models without an outcome from the store, once."""
        pace, done = self.progress.pace, self.progress.outcomes
        with self._expecting, suppress(Exception):  # an estimate must not end a run
            if pace.asked:
                return
            due = [model for model in self.models if model.name not in done]
            pace.ask(model.name for model in due)
            runs = self.store.runs.of_zoo("" if self.request.until else self.zoo)
            for model, stages in expected_stages(due, runs, self.progress.planned):
                pace.expect(model, stages)

    def abort(self) -> None:
        """Stops all worker processes, and reports nothing about the stages that they were running."""
        self.progress.aborted = self.prefect.quiet = True
        self.workers.stop()

    @cached_property
    def results(self) -> ResultsFolder:
        return ResultsFolder(self.store, self.out)

    @cached_property
    def whole_models(self) -> WholeModels:
        return WholeModels(self.executor, str(self.loaded.files[0]))

    @cached_property
    def identity(self) -> dict[str, str]:
        """Identifies the run: fields of its `RunRecord` and of the provenance of its files."""
        return {
            "id": self.id,
            "zoo": self.zoo,
            "started": self.progress.began.isoformat(timespec="milliseconds"),
            "host": platform.node(),
            "version": __version__,
            "commit": git_commit(self.loaded.files[0].parent),
            "zoo_digest": digest_json(self.loaded.zoo.model_dump(mode="json", exclude={"run", "publish"})),
        }


def start_workers(session: Session) -> None:
    """Starts the worker server in the background, for all processes here that run stages, unless none will."""
    if not session.progress.complete and session.run_config.processes:
        session.workers.start(shared=True)


def check_names(session: Session) -> None:
    """Checks recipes' torch operators and torchao configs in a worker; raises TargetError for those that it rejects."""
    if session.progress.complete:
        return
    recipes = [recipe.recipe for model in session.models for recipe in model.recipes]
    operators = sorted({name for recipe in recipes for name in recipe.operators})
    transforms = [list(config) for recipe in recipes for config in torchao_calls(recipe)]
    for body, names in (
        ("pteforge.tasks.programs.graphs:check_operators", operators),
        ("pteforge.tasks.quantize.module_transforms:check_transforms", transforms),
    ):
        try:
            if names:
                session.workers.run(WorkerCall(body, names, Limits(timeout=60, memory=2**30)))
        except StageFailed as error:
            if error.bad_input:
                raise TargetError(str(error)) from error
            raise


def stage_memory(config: RunConfig) -> int | None:
    """Bytes that the stages of one process may need together; None for the default of its machine."""
    if config.processes is None:
        return config.memory
    return max(1, (config.memory or memory_for_calls()) // config.processes)


def load(request: ExportRequest) -> LoadedZoo:
    """The zoo of a request; raises InputError if it cannot be used."""
    changes = [*request.overrides, *([f"run.on={request.on}"] if request.on else [])]
    if one := split_source(request.zoo):
        loaded = load_source(*one, recipe_names(request.recipes), changes)
    else:
        loaded = load_zoo(request.zoo, changes, recipes=request.recipes.split(","))
    return replace(loaded, zoo=loaded.zoo.with_places(request.places)) if request.places else loaded


def unmended_in(store: Store) -> list[str]:
    """What pteforge cannot mend in this environment's toolchain; the store's folder here remembers it."""
    return unmended(store.local.root / "toolchains")


def _warn_of_toolchain(store: Store) -> None:
    """Logs what pteforge cannot mend in this toolchain, and whether it is tested with that release of ExecuTorch."""
    installed, tested = version("executorch"), " and ".join(TESTED)
    if installed not in TESTED:
        _log.warning(
            "pteforge is tested with ExecuTorch %s; `pteforge upgrade` shows what %s changes", tested, installed
        )
    for problem in unmended_in(store):
        _log.warning("%s", problem)


@contextmanager
def open_session(
    request: ExportRequest,
    *,
    id: str | None = None,  # noqa: A002 - as the session names it
    part_of: str | None = None,
    writes: bool = True,
    store_url: Callable[[str | None], str | None] = lambda store: store,
) -> Iterator[Session]:
    """Loads a zoo and checks everything that needs no work; the session's processes end with the context.

    The request's zoo is a zoo file, or a source that takes shipped recipes. `part_of` is the id of another run that
    publishes the files, if one does, and `store_url` finds the URL of a store in the request. Raises InputError if the
    request or the zoo cannot be used or, with `writes`, the folder for the files cannot be written.
    """
    loaded = load(request)
    shipped = {"recipes": ",".join(recipe_names(request.recipes))} if split_source(request.zoo) else {}
    request = request.model_copy(update=shipped)
    here = None if part_of is None else request.toolchain
    selected = select_models(loaded, request.models, request.recipes, request.toolchain, here)
    if request.until:
        selected = tuple(model.ending_with(request.until) for model in selected)
    if request.debug:
        selected = tuple(model.for_debugging() for model in selected)
    publication = publication_of(loaded, request) if part_of is None else None
    if writes:
        check_folders(request.out.absolute() / model.name for model in selected)
    config, jobs, run = loaded.zoo.run, request.jobs, id or uuid.uuid4().hex
    if jobs is None and config.processes:  # those of a cluster on this machine share its cores
        jobs = max(1, (os.cpu_count() or 1) // config.processes)
    workers = Workers(jobs=jobs, memory=stage_memory(config))
    with open_store(store_url(request.store)) as opened, workers:
        _warn_of_toolchain(opened)
        executor = Executor(opened, workers, refresh=run if request.refresh else "")
        yield Session(loaded, selected, executor, workers, request, publication, run, part_of)
