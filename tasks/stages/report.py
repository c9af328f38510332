"""report: the provenance that is written beside every produced file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...artifacts.digest import canonical_json
from ...artifacts.nfat.fat_file import is_fat, open_fat
from ...artifacts.pte.pieces import payload_sha256
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ..params import ReportParams
from ..stage import Workspace
from .delivery import write_delivered

FORMAT = 1


def run(inputs: Mapping[str, ArtifactRef], params: ReportParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `file`, `figures`, `examples/<method>`, perhaps `data`, `accuracy`, `numerics`; gives `provenance`, JSON.

    Of what is made for debugging it takes all, and says which artifacts those are.
    It says nothing of when, where or how long: equal work has equal provenance.
    """
    path, data_files = write_delivered(inputs, work)
    pte = open_pte(path)
    provenance = {
        "format": FORMAT,
        "model": params.model,
        "recipe": params.recipe,
        "specializations": {name: target.model_dump(mode="json") for name, target in params.specializations.items()},
        "left_out": list(params.left_out),
        "file": {
            "sha256": payload_sha256(inputs["file"], work.store),
            "size": pte.size,
            "methods": sorted(method.name for method in pte.methods),
            "backends": sorted(pte.backends),
            "payloads": _payloads(path, data_files) if is_fat(pte) else [],
        },
        "data": _data(inputs["data"], data_files, work) if "data" in inputs else None,
        "toolchain": params.versions,
        "stage_keys": params.stage_keys,
        "artifacts": {role: ref.to_json() for role, ref in sorted(inputs.items())},
        "verification": {
            "bounds": params.bounds.model_dump(mode="json"),
            "figures": json.loads(work.store.read_artifact(inputs["figures"])),
        },
    }
    for role in ("accuracy", "numerics"):
        if role in inputs:
            provenance[role] = json.loads(work.store.read_artifact(inputs[role]))
    return {"provenance": work.store.put_artifact("report/provenance", canonical_json(provenance))}


def _data(ref: ArtifactRef, files: Sequence[Path], work: Workspace) -> dict[str, Any]:
    """Of the `.ptd`, without which the file is not complete."""
    (path,) = files
    return {"sha256": payload_sha256(ref, work.store), "size": path.stat().st_size}


def _payloads(path: Path, data_files: Sequence[Path]) -> list[dict[str, Any]]:
    return [
        {
            "name": payload.name,
            "sha256": payload.sha256,
            "size": payload.size,
            "backends": list(payload.description.backends),
        }
        for payload in open_fat(path, data_files).container.payloads
    ]
