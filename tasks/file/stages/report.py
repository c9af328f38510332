"""report: the provenance that is written next to every produced file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import Field

from ....configs.places import HOST
from ....configs.verification import VerifyBounds
from ....errors import SourceError
from ....formats.contract import Contract, read_needs
from ....formats.describe import planned_memory
from ....formats.nfat.container import is_fat, open_fat
from ....formats.pte.metadata import metadata_json, metadata_of
from ....formats.pte.reader import map_file, open_pte
from ...engine import kinds, stage
from ...programs.payload import asset_blobs, payload_sha256, write_delivered
from ...results.costs import MemoryUse
from ...results.figures import Figures, Proof
from ...results.finding import from_json, read_findings, to_json
from ...targets import TargetParams

FORMAT = 2


class Report(stage.Stage, name="report"):
    """Holds no times and no machine, so that equal work has equal provenance."""

    isolated = False
    distributions = ()

    class Params(stage.Params):
        model: str
        recipe: str
        specializations: dict[str, TargetParams]  # the targets, by payload name
        left_out: tuple[str, ...] = ()  # names of specializations that could not be made and were not required
        stage_keys: dict[str, str]  # step name to stage key
        versions: dict[str, str]  # distribution to version
        bounds: VerifyBounds
        unreachable: dict[str, str] = Field(default_factory=dict)  # why places cannot be reached, by name
        findings: dict[str, Any] = Field(default_factory=dict)  # of the lowering itself, by role

    class Inputs(stage.Roles):
        file: kinds.PteFile
        examples: Mapping[str, kinds.Examples]  # by method, of `export`
        data: kinds.PtdFile | None = None  # its weights, where they are in a file of their own
        assets: kinds.Assets | None = None  # of `export`
        origin: kinds.OriginOfFile | None = None  # of `serialize`
        # of all stages, by role, payload and what else they are about: ``proofs/vulkan/phone``
        findings: Mapping[str, kinds.Finding] = field(default_factory=dict)
        # of `compile`, by payload; that of a plain file has the key ``""``. The next three are alike.
        etrecord: Mapping[str, kinds.EtRecord] = field(default_factory=dict)
        debug_handles: Mapping[str, kinds.DebugHandles] = field(default_factory=dict)
        delegate_map: Mapping[str, kinds.DelegateMap] = field(default_factory=dict)
        debug_sources: Mapping[str, kinds.DebugSources] = field(default_factory=dict)

    class Outputs(stage.Roles):
        provenance: kinds.Provenance

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Writes the provenance; raises SourceError for an asset with the name of a file of the recipe."""
        path, data_files = write_delivered(inputs.file, inputs.data, work)
        pte = open_pte(path)
        provenance = {
            "format": FORMAT,
            "model": params.model,
            "recipe": params.recipe,
            "specializations": {name: spec.model_dump(mode="json") for name, spec in params.specializations.items()},
            "left_out": list(params.left_out),
            "file": {
                "sha256": payload_sha256(inputs.file, work.store),
                "size": pte.size,
                "methods": sorted(method.name for method in pte.methods),
                "backends": sorted(pte.backends),
                "payloads": _payloads(path, data_files) if is_fat(pte) else [],
            },
            "data": None,
            "toolchain": params.versions,
            "stage_keys": params.stage_keys,
            "artifacts": {role: ref.to_json() for role, ref in sorted(stage.to_roles(inputs).items())},
            "bounds": params.bounds.model_dump(mode="json"),
        }
        if inputs.data:
            (data_file,) = data_files  # without it the file is not complete
            sha256 = payload_sha256(inputs.data, work.store)
            provenance["data"] = {"sha256": sha256, "size": data_file.stat().st_size}
        if inputs.assets:
            blobs = asset_blobs(inputs.assets, work.store)
            own = f"{params.recipe}.h"
            if clash := [name for name in blobs if name.startswith(f"{params.recipe}.") and name != own]:
                problem = f"has the name of a file of the recipe {params.recipe!r}: rename one"
                raise SourceError(f"the model's asset {clash[0]!r} {problem}")
            in_order = sorted(blobs.items())
            provenance["assets"] = {name: {"sha256": blob.digest, "size": blob.size} for name, blob in in_order}
        findings = [*from_json(params.findings), *read_findings(inputs.findings, work.store.read_json)]
        ran = any(isinstance(finding, Figures) and finding.of_file and finding.by == HOST for finding in findings)
        run_on = params.versions.get("executorch", "") if ran else ""
        provenance["contract"] = Contract.of(read_needs(path, data_files), run_on=run_on).described()
        if metadata := metadata_of(pte, map_file(path)):
            provenance["metadata"] = metadata_json(metadata)
        if inputs.origin:
            provenance["origin"] = work.store.read_json(inputs.origin)
        measured = {(use.payload, use.method) for use in findings if isinstance(use, MemoryUse)}
        for place, problem in params.unreachable.items():
            why = f"needs the place, which cannot be reached: {problem}"
            payloads = sorted(params.specializations) if is_fat(pte) else [""]
            findings += [Proof(place, payload, "", None, why) for payload in payloads]
        for payload, method, planned in planned_memory(path, data_files):
            if (payload, method) not in measured:
                findings.append(MemoryUse(payload, method, planned))
        provenance["findings"] = to_json(findings)
        return Report.Outputs(provenance=work.store.put_json("report/provenance", provenance))


def _payloads(path: Path, data_files: Sequence[Path]) -> list[dict[str, Any]]:
    payloads = open_fat(path, data_files).container.payloads
    return [
        {"name": item.name, "sha256": item.sha256, "size": item.size, "backends": list(item.description.backends)}
        for item in payloads
    ]
