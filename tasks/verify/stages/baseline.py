"""baseline: the score of the eager model, which produced files are compared with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ....artifacts.local_store import LocalStore
from ....configs.model import ModelDefinition
from ...engine import kinds, stage
from ...results.accuracy import Score, Scores


class Baseline(stage.Stage, name="baseline"):
    """Does not depend on the recipe, so recipes share it."""

    class Params(stage.Params):
        source: dict[str, Any]  # key fields of the model's source (see `tasks.engine.keys.source`)
        evaluator: dict[str, Any]  # key fields of the evaluator: its code, arguments and files
        seed: int  # seeds torch, numpy and random before the builder runs and before the evaluator does
        host: str = ""  # CPU capability of the machine, since eager's figures depend on it

    class Inputs(stage.Roles):
        """None: the model is built as `export` builds it."""

    class Outputs(stage.Roles):
        scores: kinds.Scores

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Builds the model and scores it; raises SourceError if the builder or the evaluator fails."""
        from ...usercode.model_source import build_model

        del inputs
        built = build_model(params.source, params.seed, work)
        exported = () if built.program is None else built.definition.methods
        return score_built(built.definition, exported, params, work.store)


def score_built(
    definition: ModelDefinition, exported: Collection[str], params: Baseline.Params, store: LocalStore
) -> Baseline.Outputs:
    """Scores a model that has been built; raises SourceError if the evaluator fails."""
    from ...usercode.modules import for_inference
    from ..scoring import eager_predict, score

    for name, method in definition.methods.items():
        if name not in exported:
            for_inference(method.module)
    value = score(params.evaluator, eager_predict(definition), "the eager model", seed=params.seed)
    scores = Scores((Score("", value),), {})
    return Baseline.Outputs(scores=store.put_json("report/scores", scores.to_json()))
