"""A model whose methods have been exported in this process, as plans take it.

The flow's key of `export` is made from the source code of a builder. A live module has none, so it is exported each
time, and the key says what that gave: the identities of its outputs. Later keys hold those same identities and nothing
else of the export, so that a model that both the flow and a caller lower is lowered once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..artifacts.local_store import LocalStore
from ..artifacts.ref import ArtifactRef
from ..tasks.model import PlannedModel
from ..tasks.source_params import ExportParams, SourceTransformParams
from ..tasks.stages.export import export_built
from ..tasks.stages.fresh_state import fresh_state
from ..tasks.stages.source_transform import transform_built
from .source import LiveSource


@dataclass(frozen=True)
class LiveExport:
    """One exported method: role to artifact, as the export stage gives them, and how long it took."""

    outputs: Mapping[str, ArtifactRef]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LiveModel(PlannedModel):
    """A model that was handed over as an object.

    Attributes:
        source: the model itself.
        exports: by method, the first one first.
    """

    source: LiveSource
    exports: Mapping[str, LiveExport]

    def export_params(self, method: str | None, watched: tuple[str, ...]) -> ExportParams:
        """Params that say what the export gave, in place of where it comes from."""
        del watched
        name = method or next(iter(self.exports))
        live = {role: ref.identity for role, ref in sorted(self.exports[name].outputs.items())}
        return ExportParams(
            source={"live": live}, method=method, strict=self.config.strict, drawn_inputs=self.drawn_inputs
        )


def live_model(model: PlannedModel, source: LiveSource, store: LocalStore) -> LiveModel:
    """Exports every method by the export stage's own code.

    Args:
        model: what is to be made of it.
        source: the model itself.
        store: takes the artifacts.

    Raises:
        SourceError: the example inputs do not fit the model, or it cannot be exported with its dynamic shapes.
    """
    params = ExportParams(source={}, strict=model.config.strict, drawn_inputs=model.drawn_inputs)
    exports = {}
    for method in source.definition.methods:
        started = time.perf_counter()
        with fresh_state():
            outputs = export_built(source.built(method), params.model_copy(update={"method": method}), store)
        exports[method] = LiveExport(outputs, time.perf_counter() - started)
    return LiveModel(
        name=model.name,
        config=model.config,
        recipes=model.recipes,
        drawn_inputs=model.drawn_inputs,
        python_path=model.python_path,
        folder=model.folder,
        source=source,
        exports=exports,
    )


def transform_method(model: LiveModel, params: SourceTransformParams, store: LocalStore) -> LiveExport:
    """Transforms a copy of a method's module and exports it, by the stage's own code: its key tells nothing of modules.

    Raises:
        SourceError: a callable fails, or the model was exported already.
        TargetError: torchao cannot do what a transform asks for, or it matches no layer of any method.
    """
    started = time.perf_counter()
    with fresh_state():
        outputs = transform_built(model.source.built(str(params.method)), params, store)
    return LiveExport(outputs, time.perf_counter() - started)
