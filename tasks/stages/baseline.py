"""baseline: how the eager model scores, which produced files are compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...artifacts.digest import canonical_json
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...configs.definition import ModelDefinition
from ...errors import SourceError
from ..accuracy import Score, Scores
from ..accuracy_params import BaselineParams
from ..stage import Workspace
from .prepared import for_inference
from .scoring import Predict, as_returned, score, shown_inputs
from .source import build_model


def run(inputs: Mapping[str, ArtifactRef], params: BaselineParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, gives `scores` (report/scores): one, of the model as `export` builds it.

    Raises:
        SourceError: the builder or the evaluator fails.
    """
    del inputs
    built = build_model(params.source, params.seed, work)
    return score_eager(built.definition, () if built.program is None else built.definition.methods, params, work.store)


def score_eager(
    definition: ModelDefinition, exported: Collection[str], params: BaselineParams, store: LocalStore
) -> dict[str, ArtifactRef]:
    """Scores a model that is there already; gives what `run` gives.

    Args:
        definition: the model, whose modules are run as they are and keep what that changes.
        exported: names of the methods that come as exported programs, which cannot be put into inference mode.
        params: the evaluator.
        store: takes the artifact.

    Raises:
        SourceError: the evaluator fails.
    """
    for name, each in definition.methods.items():
        if name not in exported:
            for_inference(each.module)
    found = score(params.evaluator, _eager(definition), "the eager model", seed=params.seed)
    scores = Scores((Score("", found),), {})
    return {"scores": store.put_artifact("report/scores", canonical_json(scores.to_json()))}


def _eager(definition: ModelDefinition) -> Predict:

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
