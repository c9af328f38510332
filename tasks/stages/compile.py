"""compile: links the delegates in and emits the payload, memory planned."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import executorch.kernels.quantized  # noqa: F401 - the forms of quantized operators that files name
from executorch.exir import ExecutorchBackendConfig

from ...artifacts.pte.pieces import save_payload
from ...artifacts.ref import ArtifactRef
from ..params import CompileParams
from ..stage import Workspace
from .affine import check_no_affine
from .exir import to_executorch
from .linking import linked_manager
from .memory import memory_planning


def run(inputs: Mapping[str, ArtifactRef], params: CompileParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program/<method>`, `constants` and, where something is delegated, `delegates`; gives `payload`.

    Raises:
        TargetError: quantized operators are left that no kernel computes.
    """
    manager = linked_manager(inputs, params, work.store)
    for method in sorted(manager.methods):
        check_no_affine(method, manager.exported_program(method))
    content = to_executorch(manager, backend_config(params, manager.methods)).buffer
    return {"payload": save_payload(content, kind="payload/pte", store=work.store)}


def backend_config(params: CompileParams, methods: Collection[str]) -> ExecutorchBackendConfig:
    """Exir's configuration for our options."""
    options = params.options
    return ExecutorchBackendConfig(
        extract_delegate_segments=options.extract_delegate_segments,
        segment_alignment=options.segment_alignment,
        constant_tensor_alignment=options.constant_tensor_alignment,
        delegate_alignment=options.delegate_alignment,
        emit_stacktrace=options.emit_stacktrace,
        memory_planning_pass=memory_planning(params, methods),
    )
