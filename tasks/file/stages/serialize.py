"""serialize: writes the delivered file, and reads it back as a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from ....artifacts.digest import canonical_json, digest_bytes
from ....artifacts.ref import ArtifactRef
from ....configs.metadata import PROVENANCE, merged_metadata
from ....errors import SourceError
from ....formats.describe import planned_memory
from ....formats.nfat.container import is_fat, open_fat
from ....formats.pte.buckets import BUCKETS
from ....formats.pte.c_header import c_header
from ....formats.pte.contents import Shareable, size_entries
from ....formats.pte.reader import map_file, open_pte
from ...engine import kinds, stage
from ...programs.payload import (
    check_file,
    load_assets,
    load_packed,
    payload_sha256,
    save_assets,
    save_data_file,
    save_payload,
    write_payload,
)


class MetadataParams(stage.Params):
    """What the file says about the model, and how it is laid out."""

    # the zoo's `metadata` as it was written; it replaces what the model's source says
    written: dict[str, Any]
    # what the provenance digest is of, besides the payloads
    origin: dict[str, Any]
    segment_alignment: int  # in bytes
    delegate_alignment: int | None = None  # of delegate data in the program, in bytes, if it is not ExecuTorch's own


class Serialize(stage.Stage, name="serialize"):
    """The plain form without metadata is the payload itself; the fat form is a program of its own."""

    isolated = False
    distributions = ()

    class Params(stage.Params):
        # ``plain``, the payload is the file; ``fat``, the file has a container of payloads; ``header``, as plain
        form: Literal["plain", "fat", "header"]
        header: str = ""  # the name of the file whose array is in the header
        methods: tuple[str, ...]  # the methods that the file must have
        backends: tuple[str, ...]  # the runtime backends that it may need
        external_data: bool = False  # the weights go to a file of their own
        # None if neither the zoo nor the model's source says anything, no size varies, and there are no buckets
        metadata: MetadataParams | None = None

    class Inputs(stage.Roles):
        # for the plain form, the file; for the fat form, the payload whose signatures it takes over
        payload: kinds.PteFile
        assets: kinds.Assets | None = None  # of `export`, for the form with a header
        container: kinds.Container | None = None  # for the fat form, all payloads
        data: kinds.PtdFile | None = None  # the weights of a plain file that keeps them in a file of their own
        metadata: kinds.Metadata | None = None  # of `export`
        sizes: Mapping[str, kinds.Sizes] = field(default_factory=dict)  # of `export`, by method, where some may vary
        buckets: Mapping[str, kinds.Bucket] = field(default_factory=dict)  # of `export`, by method, of buckets only

    class Outputs(stage.Roles):
        file: kinds.PteFile
        data: kinds.PtdFile | None = None  # its weights, where they go to a file of their own
        assets: kinds.Assets | None = None  # with the header, where there is one
        origin: kinds.OriginOfFile | None = None  # what the digest in its metadata is of, if it has one

    @classmethod
    def runs_isolated(cls, params: Params) -> bool:
        """The fat form and metadata are written by ExecuTorch."""
        return params.form == "fat" or params.metadata is not None

    @classmethod
    def versions_of(cls, params: Params) -> tuple[str, ...]:
        """The plain form without metadata depends on no package."""
        return ("torch", "executorch") if cls.runs_isolated(params) else ()

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Writes the file; PteforgeError if it lacks a method, or needs a backend that its target does not name."""
        path, data_path = work.scratch / "model.pte", None
        shareable: Shareable = {}
        if params.form != "fat":
            write_payload(inputs.payload, work.store, path)
        else:
            data_path = work.scratch / "model.ptd" if params.external_data else None
            shareable = _write_fat(inputs, work, path, data_path)
        delivered, origin = _described(path, data_path, params.metadata, inputs, work)
        check_file(open_pte(delivered), methods=params.methods, backends=params.backends, what="the emitted file")
        file, data = inputs.payload, inputs.data if params.external_data else None
        if params.form == "fat" or delivered != path:
            file = save_payload(map_file(delivered), store=work.store, shareable=shareable)
        if data_path:
            data = save_data_file(map_file(data_path), work.store, shareable)
        assets = _with_header(delivered, params.header, inputs, work) if params.header else None
        return Serialize.Outputs(file=file, data=data, assets=assets, origin=origin)


def _with_header(path: Path, name: str, inputs: Serialize.Inputs, work: stage.Workspace) -> ArtifactRef:
    """The model's assets and the file's C header; raises SourceError if one of the assets has its name."""
    memory = [(method, sum(planned)) for _, method, planned in planned_memory(path, ())]
    assets = load_assets(inputs.assets, work.store) if inputs.assets else {}
    if (header := f"{Path(name).stem}.h") in assets:
        raise SourceError(f"the model's asset {header!r} has the name of the recipe's header: rename one")
    assets[header] = c_header(path.read_bytes(), name, memory).encode()
    return save_assets(assets, work.store)


def _write_fat(inputs: Serialize.Inputs, work: stage.Workspace, path: Path, data_path: Path | None) -> Shareable:
    """Writes the fat form; returns what its named data share with payloads. Removes the files it is made from."""
    from ...backend.file_programs import write_fat

    assert inputs.container is not None  # noqa: S101 - the fat form has one
    with work.store.scratch() as folder:
        packed = load_packed(inputs.container, work.store, folder)
        signature_path = folder / "signature.pte"
        write_payload(inputs.payload, work.store, signature_path)
        write_fat(packed, map_file(signature_path), path, data_path=data_path)
        return packed.shareable


def _described(
    path: Path, data_path: Path | None, params: MetadataParams | None, inputs: Serialize.Inputs, work: stage.Workspace
) -> tuple[Path, ArtifactRef | None]:
    """The file with its metadata, or the unchanged file if it has none; and what the digest in the metadata is of."""
    if params is None:
        return path, None
    from ...backend.file_programs import write_metadata

    of_source = work.store.read_json(inputs.metadata) if inputs.metadata else {}
    metadata = merged_metadata(params.written, of_source)
    entries, origin = metadata.entries(), None
    sizes = {method: work.store.read_json(ref) for method, ref in inputs.sizes.items()}
    buckets = {f"{BUCKETS}{method}": work.store.read_json(ref) for method, ref in inputs.buckets.items()}
    if not (entries or sizes or buckets):
        return path, None
    if entries and metadata.provenance:
        payloads = _payloads(path, data_path, inputs.payload, params.origin, work)
        content = canonical_json({**params.origin, "payloads": payloads})
        origin = work.store.put_artifact("report/origin", content)
        entries[PROVENANCE] = digest_bytes(content)
    described = work.scratch / "described.pte"
    write_metadata(
        path,
        {**entries, **size_entries(sizes), **buckets},
        described,
        constant_methods=metadata.constant_methods,
        segment_alignment=params.segment_alignment,
        delegate_alignment=params.delegate_alignment,
        consume=True,
    )
    return described, origin


def _payloads(
    path: Path, data_path: Path | None, payload: ArtifactRef, origin: dict[str, Any], work: stage.Workspace
) -> dict[str, str | None]:
    """SHA-256 of each payload, none of which has metadata, by name."""
    if is_fat(open_pte(path)):
        payloads = open_fat(path, (data_path,) if data_path else ()).container.payloads
        return {item.name: item.sha256 for item in payloads}
    (name,) = origin["specializations"]
    return {name: payload_sha256(payload, work.store)}
