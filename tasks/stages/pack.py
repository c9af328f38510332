"""pack: the payloads of all specializations in one NFAT container, common weights stored once."""

from __future__ import annotations

from collections.abc import Mapping

from ...formats.nfat.contents import Description
from ...formats.nfat.pack import pack_v2
from ...formats.pte.reader import map_file, read_pte
from ..codecs.payload import check_file, save_packed, write_payload
from ..engine import kinds, stage


class PackedPayload(stage.Params):
    """A payload of a fat file."""

    name: str
    backends: tuple[str, ...]  # the runtime backends that it may need


class Pack(stage.Stage, name="pack"):
    """For the fat form only."""

    distributions = ("flatbuffers",)

    class Params(stage.Params):
        # the payloads that could be made, by preference; the last one runs everywhere
        payloads: tuple[PackedPayload, ...]
        methods: tuple[str, ...]  # the methods that every payload must have
        alignment: int  # of the blobs, in bytes
        executorch_version: str  # the version that emitted the payloads
        share_transposed: bool = True  # whether a weight may be stored once for several layouts and types

    class Inputs(stage.Roles):
        payload: Mapping[str, kinds.PteFile]  # by name

    class Outputs(stage.Roles):
        container: kinds.Container

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Packs the payloads.

        Raises:
            PteforgeError: a payload lacks a method, or needs a backend that its target does not name.
            FileFormatError: the payloads exceed a limit of the format.
        """
        payloads = []
        for payload in params.payloads:
            path = work.scratch / f"{payload.name}.pte"
            write_payload(inputs.payload[payload.name], work.store, path)
            content = map_file(path)
            payloads.append((_description(payload, params, content), content))
        packed = pack_v2(payloads, alignment=params.alignment, share_transposed=params.share_transposed)
        return Pack.Outputs(container=save_packed(packed, work.store))


def _description(payload: PackedPayload, params: Pack.Params, content: memoryview) -> Description:
    pte = read_pte(content)
    check_file(pte, methods=params.methods, backends=payload.backends, what=f"payload {payload.name!r}")
    return Description(
        name=payload.name,
        backends=pte.backends,
        methods=tuple(method.name for method in pte.methods),
        executorch_version=params.executorch_version,
    )
