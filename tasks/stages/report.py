"""report: the provenance that is written next to every produced file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import Field

from ...artifacts.local_store import LocalStore
from ...configs.verification import VerifyBounds
from ...errors import SourceError
from ...formats.contract import Contract, read_needs
from ...formats.describe import planned_memory
from ...formats.nfat.container import is_fat, open_fat
from ...formats.pte.metadata import metadata_json, metadata_of
from ...formats.pte.reader import map_file, open_pte
from ..codecs.payload import asset_blobs, payload_sha256, write_delivered
from ..engine import kinds, stage
from ..results.figures import Figures, MemoryUse, Proof
from ..targets import TargetParams

FORMAT = 1


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
        # what each place says of itself, and why it cannot be reached, by name
        places: dict[str, tuple[str, str]] = Field(default_factory=dict)
        search: dict[str, Any] | None = None  # `FoundLayers`, where the recipe has a search

    class Inputs(stage.Roles):
        file: kinds.PteFile
        figures: kinds.Figures  # of `verify`
        examples: Mapping[str, kinds.Examples]  # by method, of `export`
        data: kinds.PtdFile | None = None  # its weights, where they are in a file of their own
        assets: kinds.Assets | None = None  # of `export`
        origin: kinds.Origin | None = None  # of `serialize`
        proofs: Mapping[str, kinds.Proof] = field(default_factory=dict)  # of `prove`, by ``PLACE/PAYLOAD``
        accuracy: kinds.Accuracy | None = None  # of `gate`
        numerics: kinds.Numerics | None = None  # of `ladder`
        searched: kinds.Searched | None = None  # of `search_inputs`
        quantization: Mapping[str, kinds.Quantization] = field(default_factory=dict)  # by method, of `quantize`
        # of `partition`, by payload and method: ``vulkan/forward``, or ``/forward`` of a plain file
        kept: Mapping[str, kinds.Kept] = field(default_factory=dict)
        delegation: Mapping[str, kinds.Delegation] = field(default_factory=dict)  # of `partition`, as `kept`
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
            "specializations": {name: made.model_dump(mode="json") for name, made in params.specializations.items()},
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
            "verification": {
                "bounds": params.bounds.model_dump(mode="json"),
                "figures": work.store.read_json(inputs.figures),
            },
        }
        provenance["memory"] = [use.to_json() for use in _memory(inputs, work.store, path, data_files)]
        if inputs.data:
            (data_file,) = data_files  # without it the file is not complete
            sha256 = payload_sha256(inputs.data, work.store)
            provenance["data"] = {"sha256": sha256, "size": data_file.stat().st_size}
        if inputs.assets:
            blobs = asset_blobs(inputs.assets, work.store)
            if clash := [name for name in blobs if name.startswith(f"{params.recipe}.")]:
                problem = f"has the name of a file of the recipe {params.recipe!r}: rename one"
                raise SourceError(f"the model's asset {clash[0]!r} {problem}")
            provenance["assets"] = {
                name: {"sha256": blob.digest, "size": blob.size} for name, blob in sorted(blobs.items())
            }
        ran = Figures.from_json(work.store.read_json(inputs.figures)).of_file
        run_on = params.versions.get("executorch", "") if ran else ""
        provenance["contract"] = Contract.of(read_needs(path, data_files), run_on=run_on).described()
        if metadata := metadata_of(pte, map_file(path)):
            provenance["metadata"] = metadata_json(metadata)
        provenance |= {name: value for name, value in _results(inputs, params, work.store, is_fat(pte)) if value}
        made = work.store.put_json("report/provenance", provenance)
        return Report.Outputs(provenance=made)


def _results(inputs: Report.Inputs, params: Report.Params, store: LocalStore, fat: bool) -> Iterator[tuple[str, Any]]:
    """What stages have found, by the name that the provenance has for it."""
    yield "search", params.search
    for name in ("accuracy", "numerics", "origin", "searched"):
        ref = getattr(inputs, name)
        yield name, ref and store.read_json(ref)
    yield "quantization", {method: store.read_json(ref) for method, ref in sorted(inputs.quantization.items())}
    yield "kept_on_cpu", [_named(key) | row for key, ref in sorted(inputs.kept.items()) for row in store.read_json(ref)]
    yield "delegation", [_named(key) | store.read_json(ref) for key, ref in sorted(inputs.delegation.items())]
    yield "places", [proof.to_json() for proof in _proofs(inputs, params, store, fat)]


def _named(key: str) -> dict[str, Any]:
    """Payload and method of an input."""
    return dict(zip(("payload", "method"), key.split("/", 1), strict=True))


def _proofs(inputs: Report.Inputs, params: Report.Params, store: LocalStore, fat: bool) -> Iterator[Proof]:
    """What came of each payload on each place."""
    for key, ref in sorted(inputs.proofs.items()):
        place, _, payload = key.partition("/")
        made = store.read_json(ref)
        figures = made["figures"] and {**made["figures"], "cases": []}
        of_place = {"place": place, "payload": payload, "about": params.places[place][0]}
        yield Proof.from_json({**of_place, **made, "figures": figures})
    for place, (about, unreachable) in params.places.items():
        reason = f"needs the place, which cannot be reached: {unreachable}"
        for payload in (sorted(params.specializations) if fat else [""]) if unreachable else ():
            yield Proof(place, payload, about, None, reason)


def _memory(inputs: Report.Inputs, store: LocalStore, path: Path, data_files: Sequence[Path]) -> Iterator[MemoryUse]:
    """What methods were measured to take, and planned memory of those that were not."""
    measured = set()
    for key, ref in sorted(inputs.proofs.items()):
        place, _, payload = key.partition("/")
        for found in store.read_json(ref).get("memory", ()):
            use = MemoryUse.from_json({**found, "place": place, "payload": payload})
            measured.add((payload, use.method))
            yield use
    for payload, method, planned in planned_memory(path, data_files):
        if (payload, method) not in measured:
            yield MemoryUse(payload, method, planned)


def _payloads(path: Path, data_files: Sequence[Path]) -> list[dict[str, Any]]:
    return [
        {"name": made.name, "sha256": made.sha256, "size": made.size, "backends": list(made.description.backends)}
        for made in open_fat(path, data_files).container.payloads
    ]
