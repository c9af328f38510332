"""pack: the payloads of all specializations in one container, what they have in common once."""

from __future__ import annotations

from collections.abc import Mapping

from ...artifacts.nfat.contents import Description
from ...artifacts.nfat.named_data import map_file
from ...artifacts.nfat.pack import pack_v2
from ...artifacts.nfat.stored import save_packed
from ...artifacts.pte.pieces import write_payload
from ...artifacts.pte.reader import read_pte
from ...artifacts.ref import ArtifactRef
from ..params import PackedPayload, PackParams
from ..stage import Workspace
from .delivery import check_file


def run(inputs: Mapping[str, ArtifactRef], params: PackParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `payload/<name>` of each payload, gives `container` (payload/nfat).

    Raises:
        PteforgeError: a payload lacks a method, or needs a backend that its target does not name.
        FileFormatError: the payloads are more, or more cut up, than the format can hold.
    """
    payloads = []
    for payload in params.payloads:
        path = work.scratch / f"{payload.name}.pte"
        write_payload(inputs[f"payload/{payload.name}"], work.store, path)
        content = map_file(path)
        payloads.append((_description(payload, params, content), content))
    return {"container": save_packed(pack_v2(payloads, alignment=params.alignment), work.store)}


def _description(payload: PackedPayload, params: PackParams, content: memoryview) -> Description:
    pte = read_pte(content)
    check_file(pte, methods=params.methods, backends=payload.backends, what=f"payload {payload.name!r}")
    return Description(
        name=payload.name,
        backends=pte.backends,
        methods=tuple(method.name for method in pte.methods),
        executorch_version=params.executorch_version,
    )
