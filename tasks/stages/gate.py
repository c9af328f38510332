"""gate: whether a file's scores are what its recipe asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...artifacts.digest import canonical_json
from ...artifacts.ref import ArtifactRef
from ...errors import AccuracyMissed
from ..accuracy import AccuracyReport, Scores
from ..accuracy_params import GateParams
from ..stage import Workspace


def run(inputs: Mapping[str, ArtifactRef], params: GateParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `scores`, and eager's as `baseline` where they are compared, gives `accuracy` (report/accuracy).

    Raises:
        AccuracyMissed: a score is below a bound; it says which, and by how much.
    """
    report = AccuracyReport(
        evaluator=params.evaluator,
        floor=params.floor,
        max_drop=params.max_drop,
        eager=_read(inputs["baseline"], work).scores[0].score if "baseline" in inputs else None,
        file=_read(inputs["scores"], work),
    )
    if misses := report.misses():
        raise AccuracyMissed(f"evaluator {params.evaluator}: {'; '.join(misses)}")
    return {"accuracy": work.store.put_artifact("report/accuracy", canonical_json(report.to_json()))}


def _read(ref: ArtifactRef, work: Workspace) -> Scores:
    return Scores.from_json(json.loads(work.store.read_artifact(ref)))
