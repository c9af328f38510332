"""evaluate: the score of the produced file on the ExecuTorch runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ...engine import kinds, stage
from ...programs.payload import write_delivered
from ...results.accuracy import Score, Scores


class Evaluate(stage.Stage, name="evaluate"):
    """Scores every payload of a fat file whose backends this machine's runtime has."""

    class Params(stage.Params):
        evaluator: dict[str, Any]  # its key fields (see `tasks.engine.keys.source`): code, arguments and files
        seed: int  # seeds torch, numpy and random before the evaluator runs
        host: str = ""  # CPU capability of the machine that the file runs on

    class Inputs(stage.Roles):
        file: kinds.PteFile
        data: kinds.PtdFile | None = None  # its weights, where they are in a file of their own
        # by method, of `edge`: run in its place if only Python has kernels of the target's operators
        edge: Mapping[str, kinds.EdgeProgram] = field(default_factory=dict)

    class Outputs(stage.Roles):
        scores: kinds.Scores

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Scores each payload; raises SourceError if the evaluator fails, PteforgeError if the runtime does."""
        from ....formats.pte.buckets import read_buckets
        from ....formats.pte.metadata import read_metadata
        from ..running import EdgePrograms, runnable_payloads
        from ..scoring import loaded_predict, score

        path, data_files = write_delivered(inputs.file, inputs.data, work)
        os.chdir(work.folder)
        buckets = read_buckets(read_metadata(path))
        scores: list[Score] = []
        not_run: dict[str, str] = {}
        edge = EdgePrograms(inputs.edge, work.store) if inputs.edge else None
        for name, payload in runnable_payloads(path, data_files, not_run, edge):
            what = f"payload {name!r}" if name else "the produced file"
            value = score(params.evaluator, loaded_predict(payload, what, buckets), what, seed=params.seed)
            scores.append(Score(name, value))
        every = Scores(tuple(scores), not_run)
        return Evaluate.Outputs(scores=work.store.put_json("report/scores", every.to_json()))
