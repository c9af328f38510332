"""gate: compares a file's scores with the bounds of its recipe."""

from __future__ import annotations

from ....artifacts.ref import ArtifactRef
from ....errors import AccuracyMissed
from ...engine import kinds, stage
from ...results.accuracy import AccuracyReport, Scores


class Gate(stage.Stage, name="gate"):
    """The only stage that reads the bounds, so changing a bound does not re-run the evaluator."""

    isolated = False
    distributions = ()

    class Params(stage.Params):
        evaluator: str  # its name, for messages
        floor: float | None  # least allowed score, if any
        max_drop: float | None  # how far scores may be below eager's, if that is bounded
        keep: float | None = None  # least share of eager's score, if that is bounded

    class Inputs(stage.Roles):
        scores: kinds.Scores
        baseline: kinds.Scores | None = None  # of `baseline`, where they are compared with eager's

    class Outputs(stage.Roles):
        accuracy: kinds.Finding

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Compares the scores with the bounds; raises AccuracyMissed, which names each miss, and by how much."""
        report = judge(params, _read(inputs.scores, work), _read(inputs.baseline, work) if inputs.baseline else None)
        if misses := report.misses():
            raise AccuracyMissed(f"evaluator {params.evaluator}: {'; '.join(misses)}")
        return Gate.Outputs(accuracy=work.store.put_json("finding", report.to_json()))


def judge(bounds: Gate.Params, file: Scores, eager: Scores | None) -> AccuracyReport:
    """The scores with the bounds that they have to meet."""
    baseline = eager.scores[0].score if eager else None
    return AccuracyReport(bounds.evaluator, bounds.floor, bounds.max_drop, baseline, file, bounds.keep)


def _read(ref: ArtifactRef, work: stage.Workspace) -> Scores:
    return Scores.from_json(work.store.read_json(ref))
