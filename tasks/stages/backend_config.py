"""ExecuTorch's configuration of what it emits, from ours."""

from __future__ import annotations

from collections.abc import Collection

from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes import ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass, HintBasedSymShapeEvalPass

from ..params import CompileParams
from .memory import memory_planning
from .operators import find_edge_operators
from .outside import file_of

SYM_SHAPE_EVAL = {"constraint_based": ConstraintBasedSymShapeEvalPass, "hint_based": HintBasedSymShapeEvalPass}
"""The passes by what the option `sym_shape_eval` calls them."""


def backend_config(params: CompileParams, methods: Collection[str]) -> ExecutorchBackendConfig:
    """Exir's configuration for our options.

    Args:
        params: of `compile`.
        methods: all of them.

    Raises:
        TargetError: an operator that the options name is not registered.
    """
    options = params.options
    return ExecutorchBackendConfig(
        extract_delegate_segments=options.extract_delegate_segments,
        segment_alignment=options.segment_alignment,
        constant_tensor_alignment=options.constant_tensor_alignment,
        delegate_alignment=options.delegate_alignment,
        external_constants=file_of if params.external_data else False,
        emit_stacktrace=options.emit_stacktrace,
        emit_mutable_buffer_names=options.emit_mutable_buffer_names,
        memory_planning_pass=memory_planning(params, methods),
        enable_non_cpu_memory_planning=options.enable_non_cpu_memory_planning,
        propagate_device_config=PropagateDeviceConfig(
            skip_h2d_for_method_inputs=options.skip_h2d_for_method_inputs,
            skip_d2h_for_method_outputs=options.skip_d2h_for_method_outputs,
        ),
        to_out_var_pass=ToOutVarPass(ignore_to_out_var_failure=options.ignore_to_out_var_failure),
        sym_shape_eval_pass=SYM_SHAPE_EVAL[options.sym_shape_eval](),
        remove_view_copy=options.remove_view_copy,
        do_quant_fusion_and_const_prop=options.do_quant_fusion_and_const_prop,
        run_reinplace_pass=options.run_reinplace_pass,
        reinplace_extra_ops=frozenset(find_edge_operators(options.reinplace_extra_ops)) or None,
    )
