"""baseline: how the eager model scores, which produced files are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...artifacts.digest import canonical_json
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError
from ..accuracy import Score, Scores
from ..accuracy_params import BaselineParams
from ..stage import Workspace
from .prepared import for_inference
from .scoring import Predict, as_returned, score, shown_inputs
from .source import BuiltModel, build_model


def run(inputs: Mapping[str, ArtifactRef], params: BaselineParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, gives `scores` (report/scores): one, of the model as `export` builds it.

    Raises:
        SourceError: the builder or the evaluator fails.
    """
    del inputs
    built = build_model(params.source, params.seed, work)
    found = score(params.evaluator, _eager(built), "the eager model", seed=params.seed)
    scores = Scores((Score("", found),), {})
    return {"scores": work.store.put_artifact("report/scores", canonical_json(scores.to_json()))}


def _eager(built: BuiltModel) -> Predict:
    definition = built.definition
    if built.program is None:
        for each in definition.methods.values():
            for_inference(each.module)

    def predict(*inputs: Any, method: str = "forward") -> Any:
        if method in definition.constant_methods:
            return as_returned(pytree.tree_leaves(definition.constant_methods[method]))
        if method not in definition.methods:
            known = [*definition.methods, *definition.constant_methods]
            raise SourceError(f"the evaluator runs the method {method!r}; the model has {known}")
        try:
            with torch.no_grad():
                outputs = definition.methods[method].module(*inputs)
        except Exception as error:
            raise SourceError(
                f"the eager model does not take what the evaluator gives method {method!r}, "
                f"{shown_inputs(inputs)}: {type(error).__name__}: {error}"
            ) from error
        return as_returned(pytree.tree_leaves(outputs))

    return predict
