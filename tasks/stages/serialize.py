"""serialize: the file that is delivered, put together from its pieces and read back before anyone relies on it."""

from __future__ import annotations

from collections.abc import Mapping

from ...artifacts.pte.pieces import write_payload
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ...errors import PteforgeError
from ..params import SerializeParams
from ..stage import Workspace


def run(inputs: Mapping[str, ArtifactRef], params: SerializeParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `payload` (payload/pte), gives `file` (payload/pte): for the plain form the payload is the file.

    Raises:
        PteforgeError: the file lacks a method, or needs a backend that its target does not name.
    """
    path = work.scratch / "model.pte"
    write_payload(inputs["payload"], work.store, path)
    pte = open_pte(path)
    methods = {method.name for method in pte.methods}
    strangers = set(pte.backends) - set(params.backends)
    if missing := set(params.methods) - methods:
        raise PteforgeError(f"the emitted file lacks the methods {sorted(missing)}; it has {sorted(methods)}")
    if strangers:
        raise PteforgeError(
            f"the emitted file needs the backends {sorted(strangers)}, which its target does not name; "
            "the target's `backends` must list them"
        )
    return {"file": inputs["payload"]}
