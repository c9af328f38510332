"""Settling one step: find it in the ledger by key, or run its stage, store the outputs and record them."""

from __future__ import annotations

import importlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..artifacts.digest import Digest, digest_json
from ..artifacts.records import StageRecord
from ..artifacts.ref import ArtifactRef, BlobRef
from ..artifacts.store import Store
from ..errors import PteforgeError, StageError, StageFailed
from .call import StageCall, run_call
from .catalog import StageName
from .keys.key import StageKey
from .keys.stage_code import stage_code_digest
from .keys.versions import distribution_versions
from .model import PlannedModel
from .params import CompileParams
from .progress import Progressed, unheard
from .source_params import MethodParams
from .steps import Step
from .targets.find import find_target_class, link_names
from .watching import watch
from .workers import StageRunner, WorkerLimits

_ENTRY = "pteforge.tasks.stages.entry:run"


@dataclass(frozen=True, slots=True)
class StepResult:
    """A settled step.

    Attributes:
        step: the step.
        key: its key.
        outputs: role to artifact.
        cached: whether it was found instead of run.
        seconds: how long the stage ran, now or when it was made.
        peak_memory: bytes its process used beyond the worker server's own, now or when it was made.
    """

    step: Step
    key: StageKey
    outputs: Mapping[str, ArtifactRef]
    cached: bool
    seconds: float
    peak_memory: int


@dataclass(frozen=True, slots=True)
class _Toolchain:
    """What a stage runs with, for certain targets: digest of our code, and versions of the rest."""

    code: Digest
    versions: Mapping[str, str]


class Executor:
    """Settles steps against one store. Thread-safe where its runner is."""

    def __init__(self, store: Store, workers: StageRunner) -> None:
        """Starts nothing."""
        self.store = store
        self._workers = workers
        self._toolchains: dict[tuple[str, bool, tuple[str, ...]], _Toolchain] = {}

    def key(self, step: Step, inputs: Mapping[str, ArtifactRef]) -> StageKey:
        """The step's stage key, inputs known."""
        name = (step.stage.value, step.isolated, tuple(each.name for each in step.targets))
        if name not in self._toolchains:
            self._toolchains[name] = _toolchain(step)
        toolchain = self._toolchains[name]
        return StageKey(
            stage=step.stage.value,
            code=toolchain.code,
            versions=toolchain.versions,
            inputs={role: _identity(step, ref) for role, ref in inputs.items()},
            params=step.params.model_dump(mode="json"),
        )

    def find(self, step: Step, inputs: Mapping[str, ArtifactRef]) -> StepResult | None:
        """The step's result from the ledger, where there is one and all of its outputs are sound."""
        return self._find(step, self.key(step, inputs))

    def settle(
        self,
        model: PlannedModel,
        step: Step,
        inputs: Mapping[str, ArtifactRef],
        *,
        starting: Callable[[], None] = lambda: None,
        progressed: Progressed = unheard,
    ) -> StepResult:
        """Finds the step's result, or makes it.

        Of several callers with equal keys, in this process or in others that use the store, one runs the stage and the
        others wait and find the result.

        Args:
            model: the model.
            step: one of its steps.
            inputs: role to artifact.
            starting: called once it is known that there is no result yet.
            progressed: told how far the stage is, where it says so.

        Raises:
            StageError: the stage failed.
            StoreError: an input is gone or damaged, or the store cannot be used.
        """
        key = self.key(step, inputs)
        if found := self._find(step, key):
            return found
        starting()
        with self.store.leases.hold(key.digest()):
            if found := self._find(step, key):
                return found
            for ref in inputs.values():
                self.store.fetch(ref)
            return self._make(model, step, key, inputs, progressed)

    def _find(self, step: Step, key: StageKey) -> StepResult | None:
        record = self._sound_record(key.digest())
        return None if record is None else _result(step, key, record, cached=True)

    def _sound_record(self, key: Digest) -> StageRecord | None:
        record = self.store.ledger.lookup(key)
        if record is None or not all(self.store.has(ref) for ref in record.outputs.values()):
            return None
        return record

    def _make(
        self,
        model: PlannedModel,
        step: Step,
        key: StageKey,
        inputs: Mapping[str, ArtifactRef],
        progressed: Progressed,
    ) -> StepResult:
        call = StageCall(
            stage=step.stage,
            inputs=inputs,
            params=step.params,
            store=self.store.local.root,
            folder=model.folder,
            python_path=model.python_path,
            program_file=model.program_file,
        )
        started = time.perf_counter()
        if step.isolated:
            limits = WorkerLimits(timeout=model.limits.timeout, memory=model.limits.memory)
            path = tuple(map(str, model.python_path))
            report = self._workers.run(_ENTRY, call.to_json(), limits, python_path=path, progressed=progressed)
            outputs = {role: ArtifactRef.from_json(ref) for role, ref in report.result.items()}
            seconds, peak, log = report.seconds, report.peak_memory, self._publish_log(report.log)
        else:
            outputs, peak, log = _run_here(call), 0, None
            seconds = time.perf_counter() - started
        self._publish(outputs)
        if isinstance(step.params, MethodParams):
            step, key = self._watch(model, step, key, outputs["observed"])
        return self._commit(step, key, outputs, seconds, peak, log)

    def adopt(
        self, step: Step, inputs: Mapping[str, ArtifactRef], outputs: Mapping[str, ArtifactRef], seconds: float
    ) -> StepResult:
        """Files what the caller has made itself as the result of a step, as if its stage had just run."""
        self._publish(outputs)
        return self._commit(step, self.key(step, inputs), outputs, seconds, 0, None)

    def _publish(self, outputs: Mapping[str, ArtifactRef]) -> None:
        for ref in outputs.values():
            self.store.publish(ref)

    def _commit(
        self,
        step: Step,
        key: StageKey,
        outputs: Mapping[str, ArtifactRef],
        seconds: float,
        peak: int,
        log: BlobRef | None,
    ) -> StepResult:
        record = StageRecord(
            key=key.digest(),
            fields=key.fields(),
            outputs=outputs,
            seconds=seconds,
            peak_memory=peak,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            log=log,
        )
        self.store.ledger.commit(record)
        return _result(step, key, record, cached=False)

    def _publish_log(self, content: bytes) -> BlobRef:
        log = self.store.local.put_artifact("log", content)
        self.store.publish(log)
        return log.root

    def _watch(self, model: PlannedModel, step: Step, key: StageKey, observed: ArtifactRef) -> tuple[Step, StageKey]:
        """Files the result under a key that covers what really was loaded."""
        ledger = self.store.ledger
        loaded = json.loads(self.store.local.read_artifact(observed))
        params = watch(model, step, loaded, ledger)
        if params == step.params:
            return step, key
        step = replace(step, params=params)
        return step, self.key(step, {})


def _toolchain(step: Step) -> _Toolchain:
    """Takes milliseconds, since it reads what is installed: to be kept for the time of a run."""
    modules, distributions = [step.stage.kind.module], list(step.distributions)
    for name in dict.fromkeys(each.name for each in step.targets):
        distributions += find_target_class(name).distributions
        modules += [find_target_class(link).__module__ for link in link_names(name)]
    return _Toolchain(
        code=digest_json([stage_code_digest(module) for module in modules]),
        versions={"python": platform.python_version(), **distribution_versions(distributions)},
    )


def _identity(step: Step, ref: ArtifactRef) -> Digest:
    """A program's identity leaves out stack traces, so where they are told its stored bytes count instead."""
    options = step.params.options if isinstance(step.params, CompileParams) else None
    emits_traces = options is not None and (options.emit_stacktrace or options.generate_etrecord)
    return ref.root.digest if emits_traces or step.stage is StageName.BISECT else ref.identity


def slot(model: str, step: Step) -> str:
    """The name under which the ledger remembers a step's last key."""
    return f"{model}/{step.name}"


def _result(step: Step, key: StageKey, record: StageRecord, *, cached: bool) -> StepResult:
    return StepResult(step, key, record.outputs, cached, record.seconds, record.peak_memory)


def _run_here(call: StageCall) -> dict[str, ArtifactRef]:
    importlib.import_module(call.stage.kind.module)
    try:
        return dict(run_call(call))
    except StageError:
        raise
    except (PteforgeError, OSError, ValueError) as error:
        raise StageFailed(f"{type(error).__name__}: {error}") from error
