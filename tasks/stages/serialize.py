"""serialize: the file that is delivered, put together and read back before anyone relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...artifacts.nfat.named_data import map_file
from ...artifacts.nfat.stored import load_packed, save_data_file
from ...artifacts.pte.pieces import read_payload, save_payload, write_payload
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ..params import SerializeParams
from ..stage import Workspace
from .delivery import check_file


def run(inputs: Mapping[str, ArtifactRef], params: SerializeParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Gives `file` (payload/pte), and `data` (payload/ptd) where weights are to be beside it.

    Takes `payload` (payload/pte): for the plain form it is the file, and `data` (payload/ptd) its weights, if they are
    beside it. For the fat form it is what says how methods are called, and `container` (payload/nfat) is what they run.

    Raises:
        PteforgeError: the file lacks a method, or needs a backend that its target does not name.
    """
    path = work.scratch / "model.pte"
    if params.form == "fat":
        outputs = _fat(inputs, params, work, path)
    else:
        write_payload(inputs["payload"], work.store, path)
        outputs = {"file": inputs["payload"], **({"data": inputs["data"]} if params.external_data else {})}
    check_file(open_pte(path), methods=params.methods, backends=params.backends, what="the emitted file")
    return outputs


def _fat(
    inputs: Mapping[str, ArtifactRef], params: SerializeParams, work: Workspace, path: Path
) -> dict[str, ArtifactRef]:
    from .outer import write_fat  # noqa: PLC0415 - imports ExecuTorch, which the plain form has no need of

    packed = load_packed(inputs["container"], work.store)
    data = work.scratch / "model.ptd" if params.external_data else None
    write_fat(packed, read_payload(inputs["payload"], work.store), path, data_path=data)
    outputs = {"file": save_payload(map_file(path), store=work.store)}
    if data:
        outputs["data"] = save_data_file(map_file(data), work.store)
    return outputs
