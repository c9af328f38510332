"""A run of a zoo: its models, store and workers, and the outcomes so far."""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...artifacts.digest import digest_json
from ...artifacts.files import remove_abandoned_files, reserved_space
from ...artifacts.runs import ReleaseOutcome, RunRecord, RunStatus, StageOutcome, run_lease
from ...artifacts.store import Store, open_store
from ...configs.load import LoadedZoo, load_source, load_zoo, recipe_names, split_source
from ...configs.model import Limits
from ...configs.zoo import RunConfig
from ...errors import PteforgeError, StageFailed, StoreError, TargetError, first_line
from ...tasks.engine.executor import Executor, LocalRunner
from ...tasks.engine.runner import Done, Observer, StageCall
from ...tasks.engine.workers import WorkerCall, Workers, memory_for_calls
from ...tasks.lowering.model import PlannedModel, torchao_calls
from ...tasks.lowering.runs import outcome_of, outcome_of_failure
from ..releases.publish import Publication, ResultsFolder, check_folders
from .origin import Origin, git_commit
from .outcome import ModelOutcome, ZooOutcome
from .pace import ExpectedStage, Pace, expected_stages
from .request import ExportRequest
from .select import publication_of, select_models
from .whole import WholeModels

if TYPE_CHECKING:
    from ..releases.records import Published

_log = logging.getLogger(__name__)

_RECORD, _RECORD_OF_FILE = 1 << 20, 1 << 14  # bytes that are reserved for a run's record, and for each file in it
_SUBMITTED_TO_A_CLUSTER = 256  # stages that are submitted at once to a cluster whose size is not known
_CHECK_OPERATORS = "pteforge.tasks.lower.graphs:check_operators"
_CHECK_TRANSFORMS = "pteforge.tasks.quantize.module_transforms:check_transforms"


class ZooObserver(Observer):
    """Receives the events of a run of a zoo, from any thread; this one ignores them."""

    def completed(self, outcome: ModelOutcome) -> None: ...

    def ended(self, record: RunRecord) -> None: ...


@dataclass
class Session(Observer):
    """One run."""

    loaded: LoadedZoo
    models: tuple[PlannedModel, ...]
    executor: Executor
    workers: Workers  # processes for stages; started when the first stage has to run
    request: ExportRequest  # what was asked for
    publication: Publication | None = None  # what becomes of the files at the end
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    observer: ZooObserver = field(default_factory=ZooObserver)
    telemetry: ZooObserver = field(default_factory=ZooObserver)  # from when the run is recorded on
    log: ZooObserver = field(default_factory=ZooObserver)  # of the run in Prefect, while it shows progress there
    pace: Pace = field(default_factory=Pace)
    # by model that has stages to run, all of its stages by slot
    planned: dict[str, dict[str, ExpectedStage]] = field(default_factory=dict)
    outcomes: dict[str, ModelOutcome] = field(default_factory=dict)  # by model, in order of completion
    unfinished: dict[str, dict[str, StageOutcome]] = field(default_factory=dict)  # by model without outcome, by slot
    start: float = field(default_factory=time.monotonic)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    server_lost: bool = False  # Prefect failed; the run continues without it
    server_embedded: bool = False  # Prefect's server ends with the run
    url: str = ""  # of the run's page in Prefect, if its server stays
    aborted: bool = False
    part: bool = False  # another run publishes, and shows, what this one makes
    part_of: str = ""  # that run's id
    recorded_every: float = 15.0  # seconds between two records while it runs
    flow_runs: dict[str, str] = field(default_factory=dict)  # by model that another flow run lowers, its id
    recordable: bool = True  # as far as is known: the store could not take its record before
    page: Path | None = None  # about the run, once it is there
    release: ReleaseOutcome | None = None  # what became of the release, once that is known
    _published: Published | PteforgeError | None = None  # what `publish` returned or raised
    _tried_to_publish: bool = False
    _recording: Lock = field(default_factory=Lock)
    _expecting: Lock = field(default_factory=Lock)
    _reserve: ExitStack = field(default_factory=ExitStack)  # space for the last record, should the disk become full
    _ended: Event = field(default_factory=Event)  # set before the last record is written

    @property
    def zoo(self) -> str:
        """The zoo's name."""
        return self.loaded.zoo.name

    @property
    def place(self) -> RunConfig:
        """Where stages run."""
        return self.loaded.zoo.run

    @property
    def store(self) -> Store:
        return self.executor.store

    @property
    def out(self) -> Path:
        """The folder for results."""
        return self.request.out.absolute()

    @property
    def complete(self) -> bool:
        return len(self.outcomes) == len(self.models)

    @property
    def at_once(self) -> int:
        """Stages that run at once, of all processes that are known."""
        return self.workers.jobs * (self.place.processes or 1)

    @property
    def submitted_at_once(self) -> int:
        """Stages that are submitted at once: some more than can run, so that no process has to wait for its next."""
        processes = self.place.processes
        return _SUBMITTED_TO_A_CLUSTER if processes is None else self._submitted_here * processes

    @property
    def _submitted_here(self) -> int:
        return 2 * self.workers.jobs + 2

    def local_runner(self) -> LocalRunner:
        """Runs stages in this machine's workers, without Prefect."""
        return LocalRunner(self.executor, self._submitted_here, self)

    def add(self, outcome: ModelOutcome) -> None:
        self.outcomes[outcome.model] = outcome
        self.unfinished.pop(outcome.model, None)
        self.pace.completed(outcome)
        self.observer.completed(outcome)
        self.telemetry.completed(outcome)
        self.log.completed(outcome)

    def expect_stages(self) -> None:
        """Tells the pace which stages models that are due will have, as far as the store can say; does it once."""
        with self._expecting, suppress(Exception):  # an estimate must not end a run
            if self.pace.asked:
                return
            self.pace.asked = True
            due = [model for model in self.models if model.name not in self.outcomes]
            self.pace.ask(model.name for model in due)
            zoo = None if self.request.until else self.zoo
            for model, stages in expected_stages(due, self.executor, zoo, self.planned):
                self.pace.expect(model, stages)

    def start_workers(self) -> None:
        """Starts the worker server in the background, for all processes here that run stages, unless none will."""
        if not self.complete and self.place.processes:
            self.workers.start(shared=True)

    def check_names(self) -> None:
        """Checks recipes' torch operators and torchao configs in a worker; raises TargetError for what it rejects."""
        if self.complete:
            return
        recipes = [recipe.recipe for model in self.models for recipe in model.recipes]
        self._check(_CHECK_OPERATORS, sorted({name for recipe in recipes for name in recipe.operators}))
        self._check(_CHECK_TRANSFORMS, [list(config) for recipe in recipes for config in torchao_calls(recipe)])

    def _check(self, body: str, names: list[Any]) -> None:
        try:
            if names:
                self.workers.run(WorkerCall(body, names, Limits(timeout=60, memory=2**30)))
        except StageFailed as error:
            if error.bad_input:
                raise TargetError(str(error)) from error
            raise

    def started(self, call: StageCall) -> None:
        self.pace.started(call)
        self.observer.started(call)
        self.telemetry.started(call)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        self.observer.progressed(call, done, total)

    def finished(self, done: Done) -> None:
        self.pace.finished(done)
        self._note(outcome_of(done))
        self.observer.finished(done)
        self.telemetry.finished(done)

    def failed(self, call: StageCall, error: Exception) -> None:
        self.pace.failed(call)
        self._note(outcome_of_failure(call.model, call.id, call.recipes, error))
        self.observer.failed(call, error)
        self.telemetry.failed(call, error)

    def _note(self, outcome: StageOutcome) -> None:
        """Keeps the outcome of a stage for the record of a run that ends before the model does."""
        model = outcome.slot.partition("/")[0]
        if model not in self.outcomes and not self.aborted:
            self.unfinished.setdefault(model, {})[outcome.slot] = outcome

    def abort(self) -> None:
        """Stops all worker processes, and reports nothing about the stages that they were running."""
        self.observer = ZooObserver()
        self.aborted = True
        self.workers.stop()

    @contextmanager
    def without_prefect_if_it_fails(self) -> Iterator[None]:
        """Ends at the first failure of Prefect, which is logged the first time. Errors of ours are raised."""
        try:
            yield
        except PteforgeError:
            raise
        except Exception as error:  # noqa: BLE001 - Prefect's, whatever it is
            self.lose_server(error)

    def lose_server(self, error: Exception) -> None:
        """Notes that Prefect failed; logs it the first time."""
        if not self.server_lost and not self.aborted:
            _log.warning(
                "Prefect failed (check its server and PREFECT_HOME), the run goes on without it: %s: %s",
                type(error).__name__,
                first_line(error),
            )
        self.server_lost = True

    def outcome(self) -> ZooOutcome:
        done = tuple(self.outcomes[model.name] for model in self.models if model.name in self.outcomes)
        return ZooOutcome(self.zoo, done, time.monotonic() - self.start)

    @contextmanager
    def recorded(self, metrics: Path | None = None) -> Iterator[None]:
        """Keeps a record of the run in the store: written now, from time to time, and when the context ends.

        Meanwhile the run holds a lease, by which it is known to live: `gc` keeps what it publishes, which may be
        between two stages and in no record. What runs that were killed, or whose disk failed, have left half written
        among the results is removed. The page is written at the end, and has what `publish` did in the context.
        `metrics` is where to write some, see `write_metrics`.
        """
        from .telemetry import Telemetry  # noqa: PLC0415 - imports this module

        self.telemetry = Telemetry(self, metrics)
        status: RunStatus = "interrupted"
        with ExitStack() as stack:
            with suppress(StoreError):  # a store that cannot be written can still serve what it has
                stack.enter_context(self.store.leases.hold(run_lease(self.id)))
            try:
                space = self.store.local.root / "tmp"
                for folder in (space, self.out, *(self.out / model.name for model in self.models)):
                    remove_abandoned_files(folder)
                with suppress(StoreError, OSError):
                    size = _RECORD + _RECORD_OF_FILE * sum(len(model.recipes) for model in self.models)
                    self._reserve.enter_context(reserved_space(space, size))
                self._warn_of_namesakes(self.record("running"))
                Thread(target=self._keep_recording, name="record", daemon=True).start()
                yield
                held_back = bool(self.release and self.release.held_back) or isinstance(self._published, Exception)
                status = "failed" if self.outcome().failures or not self.complete or held_back else "completed"
            except Exception:
                status = "failed"
                raise
            finally:  # before the lease is released: who finds neither it nor this record takes the run for killed
                record = self.record(status)
                if status != "interrupted":
                    self._write_page(record)
                self.telemetry.ended(record)

    def record(self, status: RunStatus) -> RunRecord:
        """Writes the run's record, in place of an earlier one; a store that cannot take it is a warning."""
        if status != "running":
            self._ended.set()
            self._reserve.close()
        record = self.describe(status)
        try:
            with self._recording:
                self.store.runs.write(record)
            for index in (self.results.known, self.store.inputs, self.whole_models):
                with suppress(StoreError):  # the next run takes longer without it
                    index.save()
        except StoreError as error:
            if self.recordable:
                _log.warning("the run is not recorded: %s", error)
            self.recordable = False
        return record

    def _keep_recording(self) -> None:
        """Writes the record from time to time, so that what a killed run has done is known."""
        pause, recorded = self.recorded_every, 0
        while not self._ended.wait(pause):
            if recorded == (recorded := self.pace.done):
                continue
            began = time.monotonic()
            with self._recording, suppress(StoreError):  # the last record says so
                if not self._ended.is_set():
                    self.store.runs.write(self.describe("running"))
            pause = max(self.recorded_every, 20 * (time.monotonic() - began))  # of a large zoo, it takes a while

    def _warn_of_namesakes(self, record: RunRecord) -> None:
        """Warns where another zoo that uses the store has the name of this one."""
        if not record.zoo_file:
            return
        with suppress(StoreError, OSError):
            for other in self.store.runs.namesakes(record):
                if self._is_another_zoo(record, other):
                    _log.warning(
                        "%s and %s (on %s) are both named %r, so they share runs, history and what `gc --keep-last` "
                        "keeps in this store; give one of them another name: `name: ...` in the zoo file",
                        record.zoo_file,
                        other.zoo_file,
                        other.host,
                        self.zoo,
                    )
                    return

    def _is_another_zoo(self, record: RunRecord, other: RunRecord) -> bool:
        """Whether another run was of another zoo in this store, and not in one that this is a copy of.

        Checkouts of this one on other machines, or that have been removed since, are no other zoos.
        """
        if other.host == platform.node():
            file, copied = Path(other.zoo_file), other.parameters.get("store") != record.parameters.get("store")
            return not copied and file.is_file() and not file.samefile(record.zoo_file)
        models = {*other.models, *other.files}
        return bool(models) and models.isdisjoint(self.loaded.zoo.models)

    def describe(self, status: RunStatus) -> RunRecord:
        """The run's record as of now."""
        unfinished = {name: tuple(stages.values()) for name, stages in list(self.unfinished.items())}
        return RunRecord(
            **self.identity,
            pid=os.getpid(),
            seconds=time.monotonic() - self.start,
            models=unfinished | {name: outcome.stages for name, outcome in list(self.outcomes.items())},
            status=status,
            parameters=self.request.parameters(),
            files={
                model.model: {recipe.recipe: recipe.to_json() for recipe in model.recipes}
                for model in self.outcome().models
            },
            release=self.release,
            url=self.url,
            part_of=self.part_of,
        )

    def publish(self) -> Published | None:
        """Releases the files if the run is to, and made all of them; the first time only.

        Returns or raises (as `releases.Releases.publish`) the same again afterwards.
        """
        if self.publication and not self._tried_to_publish:
            self._tried_to_publish = True
            try:
                self._published = self.publication.publish_results(
                    [*self.outcome().recipes], self.describe("completed")
                )
                self.release = self.publication.outcome(self._published)
            except PteforgeError as error:
                self._published, self.release = error, self.publication.failed(first_line(error))
        if isinstance(self._published, PteforgeError):
            raise self._published
        return self._published

    def _write_page(self, record: RunRecord) -> None:
        """Writes the page about the run next to its files, if it was to make files; a failure is a warning."""
        if not self.outcomes or self.request.until:
            return
        try:
            from ..reports.page import NAME, write_page  # noqa: PLC0415 - imports that only runs need

            write_page(record, self.store.runs, self.out)
            self.page = self.out / NAME
        except Exception as error:  # noqa: BLE001 - the files are made, whatever is wrong with the page
            _log.warning("the page about the run is not written: %s: %s", type(error).__name__, first_line(error))

    def origin(self, model: str) -> dict[str, Any]:
        """The JSON of what a model's files are made from."""
        return Origin.of(self.loaded, model, debug=self.request.debug).to_json()

    @cached_property
    def previous(self) -> RunRecord | None:
        """The zoo's last run before this one, with what earlier runs made of the rest; None if none can be read."""
        from ..reports.changes import runs_before, with_the_rest  # noqa: PLC0415 - an import that only runs need

        with suppress(StoreError, StopIteration):
            earlier = runs_before(self.id, self.zoo, self.store.runs)
            return with_the_rest(next(earlier), earlier)
        return None

    @cached_property
    def results(self) -> ResultsFolder:
        """The folder for results."""
        return ResultsFolder(self.store, self.out)

    @cached_property
    def whole_models(self) -> WholeModels:
        """The models that the ledger had whole the last time."""
        return WholeModels(self.executor, str(self.loaded.files[0]))

    @cached_property
    def identity(self) -> dict[str, str]:
        """Which run this is: fields of its `RunRecord`, which are also in the provenance of the files that it makes."""
        return {
            "id": self.id,
            "zoo": self.zoo,
            "started": self.began.isoformat(timespec="milliseconds"),
            "host": platform.node(),
            "version": __version__,
            "commit": git_commit(self.loaded.files[0].parent),
            "zoo_digest": digest_json(self.loaded.zoo.model_dump(mode="json", exclude={"run", "publish"})),
        }


def stage_memory(place: RunConfig) -> int | None:
    """Bytes that the stages of one process may need together; None for the default of the machine it is on."""
    if place.processes is None:
        return place.memory
    return max(1, (place.memory or memory_for_calls()) // place.processes)


def load(request: ExportRequest) -> LoadedZoo:
    """The zoo of a request; raises InputError if it cannot be used."""
    changes = [*request.overrides, *([f"run.on={request.on}"] if request.on else [])]
    if one := split_source(request.zoo):
        loaded = load_source(*one, recipe_names(request.recipes), changes)
    else:
        loaded = load_zoo(request.zoo, changes)
    return replace(loaded, zoo=loaded.zoo.with_places(request.places)) if request.places else loaded


@contextmanager
def open_session(
    request: ExportRequest,
    *,
    writes: bool = True,
    store_url: Callable[[str | None], str | None] = lambda store: store,
) -> Iterator[Session]:
    """Loads a zoo and checks everything that needs no work; the session's processes end with the context.

    The zoo is a zoo file, or a builder in the folder that it is imported from; then recipes are of the shipped ones.
    `store_url` finds the URL of a store as the request names it. Raises InputError if the request or the zoo cannot be
    used, or if files are to be written, and the folder for them cannot.
    """
    loaded = load(request)
    shipped = {"recipes": ",".join(recipe_names(request.recipes))} if split_source(request.zoo) else {}
    request = request.model_copy(update=shipped)
    selected = select_models(loaded, request.models, request.recipes)
    if request.until:
        selected = tuple(model.ending_with(request.until) for model in selected)
    if request.debug:
        selected = tuple(model.for_debugging() for model in selected)
    publication = publication_of(loaded, request)
    if writes:
        check_folders(request.out.absolute() / model.name for model in selected)
    place, jobs, run = loaded.zoo.run, request.jobs, uuid.uuid4().hex
    if jobs is None and place.processes:  # those of a cluster on this machine share its cores
        jobs = max(1, (os.cpu_count() or 1) // place.processes)
    workers = Workers(jobs=jobs, memory=stage_memory(place))
    with open_store(store_url(request.store)) as opened, workers:
        executor = Executor(opened, workers, refresh=run if request.refresh else "")
        yield Session(loaded, selected, executor, workers, request, publication, id=run)
