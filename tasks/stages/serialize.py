"""serialize: writes the delivered file, and reads it back as a check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...artifacts.digest import canonical_json, digest_bytes
from ...artifacts.ref import ArtifactRef
from ...configs.metadata import PROVENANCE, merged_metadata
from ...formats.nfat.fat_file import is_fat, open_fat
from ...formats.pte.reader import map_file, open_pte
from .. import kinds, stage
from ..codecs.payload import Parts, load_packed, payload_sha256, save_data_file, save_payload, write_payload
from ..programs.delivery import check_file


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
        # ``plain``, the payload is the file; ``fat``, the file has a container of payloads
        form: Literal["plain", "fat"]
        methods: tuple[str, ...]  # the methods that the file must have
        backends: tuple[str, ...]  # the runtime backends that it may need
        external_data: bool = False  # the weights go to a file of their own
        metadata: MetadataParams | None = None  # None if neither the zoo nor the model's source says anything

    class Inputs(stage.Roles):
        # for the plain form, the file; for the fat form, the payload whose signatures it takes over
        payload: kinds.PteFile
        container: kinds.Container | None = None  # for the fat form, all payloads
        data: kinds.PtdFile | None = None  # the weights of a plain file that keeps them in a file of their own
        metadata: kinds.Metadata | None = None  # of `export`

    class Outputs(stage.Roles):
        file: kinds.PteFile
        data: kinds.PtdFile | None = None  # its weights, where they go to a file of their own
        origin: kinds.Origin | None = None  # what the digest in its metadata is of, if it has one

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
        """Writes the file.

        Raises:
            PteforgeError: the file lacks a method, or needs a backend that its target does not name.
        """
        path, data_path = work.scratch / "model.pte", None
        parts: Parts = {}
        if params.form == "plain":
            write_payload(inputs.payload, work.store, path)
            outputs = Serialize.Outputs(file=inputs.payload, data=inputs.data if params.external_data else None)
        else:
            from ..programs.fat_program import write_fat

            assert inputs.container is not None  # noqa: S101 - the fat form has one
            packed = load_packed(inputs.container, work.store, work.scratch)
            signature_path = work.scratch / "signature.pte"
            write_payload(inputs.payload, work.store, signature_path)
            data_path = work.scratch / "model.ptd" if params.external_data else None
            write_fat(packed, map_file(signature_path), path, data_path=data_path)
            outputs = Serialize.Outputs(
                file=save_payload(map_file(path), store=work.store, parts=packed.shareable),
                data=save_data_file(map_file(data_path), work.store, packed.shareable) if data_path else None,
            )
            parts = packed.shareable
        if params.metadata:
            path, outputs = _described(path, data_path, outputs, params.metadata, inputs, parts, work)
        check_file(open_pte(path), methods=params.methods, backends=params.backends, what="the emitted file")
        return outputs


def _described(
    path: Path,
    data_path: Path | None,
    outputs: Serialize.Outputs,
    params: MetadataParams,
    inputs: Serialize.Inputs,
    parts: Parts,
    work: stage.Workspace,
) -> tuple[Path, Serialize.Outputs]:
    """The file with its metadata, if it has any."""
    from ..programs.file_metadata import write_metadata

    of_source = json.loads(work.store.read_artifact(inputs.metadata)) if inputs.metadata else {}
    metadata = merged_metadata(params.written, of_source)
    entries, origin = metadata.entries(), None
    if not entries:
        return path, outputs
    if metadata.provenance:
        payloads = _payloads(path, data_path, inputs.payload, params.origin, work)
        content = canonical_json({**params.origin, "payloads": payloads})
        origin = work.store.put_artifact("report/origin", content)
        entries[PROVENANCE] = digest_bytes(content)
    described = work.scratch / "described.pte"
    write_metadata(
        path,
        entries,
        described,
        constant_methods=metadata.constant_methods,
        segment_alignment=params.segment_alignment,
        delegate_alignment=params.delegate_alignment,
    )
    file = save_payload(map_file(described), store=work.store, parts=parts)
    return described, replace(outputs, file=file, origin=origin)


def _payloads(
    path: Path, data_path: Path | None, payload: ArtifactRef, origin: dict[str, Any], work: stage.Workspace
) -> dict[str, str | None]:
    """SHA-256 of each payload, none of which has metadata, by its name."""
    if is_fat(open_pte(path)):
        packed = open_fat(path, (data_path,) if data_path else ()).container
        return {made.name: made.sha256 for made in packed.payloads}
    (name,) = origin["specializations"]
    return {name: payload_sha256(payload, work.store)}
