"""Answering calls of stages: found in the ledger by key, or run, their outputs stored and recorded; and the runners.

A stage waits for the memory that it will probably need: what it took the last time, else by the size of its inputs.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from ...artifacts.digest import Digest, canonical_json, digest_json
from ...artifacts.files import remove
from ...artifacts.lease import Lease
from ...artifacts.ledger import StageRecord
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...artifacts.store import Store
from ...errors import CodeChanged, LeaseLost, ObjectDamaged, ObjectMissing, PteforgeError, StageError, StageFailed
from ..results.causes import add_known_causes, awaits_diagnosis
from .keys.code import PTEFORGE, StageKey, only_carries, source_digest, stage_code_digest
from .keys.inputs import Observed
from .keys.loaded import (
    FileState,
    changed_source,
    check_distributions,
    check_own_modules,
    file_state,
    loaded_sources,
    module_file,
    read_own_sources,
)
from .keys.search import toolchain_versions
from .keys.source import current_params, declared_files, differing_sources, known_modules, says_as_much, sources_of
from .runner import DepthFirst, Done, NotCached, Observer, StageCall
from .stage import (
    UNKNOWN_DIGEST,
    Plugin,
    Progressed,
    Workspace,
    from_roles,
    is_known,
    no_progress,
    reporter,
    to_roles,
    unknown_roles,
)
from .workers import CallChain, StageRunner, WorkerCall
from .workers.protocol import PROCESSES_VARIABLE

REFRESHED = "asked for with --refresh"  # why a stage ran that may have been in the ledger

_NOBODY = Observer()


class Executor:
    """Finds and runs stages against one store. Thread-safe where its runner is.

    `refresh` is the id of a run that makes everything again: only its own outputs are found, by any process that works
    for it. It is empty to find everything.
    """

    def __init__(self, store: Store, workers: StageRunner, refresh: str = "") -> None:
        read_own_sources()
        self.store = store
        self.refresh = refresh
        self._workers = workers
        self._toolchains: dict[tuple[Any, ...], tuple[Digest, Mapping[str, str]]] = {}

    def stop_refreshing(self) -> None:
        """Finds everything from now on."""
        self.refresh = ""

    def key(self, call: StageCall) -> StageKey:
        stage, params = call.stage, call.params
        name = (stage.name, stage.versions_of(params), params.plugins())
        if name not in self._toolchains:
            self._toolchains[name] = _toolchain(stage.__module__, *name[1:])
        code, versions = self._toolchains[name]
        return StageKey(
            stage=stage.name,
            code=code,
            versions=versions,
            inputs={role: stage.input_digest(params, ref) for role, ref in call.inputs.items()},
            params=params.model_dump(mode="json"),
        )

    def find(self, call: StageCall, key: StageKey | None = None) -> Done | None:
        """The result from the ledger, where there is one and all of its outputs are in the store."""
        key = key or self.key(call)
        self.store.forget_damaged()
        record = self.store.ledger.lookup(key.digest())
        if record is None or (self.refresh and record.refreshed_by != self.refresh):
            return None
        if not all(self.store.has(ref) for ref in record.outputs.values()):
            return None
        return Done(call, key, record.outputs, cached=True, seconds=record.seconds, peak_memory=record.peak_memory)

    def awaited(self, call: StageCall) -> bool:
        """Whether a worker process waits for this call, after an earlier one for the same payload."""
        return self._workers.awaits(_chain(call))

    def run(self, call: StageCall, observer: Observer = _NOBODY, progressed: Progressed = no_progress) -> Done:
        """Finds the result of a call, or makes it.

        One of several callers with equal keys, in this process or in others that use the store, runs the stage; the
        others wait and find the result. One that loses its lease meanwhile stops, and waits like the others. Raises
        StageError if the stage failed, and StoreError if an input is gone or damaged, or the store cannot be used.
        """

        def report(count: int, total: int | None) -> None:
            observer.progressed(call, count, total)
            progressed(count, total)

        try:
            key = self.key(call)
            done = self.find(call, key)
            while done is None:
                with suppress(LeaseLost), self.store.leases.hold(key.digest(), call.title) as lease:
                    try:
                        done = self.find(call, key) or self._make(call, key, observer, report, lease)
                    except StageError as error:
                        if lease.lost:
                            continue  # it was killed for that; another process runs the same stage
                        if not error.lost_object:
                            raise
                        self._drop_damaged(call)  # this host may be able to replace it by itself
                        done = self._make(call, key, observer, report, lease)
        except Exception as error:
            if not awaits_diagnosis(call.stage.name, error):
                add_known_causes(call.stage.name, error, call.circumstances, call.id.recipe)
            observer.failed(call, error)
            raise
        observer.finished(done)
        return done

    def unfinished(self, call: StageCall) -> Path:
        """The folder for what an interrupted call has finished. Keys cannot name it: they grow while user code runs."""
        key = self.key(call)
        return self.store.local.unfinished(digest_json([call.slot, key.code, dict(key.versions), self.refresh]))

    def adopt(self, call: StageCall, outputs: Mapping[str, ArtifactRef], seconds: float, reason: str = "") -> Done:
        """Records outputs that the caller made itself, as if the stage had just run; raises CodeChanged."""
        check_loaded(call, loaded_sources().paths())
        for ref in outputs.values():
            self.store.publish(ref)
        return replace(self._commit(call, self.key(call), outputs, seconds), reason=reason)

    def _drop_damaged(self, call: StageCall) -> None:
        """Removes damaged inputs of a call from the local store, so that `_make` fetches good ones from elsewhere."""
        for ref in call.inputs.values():
            for blob in self.store.objects_of(ref):
                with suppress(ObjectMissing, ObjectDamaged):
                    self.store.local.path(blob)

    def _make(self, call: StageCall, key: StageKey, observer: Observer, progressed: Progressed, lease: Lease) -> Done:
        for ref in call.inputs.values():
            self.store.fetch(ref)
        changed, unfound = differing_sources(call, self.store.inputs.digest)
        if changed:
            raise changed_source(min(changed))
        unfinished = self.unfinished(call)
        work = StageWork(call, self.store.local.root, unfinished).to_json()
        queued, predicted, peak, log = 0.0, 0, 0, None

        def start() -> None:
            nonlocal queued
            lease.check()
            queued = max(0.0, time.time() - call.submitted) if call.submitted else 0.0
            observer.started(call)

        if call.stage.runs_isolated(call.params):
            predicted = predict_memory(call, self.store)
            path, body = tuple(map(str, call.python_path)), f"{__name__}:{run_stage.__name__}"
            needed = sys.maxsize if call.stage.alone else predicted  # more than all is admitted when nothing else runs
            report = self._workers.run(
                WorkerCall(
                    body, work, call.limits, needed, path, _chain(call), start, progressed, given_up=lambda: lease.lost
                )
            )
            result, seconds, peak, log = report.result, report.seconds, report.peak_memory, report.log
        else:
            start()
            started = time.perf_counter()
            try:
                result = run_stage(work)
            except StageError:
                raise
            except (PteforgeError, OSError, ValueError) as error:
                raise StageFailed.of(error) from error
            seconds = time.perf_counter() - started
        if "changed" in result:
            raise CodeChanged(result["changed"])
        outputs, remarks = _OUTPUTS.validate_python(result["outputs"]), result["remarks"]
        lease.check()
        for ref in outputs.values():
            self.store.publish(ref)
        lease.check()
        if call.user_code:
            call = self._watch(call, outputs["observed"])
            key = self.key(call)
        self._check_code(call, key, unfound, result["loaded"])
        done = self._commit(call, key, outputs, seconds, peak, log)
        remove(unfinished)
        return replace(done, queued=queued, predicted_memory=predicted, remarks=tuple(remarks))

    def _check_code(
        self, call: StageCall, key: StageKey, unfound: set[str], loaded: Mapping[str, FileState | None]
    ) -> None:
        """Raises CodeChanged if the code that ran (`loaded`, and `unfound` files in the key) may not be the key's."""
        packages = (name for source in sources_of(call.params) for name in source.get("distributions", ()))
        check_distributions([*key.versions, *packages])
        modules, files = (set(), set()) if call.user_code else differing_sources(call, self.store.inputs.digest)
        changed = modules | (files - unfound)
        # last, so that what was compared above is what was loaded
        changed |= {Path(path).name for path, state in loaded.items() if state != file_state(path)}
        if changed:
            raise changed_source(min(changed))

    def _commit(
        self,
        call: StageCall,
        key: StageKey,
        outputs: Mapping[str, ArtifactRef],
        seconds: float,
        peak_memory: int = 0,
        log: bytes | None = None,
    ) -> Done:
        log_ref = None
        if log is not None:
            log_ref = self.store.local.put_artifact("log", log)
            self.store.publish(log_ref)
        record = StageRecord(
            key=key.digest(),
            fields=key.fields(),
            outputs=outputs,
            seconds=seconds,
            peak_memory=peak_memory,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            log=log_ref.root if log_ref else None,
            refreshed_by=self.refresh,
            reads=tuple(sorted(set().union(*map(self.store.known_objects, call.inputs.values())))),
        )
        self.store.ledger.commit(record)
        reason = REFRESHED if self.refresh else ""
        return Done(call, key, outputs, cached=False, seconds=seconds, peak_memory=peak_memory, reason=reason)

    def _watch(self, call: StageCall, observed: ArtifactRef) -> StageCall:
        """The call with params that cover what the user's code really loaded and read.

        A module that the static closure does not see (imported by a computed name, say) is watched from now on: its
        code enters the key, so a later change of it is a miss. So are packages that the user's imports import, files
        that were not declared, and environment variables. The key has these as they were when they were read. Raises
        CodeChanged if the user's code has changed since the call was made.
        """
        assert call.user_code  # noqa: S101 - the caller has looked
        ledger, name = self.store.ledger, call.user_code.watch_name
        watched = set(ledger.watched(name))
        digest = self.store.inputs.digest
        if not says_as_much(current_params(call, tuple(sorted(watched)), digest), call.params):
            raise CodeChanged("the model's source changed while it was exported; run again")
        reads = Observed.decode(self.store.local.read_artifact(observed))
        now_watched = tuple(sorted(watched | (set(reads.modules) - known_modules(call.params)) | set(reads.inputs)))
        if watched != set(now_watched):
            ledger.watch(name, now_watched)
        return replace(call, params=current_params(call, now_watched, digest, reads.inputs))


@dataclass(frozen=True, slots=True)
class StageWork:
    """What a process of this machine needs to run a stage."""

    call: StageCall
    store: Path  # folder of the local store
    unfinished: Path | None = None  # see `Workspace`

    def to_json(self) -> Any:
        return _WORK.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, value: Any) -> StageWork:
        return _WORK.validate_python(value)


_WORK = TypeAdapter(StageWork)
_OUTPUTS = TypeAdapter(dict[str, ArtifactRef])


def run_stage(work: Any) -> Any:
    """Runs a stage's body here, from the JSON of `StageWork` to that of its outputs. No torch state stays changed."""
    stage_work = StageWork.from_json(work)
    call, stage, store = stage_work.call, stage_work.call.stage, LocalStore(stage_work.store, once=True)
    state: AbstractContextManager[None] = nullcontext()
    if stage.runs_isolated(call.params):
        from .workers.entry import fresh_state  # noqa: PLC0415 - torch

        state = fresh_state()
    remarks: list[str] = []
    before = loaded_sources().paths() if any(sources_of(call.params)) else None
    with store.scratch() as scratch, state:
        space = Workspace(
            store,
            scratch,
            call.folder,
            call.python_path,
            call.program_file,
            reporter.get(),
            declared_files(call),
            stage_work.unfinished,
            remarks.append,
        )
        outputs = stage.run(from_roles(stage.Inputs, call.inputs), call.params, space)
    try:
        loaded = check_loaded(call, before)
    except CodeChanged as error:
        return {"changed": str(error)}
    return {"outputs": _OUTPUTS.dump_python(to_roles(outputs), mode="json"), "remarks": remarks, "loaded": loaded}


def check_loaded(call: StageCall, before: Mapping[str, object] | None) -> Mapping[str, FileState | None]:
    """Raises CodeChanged if a stage may have run code here that differs from what the files contain by now.

    Returns the states of the user's modules: those that the key names, and those that were loaded since `before`.
    """
    check_own_modules(partial(only_carries, module=call.stage.__module__))
    if before is None:
        return {}
    noted = loaded_sources()
    during = {path for path, when in noted.paths().items() if before.get(path) is not when}
    named = {module_file(name) for source in sources_of(call.params) for name in source["modules"]}
    return noted.check(during | named, source_digest)


def _chain(call: StageCall) -> CallChain | None:
    """The chain of the calls for one payload of a model, where all code that this one runs is ours."""
    if os.environ.get(PROCESSES_VARIABLE) == "fresh" or not call.stage.shares_process(call.params):
        return None
    if not all(plugin.__module__.startswith(f"{PTEFORGE}.tasks.") for plugin in call.params.plugins()):
        return None
    name = canonical_json([call.model, call.id.recipe, call.id.payload, list(map(str, call.python_path))]).decode()
    return CallChain(name, goes_on=not call.stage.ends_chain)


def _toolchain(
    module: str, distributions: tuple[str, ...], plugins: tuple[type[Plugin], ...]
) -> tuple[Digest, Mapping[str, str]]:
    """The digest of our code, and all other versions; raises CodeChanged if either changed since the start."""
    modules = [module, *(plugin.__module__ for plugin in plugins)]
    names = [*distributions, *(name for plugin in plugins for name in plugin.distributions)]
    versions = toolchain_versions(names)
    check_distributions(versions)
    for plugin in plugins:
        versions |= plugin.versions()
    return digest_json([stage_code_digest(name) for name in modules]), versions


_FLOOR = 128 << 20  # for what does not depend on the size of the model
_UNSEEN_MODEL = 1 << 30  # of the stages that build a model whose size is not known yet
# Peak memory by the bytes of all inputs, where equal weights count once: `benchmarks/memory.py`, rounded up.
_FACTORS = {"preprocess": 0.75, "compile": 2.25, "verify": 3.5}
_FACTORS |= dict.fromkeys(("edge", "partition", "serialize", "report"), 0.25)
_UNMEASURED = 2.5


def predict_memory(call: StageCall, store: Store) -> int:
    """Bytes, at most the call's limit, by its inputs' manifests; StoreError if one is gone, damaged or out of reach."""
    last = store.ledger.last_run(call.slot)
    predicted = last.peak_memory if last and last.peak_memory else _by_size(call, store)
    return min(predicted, call.limits.memory)


def _by_size(call: StageCall, store: Store) -> int:
    blobs = {blob for ref in call.inputs.values() for blob in store.objects_of(ref)}
    size = sum(blob.size for blob in blobs)
    if not blobs:  # it builds the model, or reads it from a file
        if call.program_file is None or not call.program_file.exists():
            return _UNSEEN_MODEL
        size = call.program_file.stat().st_size
    return _FLOOR + int(_FACTORS.get(call.stage.name, _UNMEASURED) * size)


@dataclass(eq=False)
class EngineRunner:
    """Base of the runners here, which look stages up and run them with one engine."""

    engine: Executor

    @property
    def store(self) -> Store:
        return self.engine.store


class LedgerRunner(EngineRunner):
    """Finds, and never runs: raises NotCached at the first stage that would have to run. Needs no event loop."""

    async def __call__(self, call: StageCall) -> Done:
        if done := self.engine.find(call):
            return done
        raise NotCached(call.title)


@dataclass
class PlanRunner(EngineRunner):
    """Finds what the ledger has; continues with unknown outputs for the rest."""

    # calls that are not in the ledger although all their inputs are known, by stage key
    will_run: dict[Digest, StageCall] = field(default_factory=dict)
    # calls whose inputs will be made; early cutoff may spare them
    may_run: list[StageCall] = field(default_factory=list)
    found: list[Done] = field(default_factory=list)  # results that the ledger has

    async def __call__(self, call: StageCall) -> Done:
        if not all(map(is_known, call.inputs.values())):
            self.may_run.append(call)
        elif done := self.engine.find(call):
            self.found.append(done)
            return done
        else:
            self.will_run.setdefault(self.engine.key(call).digest(), call)
        unknown = StageKey(call.stage.name, UNKNOWN_DIGEST, {}, {}, {})
        return Done(call, unknown, unknown_roles(call.stage.Outputs), cached=False)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A result without what its caller has already: a run may keep thousands."""

    values: Mapping[str, Any]  # of the fields of `Done`, with call and key if the stage was recorded under another key

    @classmethod
    def of(cls, done: Done, digest: Digest) -> Self:
        """Keeps the result of a call whose key had this digest."""
        known = ("call", "key") if done.key.digest() == digest else ()
        return cls({part.name: getattr(done, part.name) for part in fields(done) if part.name not in known})

    def answer(self, call: StageCall, key: StageKey) -> Done:
        return Done(**{"call": call, "key": key, **self.values})


class SharingRunner(EngineRunner):
    """Equal calls of one run are one call, whichever recipes and models they come from. Base of runners that run."""

    def __init__(self, engine: Executor) -> None:
        super().__init__(engine)
        self._calls: dict[Digest, asyncio.Task[Done]] = {}  # those that have not ended well
        self._done: dict[Digest, _Kept] = {}
        self._ran: dict[Digest, _Kept] = {}  # what ran before it was forgotten

    async def __call__(self, call: StageCall) -> Done:
        """Joins a call with an equal key that is running or done, or runs it."""
        key = self.engine.key(call)
        digest = key.digest()
        if digest not in self._done:
            task = self._calls.get(digest)
            if task is None:
                task = self._calls[digest] = asyncio.create_task(self.run(call))
            self._done[digest] = _Kept.of(await asyncio.shield(task), digest)
            self._calls.pop(digest, None)  # with it goes what its context holds
        done = self._done[digest].answer(call, key)
        if done.cached and digest in self._ran:  # it is cached since this run made it
            return replace(self._ran[digest].answer(call, key), roles=done.roles)
        return done

    def forget_finished(self) -> None:
        """Asks the ledger again from now on, since an output is gone."""
        self._calls = {key: task for key, task in self._calls.items() if not task.done()}
        self._ran |= {key: kept for key, kept in self._done.items() if not kept.values["cached"]}
        self._done = {}

    async def run(self, call: StageCall) -> Done:
        """Finds or makes the result of a call that nobody else asked for yet."""
        raise NotImplementedError


class LocalRunner(SharingRunner):
    """Runs stages on this machine, from threads of its own."""

    def __init__(self, engine: Executor, threads: int, observer: Observer | None = None) -> None:
        super().__init__(engine)
        self._observer = observer or Observer()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stages")
        self._turns = DepthFirst(threads)

    async def run(self, call: StageCall) -> Done:
        loop = asyncio.get_running_loop()
        async with self._turns.turn(call.model):
            return await loop.run_in_executor(self._pool, self.engine.run, call, self._observer)
