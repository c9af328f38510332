"""Answering one call of a stage: found in the ledger by key, or run, its outputs stored and recorded.

A stage waits for the memory that it will probably need: what it took the last time, else by the size of its inputs.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from ...artifacts.digest import Digest, canonical_json, digest_file, digest_json
from ...artifacts.ledger import StageRecord
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...artifacts.store import Store
from ...configs.sources import BuilderSource
from ...errors import ObjectDamaged, ObjectMissing, PteforgeError, StageError, StageFailed
from ..results.causes import add_known_causes, awaits_diagnosis
from ..targets.find import find_target_class, link_names
from .keys.code import PTEFORGE, StageKey, stage_code_digest
from .keys.inputs import Observed
from .keys.search import ModuleSearch, distribution_versions
from .keys.source import source_fields
from .runner import Done, Observer, StageCall
from .stage import CallableParams, Params, Progressed, Workspace, from_roles, no_progress, reporter, to_roles
from .workers import CallChain, StageRunner, WorkerCall

REFRESHED = "asked for with --refresh"
"""Why a stage ran that may have been in the ledger."""

PROCESSES_VARIABLE = "PTEFORGE_PROCESSES"
"""Environment variable; with ``fresh``, no two stages share a worker process."""

_NOBODY = Observer()


class Executor:
    """Finds and runs stages against one store. Thread-safe where its runner is.

    Attributes:
        refresh: id of a run that makes everything again: only what that run has made itself is found, by any process
            that works for it. Empty to find what is there.
    """

    def __init__(self, store: Store, workers: StageRunner, refresh: str = "") -> None:
        """Starts nothing."""
        self.store = store
        self.refresh = refresh
        self._workers = workers
        self._toolchains: dict[tuple[str, tuple[str, ...], tuple[str, ...]], tuple[Digest, Mapping[str, str]]] = {}

    def key(self, call: StageCall) -> StageKey:
        stage, params = call.stage, call.params
        name = (stage.name, stage.versions_of(params), params.target_names())
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

    def find(self, call: StageCall) -> Done | None:
        """The result from the ledger, where there is one and all of its outputs are in the store."""
        return self._find(call, self.key(call))

    def awaited(self, call: StageCall) -> bool:
        """Whether a worker process waits for this call, after an earlier one for the same payload."""
        return self._workers.awaits(_chain(call))

    def run(self, call: StageCall, observer: Observer = _NOBODY, progressed: Progressed = no_progress) -> Done:
        """Finds the result of a call, or makes it.

        Of several callers with equal keys, in this process or in others that use the store, one runs the stage and the
        others wait and find the result.

        Raises:
            StageError: the stage failed.
            StoreError: an input is gone or damaged, or the store cannot be used.
        """

        def report(count: int, total: int | None) -> None:
            observer.progressed(call, count, total)
            progressed(count, total)

        try:
            key = self.key(call)
            done = self._find(call, key)
            if done is None:
                with self.store.leases.hold(key.digest(), call.title):
                    try:
                        done = self._find(call, key) or self._make(call, key, observer, report)
                    except StageError as error:
                        if not error.lost_object:
                            raise
                        self._drop_damaged(call)  # this host may be able to replace it by itself
                        done = self._make(call, key, observer, report)
        except Exception as error:
            if not awaits_diagnosis(call.stage.name, error):
                add_known_causes(call.stage.name, error, call.circumstances)
            observer.failed(call, error)
            raise
        observer.finished(done)
        return done

    def adopt(self, call: StageCall, outputs: Mapping[str, ArtifactRef], seconds: float, reason: str = "") -> Done:
        """Records outputs that the caller made itself, as if the stage had just run."""
        for ref in outputs.values():
            self.store.publish(ref)
        return replace(self._commit(call, self.key(call), outputs, seconds), reason=reason)

    def _find(self, call: StageCall, key: StageKey) -> Done | None:
        self.store.forget_damaged()
        record = self.store.ledger.lookup(key.digest())
        if record is None or (self.refresh and record.refreshed_by != self.refresh):
            return None
        if not all(self.store.has(ref) for ref in record.outputs.values()):
            return None
        return Done(call, key, record.outputs, cached=True, seconds=record.seconds, peak_memory=record.peak_memory)

    def _drop_damaged(self, call: StageCall) -> None:
        """Removes what is damaged of a call's inputs from the local store: `_make` fetches what is good elsewhere."""
        for ref in call.inputs.values():
            for blob in self.store.objects_of(ref):
                with suppress(ObjectMissing, ObjectDamaged):
                    self.store.local.path(blob)

    def _make(self, call: StageCall, key: StageKey, observer: Observer, progressed: Progressed) -> Done:
        for ref in call.inputs.values():
            self.store.fetch(ref)
        work = StageWork(call, self.store.local.root).to_json()
        queued, predicted, peak, log = 0.0, 0, 0, None

        def start() -> None:
            nonlocal queued
            queued = max(0.0, time.time() - call.submitted) if call.submitted else 0.0
            observer.started(call)

        if call.stage.runs_isolated(call.params):
            predicted = predict_memory(call, self.store)
            path, body = tuple(map(str, call.python_path)), f"{__name__}:{run_stage.__name__}"
            report = self._workers.run(
                WorkerCall(body, work, call.limits, predicted, path, _chain(call), started=start, progressed=progressed)
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
        outputs = _OUTPUTS.validate_python(result)
        for ref in outputs.values():
            self.store.publish(ref)
        if call.user_code:
            call = self._watch(call, outputs["observed"])
            key = self.key(call)
        done = self._commit(call, key, outputs, seconds, peak, log)
        return replace(done, queued=queued, predicted_memory=predicted)

    def _commit(
        self,
        call: StageCall,
        key: StageKey,
        outputs: Mapping[str, ArtifactRef],
        seconds: float,
        peak_memory: int = 0,
        log: bytes | None = None,
    ) -> Done:
        kept = None
        if log is not None:
            kept = self.store.local.put_artifact("log", log)
            self.store.publish(kept)
        record = StageRecord(
            key=key.digest(),
            fields=key.fields(),
            outputs=outputs,
            seconds=seconds,
            peak_memory=peak_memory,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            log=kept.root if kept else None,
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
        that were not declared, and environment variables. The key has those as they were when they were read: where
        they have changed since, no later call has it. Raises StageFailed if the user's code is not what it was when the
        call was made.
        """
        assert call.user_code  # noqa: S101 - the caller has looked
        ledger, name = self.store.ledger, call.user_code.watch_name
        watched = set(ledger.watched(name))
        digest = self.store.inputs.digest
        if not _says_as_much(current_params(call, tuple(sorted(watched)), digest), call.params):
            raise StageFailed("the model's source changed while it was exported; export it again", bad_input=True)
        reads = Observed.decode(self.store.local.read_artifact(observed))
        now_watched = tuple(sorted(watched | (set(reads.modules) - _known(call.params)) | set(reads.inputs)))
        if watched != set(now_watched):
            ledger.watch(name, now_watched)
        return replace(call, params=current_params(call, now_watched, digest, reads.inputs))


@dataclass(frozen=True, slots=True)
class StageWork:
    """What a process of this machine needs to run a stage."""

    call: StageCall
    store: Path  # folder of the local store

    def to_json(self) -> Any:
        return _WORK.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, value: Any) -> StageWork:
        return _WORK.validate_python(value)


_WORK = TypeAdapter(StageWork)
_OUTPUTS = TypeAdapter(dict[str, ArtifactRef])


def run_stage(work: Any) -> Any:
    """Runs a stage's body in this process, from the JSON of `StageWork` to that of its outputs by role.

    A body that needs torch leaves no global state behind.
    """
    asked = StageWork.from_json(work)
    call, stage, store = asked.call, asked.call.stage, LocalStore(asked.store, once=True)
    state: AbstractContextManager[None] = nullcontext()
    if stage.runs_isolated(call.params):
        from .workers.entry import fresh_state  # noqa: PLC0415 - torch

        state = fresh_state()
    with store.scratch() as scratch, state:
        space = Workspace(
            store, scratch, call.folder, call.python_path, call.program_file, reporter.get(), _declared_files(call)
        )
        outputs = stage.run(from_roles(stage.Inputs, call.inputs), call.params, space)
    return _OUTPUTS.dump_python(to_roles(outputs), mode="json")


def _chain(call: StageCall) -> CallChain | None:
    """The chain of the calls for one payload of a model, where all code that this one runs is ours."""
    if os.environ.get(PROCESSES_VARIABLE) == "fresh" or not call.stage.shares_process(call.params):
        return None
    targets = {link for name in call.params.target_names() for link in link_names(name)}
    if not all(find_target_class(target).__module__.startswith(f"{PTEFORGE}.tasks.") for target in targets):
        return None
    name = canonical_json([call.model, call.id.recipe, call.id.payload, list(map(str, call.python_path))]).decode()
    return CallChain(name, goes_on=not call.stage.ends_chain)


def _declared_files(call: StageCall) -> tuple[Path, ...]:
    """Files that the keys of a stage have since the user's code is declared to read them."""
    if call.user_code is None:
        return ()
    sources = (call.user_code.source, *call.user_code.callables)
    return tuple(path for source in sources if isinstance(source, BuilderSource) for path in source.files)


def current_params(
    call: StageCall,
    watched: tuple[str, ...],
    digest: Callable[[Path], Digest] = digest_file,
    seen: Mapping[str, Digest | None] = MappingProxyType({}),
) -> Params:
    """Params of a stage that runs the user's code, with digests of that code as it is now.

    `watched` is what earlier runs loaded and read, and the static closure does not see. `digest` and `seen` are those
    of `source_fields`.
    """
    assert call.user_code  # noqa: S101 - the caller has looked
    search = ModuleSearch(call.python_path)
    source = source_fields(call.user_code.source, search, watched, folder=call.folder, digest=digest, seen=seen)
    update: dict[str, Any] = {"source": source}
    if transforms := getattr(call.params, "transforms", ()):
        callables = iter(call.user_code.callables)
        update["transforms"] = tuple(
            CallableParams(source=source_fields(next(callables), search, folder=call.folder, digest=digest))
            if isinstance(transform, CallableParams)
            else transform
            for transform in transforms
        )
    params: Params = call.params.model_copy(update=update)
    return params


def _known(params: Any) -> set[str]:
    """Modules and distributions that the key has without watching."""
    sources = [params.source]
    sources += [each.source for each in getattr(params, "transforms", ()) if isinstance(each, CallableParams)]
    return {name for source in sources for part in ("modules", "distributions") for name in source.get(part, ())}


def _says_as_much(now: Any, before: Any) -> bool:
    """Whether a source still is what it was; more of it may be watched by now, for a run of the same source.

    What it was seen to read is not compared: the key has that as it was when it was read.
    """
    grown = {
        name: {known: now.source.get(name, {}).get(known) for known in before.source[name]}
        for name in ("modules", "distributions")
        if name in before.source
    }
    source = {name: value for name, value in {**now.source, **grown}.items() if name not in _READ}
    source |= {name: before.source[name] for name in _READ if name in before.source}
    return bool(now.model_copy(update={"source": source}) == before)


_READ = ("read", "environment")
"""Fields of a source that `input_fields` makes."""


def _toolchain(
    module: str, distributions: tuple[str, ...], targets: tuple[str, ...]
) -> tuple[Digest, Mapping[str, str]]:
    """What a stage runs with: the digest of our code, and the versions of everything else.

    Takes milliseconds, since it reads what is installed: keep it for the time of a run.
    """
    modules, names = [module], list(distributions)
    for target in dict.fromkeys(targets):
        names += find_target_class(target).distributions
        modules += [find_target_class(link).__module__ for link in link_names(target)]
    versions = {"python": platform.python_version(), **distribution_versions(names)}
    return digest_json([stage_code_digest(name) for name in modules]), versions


_MIB = 1 << 20
_FLOOR = 128 * _MIB  # for what does not depend on the size of the model
_UNSEEN_MODEL = 1024 * _MIB  # of the stages that build a model whose size is not known yet
# Peak memory by the bytes of all inputs, where equal weights count once: `benchmarks/memory.py`, rounded up.
_FACTORS = {
    "edge": 0.25,
    "partition": 0.25,
    "preprocess": 0.75,
    "compile": 2.25,
    "serialize": 0.25,
    "report": 0.25,
    "verify": 3.5,
}
_UNMEASURED = 2.5


def predict_memory(call: StageCall, store: Store) -> int:
    """Bytes, at most the call's limit, since it is killed there. Reads the manifests of its inputs.

    Raises StoreError if an input's manifest is gone or damaged, or the store cannot be used.
    """
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
