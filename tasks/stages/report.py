"""report: the provenance that is written beside every produced file."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...artifacts.digest import canonical_json
from ...artifacts.pte.pieces import payload_sha256, write_payload
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ..params import ReportParams
from ..stage import Workspace

FORMAT = 1


def run(inputs: Mapping[str, ArtifactRef], params: ReportParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `file`, `figures` and `examples/<method>`; gives `provenance` (report/provenance), JSON.

    It says nothing of when, where or how long: equal work has equal provenance.
    """
    path = work.scratch / "model.pte"
    write_payload(inputs["file"], work.store, path)
    pte = open_pte(path)
    provenance = {
        "format": FORMAT,
        "model": params.model,
        "recipe": params.recipe,
        "target": params.target.model_dump(mode="json"),
        "file": {
            "sha256": payload_sha256(inputs["file"], work.store),
            "size": pte.size,
            "methods": sorted(method.name for method in pte.methods),
            "backends": sorted(pte.backends),
        },
        "toolchain": params.versions,
        "stage_keys": params.stage_keys,
        "artifacts": {role: ref.to_json() for role, ref in sorted(inputs.items())},
        "verification": {
            "bounds": params.bounds.model_dump(mode="json"),
            "figures": json.loads(work.store.read_artifact(inputs["figures"])),
        },
    }
    return {"provenance": work.store.put_artifact("report/provenance", canonical_json(provenance))}
