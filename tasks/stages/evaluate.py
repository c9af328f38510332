"""evaluate: how the produced file scores on the ExecuTorch runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from executorch.runtime import Method
from torch.utils import _pytree as pytree

from ...artifacts.digest import canonical_json
from ...artifacts.ref import ArtifactRef
from ...errors import PteforgeError, SourceError
from ..accuracy import Score, Scores
from ..accuracy_params import EvaluateParams
from ..stage import Workspace
from .delivery import write_delivered
from .loadable import Loadable
from .runnable import runnable_payloads
from .scoring import Predict, as_returned, score, shown_inputs


def run(inputs: Mapping[str, ArtifactRef], params: EvaluateParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `file` and, where there is one, `data`, gives `scores` (report/scores).

    Of a fat file every payload is scored whose backends this machine's runtime has.

    Raises:
        SourceError: the evaluator fails.
        PteforgeError: the runtime cannot load or run the file.
    """
    path, data_files = write_delivered(inputs, work)
    os.chdir(work.folder)
    scores: list[Score] = []
    not_run: dict[str, str] = {}
    for name, payload in runnable_payloads(path, data_files, not_run):
        what = f"payload {name!r}" if name else "the produced file"
        found = score(params.evaluator, _loaded(payload, what), what, seed=params.seed)
        scores.append(Score(name, found))
    made = Scores(tuple(scores), not_run)
    return {"scores": work.store.put_artifact("report/scores", canonical_json(made.to_json()))}


def _loaded(payload: Loadable, what: str) -> Predict:
    """Each method is loaded once, as on a device."""
    try:
        program = payload.load()
    except RuntimeError as error:
        raise PteforgeError(f"the runtime cannot load {what}: {error}") from error
    methods: dict[str, Method] = {}

    def predict(*inputs: Any, method: str = "forward") -> Any:
        if method not in program.method_names:
            raise SourceError(f"the evaluator runs the method {method!r}; {what} has {sorted(program.method_names)}")
        try:
            if method not in methods:
                methods[method] = program.load_method(method)
            outputs = methods[method].execute(pytree.tree_leaves(inputs))
        except RuntimeError as error:
            raise PteforgeError(
                f"the runtime cannot run method {method!r} of {what} on {shown_inputs(inputs)}: {error}"
            ) from error
        return as_returned(outputs)

    return predict
