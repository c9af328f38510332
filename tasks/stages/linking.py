"""Programs with what their backends made of the partitions: what is emitted."""

from __future__ import annotations

from collections.abc import Mapping

from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from ...artifacts.local_store import LocalStore
from ...artifacts.programs.codec import load_program
from ...artifacts.programs.delegates import DelegateResult, load_delegates
from ...artifacts.programs.values import load_value
from ...artifacts.ref import ArtifactRef
from ..params import CompileParams
from .by_method import by_method
from .control_flow import check_control_flow
from .exir import edge_config
from .lowered import lowered_modules
from .outside import place_named_data, tell_weights_apart
from .size_bounds import declared_bounds
from .state import keep_initial_state, keep_shared_initial_state


@declared_bounds()
def linked_manager(inputs: Mapping[str, ArtifactRef], params: CompileParams, store: LocalStore) -> EdgeProgramManager:
    """All methods, delegates linked in.

    Args:
        inputs: `program/<method>` of every method, `constants` and, where something is delegated, `delegates`.
        params: of `compile`. Delegated programs are not verified as edge dialect again, as in exir.
        store: where the inputs are.
    """
    programs = {method: load_program(ref, store) for method, ref in by_method(inputs, "program").items()}
    config = edge_config(params.edge)
    if "delegates" in inputs:
        delegates = load_delegates(inputs["delegates"], store)
        for method, program in programs.items():
            _link(program, delegates.methods.get(method, ()), outside=params.external_data)
        config = EdgeCompileConfig(_check_ir_validity=False)  # as EdgeProgramManager.to_backend does
    for method, program in programs.items():
        check_control_flow(method, program)
    if params.state_order:
        keep_shared_initial_state(programs, params.state_order)
    else:
        for program in programs.values():
            keep_initial_state(program)
    if params.external_data:
        tell_weights_apart(programs)
    constants = load_value(inputs["constants"], store)
    return EdgeProgramManager(programs, dict(constants) or None, config)


def _link(program: ExportedProgram, delegates: tuple[DelegateResult, ...], *, outside: bool) -> None:
    for (owner, name, unlinked), delegate in zip(list(lowered_modules(program)), delegates, strict=True):
        lowered = LoweredBackendModule(
            edge_program=unlinked.original_module,
            backend_id=delegate.backend_id,
            processed_bytes=delegate.processed_bytes,
            compile_specs=[CompileSpec(key, value) for key, value in delegate.compile_specs],
            named_data_store_output=place_named_data(delegate.named_data, outside=outside),
        )
        lowered.meta = {"debug_handle_map": delegate.debug_handle_map}
        if delegate.delegate_info_meta is not None:
            lowered.meta["_delegate_info_meta"] = delegate.delegate_info_meta
        setattr(owner, name, lowered)
