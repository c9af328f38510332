"""compile: links the delegates in and emits the payload, memory planned."""

from __future__ import annotations

from collections.abc import Mapping

import executorch.kernels.quantized  # noqa: F401 - the forms of quantized operators that files name
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch.export import ExportedProgram

from ...artifacts.programs.codec import load_program
from ...artifacts.programs.delegates import DelegateResult, load_delegates
from ...artifacts.programs.values import load_value
from ...artifacts.pte.pieces import save_payload
from ...artifacts.ref import ArtifactRef
from ...configs.recipe import CompileOptions
from ..params import CompileParams
from ..stage import Workspace
from .exir import edge_config, keep_initial_state, to_executorch_bytes
from .lowered import lowered_modules
from .operators import find_operators


def run(inputs: Mapping[str, ArtifactRef], params: CompileParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program/<method>`, `constants` and, where something is delegated, `delegates`; gives `payload`."""
    programs = {
        role.partition("/")[2]: load_program(ref, work.store)
        for role, ref in sorted(inputs.items())
        if role.startswith("program/")
    }
    edge = edge_config(params.edge, find_operators(params.edge.preserve_operators))
    if "delegates" in inputs:
        delegates = load_delegates(inputs["delegates"], work.store)
        for method, program in programs.items():
            _link(program, delegates.methods[method])
        edge = EdgeCompileConfig(_check_ir_validity=False)  # as EdgeProgramManager.to_backend does
    for program in programs.values():
        keep_initial_state(program)
    constants = load_value(inputs["constants"], work.store)
    content = to_executorch_bytes(programs, constants, edge, _backend_config(params.options))
    return {"payload": save_payload(content, kind="payload/pte", store=work.store)}


def _link(program: ExportedProgram, delegates: tuple[DelegateResult, ...]) -> None:
    for (owner, name, unlinked), delegate in zip(list(lowered_modules(program)), delegates, strict=True):
        lowered = LoweredBackendModule(
            edge_program=unlinked.original_module,
            backend_id=delegate.backend_id,
            processed_bytes=delegate.processed_bytes,
            compile_specs=[CompileSpec(key, value) for key, value in delegate.compile_specs],
            named_data_store_output=delegate.named_data,
        )
        lowered.meta = {"debug_handle_map": delegate.debug_handle_map}
        if delegate.delegate_info_meta is not None:
            lowered.meta["_delegate_info_meta"] = delegate.delegate_info_meta
        setattr(owner, name, lowered)


def _backend_config(options: CompileOptions) -> ExecutorchBackendConfig:
    return ExecutorchBackendConfig(
        extract_delegate_segments=options.extract_delegate_segments,
        segment_alignment=options.segment_alignment,
        constant_tensor_alignment=options.constant_tensor_alignment,
        delegate_alignment=options.delegate_alignment,
        emit_stacktrace=options.emit_stacktrace,
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=options.alloc_graph_input, alloc_graph_output=options.alloc_graph_output
        ),
    )
