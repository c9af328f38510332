"""Runs the stages of a model in the caller's memory, in the calling process.

A stage that needs the model itself has no source code for its key. It runs each time, and its key consists of the
identities of its outputs. Later keys contain those identities and nothing else of the model, so a model that is both
in a zoo and in memory is lowered once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import PteforgeError, StageFailed
from ..tasks.codecs.program import load_program
from ..tasks.codecs.values import count_values
from ..tasks.engine.executor import Executor
from ..tasks.engine.runner import Done, EngineRunner, StageCall
from ..tasks.engine.stage import Params, to_roles
from ..tasks.engine.workers import InProcess, as_in_a_process
from ..tasks.quantize.samples import checked_samples, flat_samples, save_samples
from ..tasks.stages.baseline import Baseline, score_built
from ..tasks.stages.calibration import Calibration
from ..tasks.stages.diagnose import Diagnose, diagnose_built
from ..tasks.stages.export import Export, export_built
from ..tasks.stages.source_transform import SourceTransform, transform_built
from .source import LiveSource

one_at_a_time = threading.Lock()  # torch and ExecuTorch cannot trace or lower in two threads at once

Outputs = Mapping[str, ArtifactRef]

_EACH_TIME = "nothing changed; a model in memory is exported each time"


class LiveRunner(EngineRunner):
    """Runs calls that need the model with the model in memory; finds or runs all others as usual.

    Stages run one after another in the calling thread, where Ctrl-C ends them at once. Needs no event loop.
    """

    def __init__(self, store: Store, source: LiveSource, samples: Mapping[str, Iterable[Any]]) -> None:
        """A runner for one model; `samples` is calibration data by method: tuples of inputs, or single inputs."""
        self._executor = Executor(store, InProcess())
        super().__init__(self._executor)
        self._source = source
        self._samples = samples
        self._exports: dict[str, Outputs] = {}
        self._observed: dict[str, ArtifactRef] = {}  # method name to the program that quantizers observe

    async def __call__(self, call: StageCall) -> Done:
        """Runs the stage here.

        Raises:
            SourceError: the example inputs, samples or dynamic shapes do not fit the model.
            StageFailed: a stage failed; the cause is what it raised.
        """
        match call.stage.name:
            case Export.name:
                return self._export(call)
            case Diagnose.name:
                return self._diagnose(call)
            case SourceTransform.name:
                return self._transform(call)
            case Calibration.name if call.id.method in self._samples:
                return self._take_samples(call)
            case Baseline.name:
                return self._score(call)
        return self._executor.run(call)

    def _export(self, call: StageCall) -> Done:
        method = call.id.method or next(iter(self._source.definition.methods))
        outputs, seconds = self._build(method, export_built, call.params.model_copy(update={"method": method}))
        self._exports[method] = outputs
        self._observed[method] = outputs["program"]
        return self._adopt(call, {"live": _identities(outputs)}, outputs, seconds)

    def _diagnose(self, call: StageCall) -> Done:
        method = call.id.method or next(iter(self._source.definition.methods))
        outputs, seconds = self._build(method, diagnose_built, call.params.model_copy(update={"method": method}))
        return self._adopt(call, {"live": _identities(outputs)}, outputs, seconds)

    def _transform(self, call: StageCall) -> Done:
        method, source = call.id.method, {"live": _identities(self._exports[call.id.method])}
        outputs, seconds = self._build(method, transform_built, call.params.model_copy(update={"source": source}))
        self._observed[method] = outputs["program"]
        return self._adopt(call, source, outputs, seconds)

    def _build(self, method: str, body: Callable[..., Any], params: Params) -> tuple[Outputs, float]:
        try:
            return _unwrapped(lambda: to_roles(body(self._source.built(method), params, self.store.local)))
        except StageFailed as error:
            raise StageFailed(f"method {method!r} cannot be exported: {error}") from error.__cause__

    def _take_samples(self, call: StageCall) -> Done:
        method, local = call.id.method, self.store.local
        name = f"calibration of method {method!r}"

        def take() -> Outputs:
            program = load_program(self._observed[method], local)
            samples = checked_samples(program, flat_samples(name, self._samples[method]))
            return {"samples": save_samples(name, samples, local)}

        outputs, seconds = _unwrapped(take)
        ref = outputs["samples"]
        params = Calibration.Params(
            source={"live": {"samples": ref.identity}}, seed=0, samples=count_values(ref, local)
        )
        return self._executor.adopt(replace(call, params=params), outputs, seconds, reason=_EACH_TIME)

    def _score(self, call: StageCall) -> Done:
        source = {"live": {method: _identities(outputs) for method, outputs in self._exports.items()}}
        params = call.params.model_copy(update={"source": source})
        call = replace(call, params=params)
        if found := self._executor.find(call):
            return found
        model, began = self._source, time.perf_counter()
        with as_in_a_process():
            outputs = to_roles(score_built(model.fresh(), model.programs, params, self.store.local))
        return self._executor.adopt(call, outputs, time.perf_counter() - began)

    def _adopt(self, call: StageCall, source: Mapping[str, Any], outputs: Outputs, seconds: float) -> Done:
        params = call.params.model_copy(update={"source": source})
        return self._executor.adopt(replace(call, params=params), outputs, seconds, reason=_EACH_TIME)


def _identities(outputs: Outputs) -> dict[str, str]:
    return {role: ref.identity for role, ref in sorted(outputs.items())}


def _unwrapped(body: Callable[[], Outputs]) -> tuple[Outputs, float]:
    """Calls a body; errors of ours are raised as they are, since the caller gave what they are about."""
    began = time.perf_counter()
    try:
        with as_in_a_process():
            return body(), time.perf_counter() - began
    except StageFailed as error:
        if isinstance(error.__cause__, PteforgeError):
            raise error.__cause__ from None
        raise
