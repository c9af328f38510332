"""A model whose methods have been exported in this process, as plans take it.

The flow's key of `export` is made from the source code of a builder. A live module has none, so it is exported each
time, and the key says what that gave: the identities of its outputs. Later keys hold those same identities and nothing
else of the export, so that a model that both the flow and a caller lower is lowered once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..artifacts.local_store import LocalStore
from ..artifacts.programs.codec import load_program
from ..artifacts.programs.values import count_values
from ..artifacts.ref import ArtifactRef
from ..errors import PteforgeError, StageFailed
from ..tasks.accuracy_params import BaselineParams
from ..tasks.in_process import call_in_process
from ..tasks.model import PlannedModel
from ..tasks.source_params import CalibrationParams, ExportParams, MethodParams, SourceTransformParams
from ..tasks.stages.baseline import score_eager
from ..tasks.stages.calibration import flat_samples, save_samples
from ..tasks.stages.export import export_built
from ..tasks.stages.fresh_state import fresh_state
from ..tasks.stages.quantize import fitting
from ..tasks.stages.source import BuiltModel
from ..tasks.stages.source_transform import transform_built
from .source import LiveSource

_Params = TypeVar("_Params", bound=MethodParams)


@dataclass(frozen=True)
class LiveExport:
    """One exported method: role to artifact, as the export stage gives them, and how long it took."""

    outputs: Mapping[str, ArtifactRef]
    seconds: float


@dataclass(frozen=True)
class LiveSamples:
    """Samples of one method: the artifact as the calibration stage gives it, how many, and how long that took."""

    ref: ArtifactRef
    count: int
    seconds: float

    @property
    def outputs(self) -> Mapping[str, ArtifactRef]:
        """By role."""
        return {"samples": self.ref}


@dataclass(frozen=True, kw_only=True)
class LiveModel(PlannedModel):
    """A model that was handed over as an object.

    Attributes:
        source: the model itself.
        exports: by method, the first one first.
        samples: by method, of those whose samples were handed over too.
    """

    source: LiveSource
    exports: Mapping[str, LiveExport]
    samples: Mapping[str, LiveSamples]

    def export_params(self, method: str | None, watched: tuple[str, ...]) -> ExportParams:
        """Params that say what the export gave, in place of where it comes from."""
        del watched
        name = method or next(iter(self.exports))
        live = {"live": _identities(self.exports[name])}
        return ExportParams(source=live, method=method, strict=self.config.strict, drawn_inputs=self.drawn_inputs)

    def eager_source(self, exporting: ExportParams) -> Mapping[str, Any]:
        """What exporting every method gave."""
        del exporting
        return {"live": {method: _identities(each) for method, each in self.exports.items()}}

    def calibration_params(self) -> Mapping[str, CalibrationParams]:
        """Those of datasets, and where samples were handed over, what they are."""
        return {**super().calibration_params(), **{method: _params_of(each) for method, each in self.samples.items()}}

    def samples_of(self, params: CalibrationParams) -> LiveSamples | None:
        """What was handed over for these params; None for those of a dataset."""
        return next((each for each in self.samples.values() if _params_of(each) == params), None)


def _identities(export: LiveExport) -> dict[str, str]:
    return {role: ref.identity for role, ref in sorted(export.outputs.items())}


def _params_of(samples: LiveSamples) -> CalibrationParams:
    return CalibrationParams(source={"live": {"samples": samples.ref.identity}}, seed=0, samples=samples.count)


def live_model(
    model: PlannedModel, source: LiveSource, samples: Mapping[str, Iterable[Any]], store: LocalStore
) -> LiveModel:
    """Exports every method by the export stage's own code, and takes samples by the calibration stage's.

    Args:
        model: what is to be made of it.
        source: the model itself.
        samples: by method, each a tuple of positional inputs or the only input. They are taken one after another.
        store: takes the artifacts.

    Raises:
        SourceError: the example inputs or samples do not fit the model, or it cannot be exported with its dynamic
            shapes.
        StageFailed: it cannot be exported at all; the cause is what torch raised.
    """
    params = ExportParams(source={}, strict=model.config.strict, drawn_inputs=model.drawn_inputs)
    exports = {}
    for method in source.definition.methods:
        exports[method] = _timed(method, export_built, source, params.model_copy(update={"method": method}), store)
    return LiveModel(
        name=model.name,
        config=model.config,
        recipes=model.recipes,
        drawn_inputs=model.drawn_inputs,
        python_path=model.python_path,
        folder=model.folder,
        source=source,
        exports=exports,
        samples={method: _take(method, given, exports[method], store) for method, given in samples.items()},
    )


def _take(method: str, given: Iterable[Any], export: LiveExport, store: LocalStore) -> LiveSamples:
    started = time.perf_counter()
    what = f"calibration of method {method!r}"
    program = load_program(export.outputs["program"], store)
    ref = save_samples(what, fitting(program, flat_samples(what, given)), store)
    return LiveSamples(ref, count_values(ref, store), time.perf_counter() - started)


def score_model(model: LiveModel, params: BaselineParams, store: LocalStore) -> tuple[dict[str, ArtifactRef], float]:
    """Scores a copy of the eager model by the baseline stage's own code; gives its outputs, and how long it took.

    Raises:
        StageFailed: the evaluator fails.
    """
    return call_in_process(lambda: score_eager(model.source.fresh(), model.source.programs, params, store))


def transform_method(model: LiveModel, params: SourceTransformParams, store: LocalStore) -> LiveExport:
    """Transforms a copy of a method's module and exports it, by the stage's own code: its key tells nothing of modules.

    Raises:
        SourceError: a callable fails, or the model was exported already.
        TargetError: torchao cannot do what a transform asks for, or it matches no layer of any method.
        StageFailed: it cannot be exported; the cause is what torch raised.
    """
    return _timed(str(params.method), transform_built, model.source, params, store)


def _timed(
    method: str,
    body: Callable[[BuiltModel, _Params, LocalStore], dict[str, ArtifactRef]],
    source: LiveSource,
    params: _Params,
    store: LocalStore,
) -> LiveExport:
    started = time.perf_counter()
    with fresh_state():
        try:
            outputs = body(source.built(method), params, store)
        except PteforgeError:
            raise
        except Exception as error:
            raise StageFailed(f"method {method!r} cannot be exported: {type(error).__name__}: {error}") from error
    return LiveExport(outputs, time.perf_counter() - started)
