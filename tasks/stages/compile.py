"""compile: links the delegates in and emits the payload, memory planned."""

from __future__ import annotations

from collections.abc import Mapping

import executorch.kernels.quantized  # noqa: F401 - the forms of quantized operators that files name

from ...artifacts.pte.pieces import save_payload
from ...artifacts.ref import ArtifactRef
from ..params import CompileParams
from ..stage import Workspace
from .affine import check_no_affine
from .backend_config import backend_config
from .debugging import debug_artifacts
from .exir import to_executorch
from .linking import linked_manager
from .outside import save_data


def run(inputs: Mapping[str, ArtifactRef], params: CompileParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program/<method>`, `constants` and, where something is delegated, `delegates`; gives `payload`.

    Where weights are to be outside, it also gives `data` (payload/ptd), which has them.
    For debugging it also takes `edge/<method>` of every method, and gives what `debug_artifacts` does.

    Raises:
        TargetError: quantized operators are left that no kernel computes.
    """
    manager = linked_manager(inputs, params, work.store)
    for method in sorted(manager.methods):
        check_no_affine(method, manager.exported_program(method))
    emitted = to_executorch(manager, backend_config(params, manager.methods))
    debugging = debug_artifacts(inputs, emitted, work) if params.options.generate_etrecord else {}
    outputs = {"payload": save_payload(emitted.buffer, kind="payload/pte", store=work.store), **debugging}
    return {**outputs, "data": save_data(emitted, work)} if params.external_data else outputs
