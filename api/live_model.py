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
from ..tasks.params import ExportParams
from ..tasks.stages.export import export_built
from ..tasks.stages.fresh_state import fresh_state
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
        exports: by method, the first one first.
    """

    exports: Mapping[str, LiveExport]

    def export_params(self, method: str | None, watched: tuple[str, ...]) -> ExportParams:
        """Params that say what the export gave, in place of where it comes from."""
        del watched
        name = method or next(iter(self.exports))
        live = {role: ref.identity for role, ref in sorted(self.exports[name].outputs.items())}
        return ExportParams(source={"live": live}, method=method, drawn_inputs=self.drawn_inputs)


def export_methods(source: LiveSource, params: ExportParams, store: LocalStore) -> dict[str, LiveExport]:
    """Exports every method by the export stage's own code.

    Args:
        source: the model.
        params: of `export`; `source` and `method` do not count.
        store: takes the artifacts.

    Raises:
        SourceError: the example inputs do not fit the model, or it cannot be exported with its dynamic shapes.
    """
    exports = {}
    for method in source.definition.methods:
        started = time.perf_counter()
        with fresh_state():
            outputs = export_built(source.built(method), params.model_copy(update={"method": method}), store)
        exports[method] = LiveExport(outputs, time.perf_counter() - started)
    return exports


def with_exports(model: PlannedModel, exports: Mapping[str, LiveExport]) -> LiveModel:
    """The model with its methods exported."""
    return LiveModel(
        name=model.name,
        config=model.config,
        recipes=model.recipes,
        drawn_inputs=model.drawn_inputs,
        python_path=model.python_path,
        folder=model.folder,
        exports=exports,
    )
