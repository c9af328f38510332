"""Emission of a payload: exir's configuration for our options, memory planning, and the call itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.pass_manager import PassType
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass, HintBasedSymShapeEvalPass
from executorch.exir.program import ExecutorchProgramManager
from torch.export import ExportedProgram

from ...configs.recipe import CompileOptions
from ..upstream.exir import declared_bounds
from ..upstream.exir_emission import constants_once, copy_results_of_cond, floor_remainders
from . import kernels  # noqa: F401 - the forms of quantized operators that files name
from .debugging import add_stack_traces, without_stack_traces
from .graphs import find_edge_operators
from .linking import file_of


class _PlanningOnce(MemoryPlanningPass):  # type: ignore[misc]  # executorch is untyped here
    """Memory planning of one method of several that share their state.

    `to_executorch` calls `run_multimethod` of each method's pass (exir/program/_program.py). All of them have one
    collection of state, so the first call places all of it and leaves nothing to the others.
    """

    def run_multimethod(self) -> None:
        """Plans the state that has not been planned yet."""
        super().run_multimethod()
        self.state.mutable_buffers.clear()
        self.state.maybe_mutable_buffers.clear()
        self.state.graph_modules.clear()


def _planning_once(methods: Mapping[str, CompileOptions]) -> dict[str, MemoryPlanningPass]:
    """One pass for each method, by the method's options."""
    passes = {method: _planning(_PlanningOnce, options) for method, options in methods.items()}
    first, *others = passes.values()
    for other in others:
        other.state = first.state
    return passes


_ALGORITHMS = {"greedy": greedy, "naive": naive}


def _planning(kind: type[MemoryPlanningPass], options: CompileOptions) -> MemoryPlanningPass:
    return kind(
        memory_planning_algo=MemoryPlanningAlgorithmSuite([_ALGORITHMS[options.memory_planning_algo]]),
        allow_lifetime_and_storage_overlap=options.allow_lifetime_and_storage_overlap,
        alloc_graph_input=options.alloc_graph_input,
        alloc_graph_output=options.alloc_graph_output,
        alloc_mutable_buffers=options.alloc_mutable_buffers,
        share_mutable_buffers=options.share_mutable_buffers,
        alignment=options.tensor_alignment,
    )


SYM_SHAPE_EVAL = {"constraint_based": ConstraintBasedSymShapeEvalPass, "hint_based": HintBasedSymShapeEvalPass}
"""Value of the option `sym_shape_eval` to pass."""


def backend_config(
    options: CompileOptions,
    methods: Collection[str],
    *,
    own: Mapping[str, CompileOptions] = MappingProxyType({}),
    external_data: bool = False,
    passes: Sequence[PassType] = (),
) -> ExecutorchBackendConfig:
    """Exir's configuration for our options.

    Args:
        options: for all methods that have none of their own.
        methods: names of all methods.
        own: options of methods whose memory is planned in another way. Other fields are equal.
        external_data: weights go to a file of their own.
        passes: over each method's program, just before it is emitted.

    Raises:
        TargetError: an operator that the options name is not registered.
    """
    of_methods = {method: own.get(method, options) for method in methods}
    return ExecutorchBackendConfig(
        passes=list(passes),
        extract_delegate_segments=options.extract_delegate_segments,
        segment_alignment=options.segment_alignment,
        constant_tensor_alignment=options.constant_tensor_alignment,
        delegate_alignment=options.delegate_alignment,
        external_constants=file_of if external_data else False,
        emit_stacktrace=options.emit_stacktrace,
        emit_mutable_buffer_names=options.emit_mutable_buffer_names,
        memory_planning_pass=_planning_once(of_methods) if own else _planning(MemoryPlanningPass, options),
        enable_non_cpu_memory_planning=options.enable_non_cpu_memory_planning,
        propagate_device_config={
            method: PropagateDeviceConfig(
                skip_h2d_for_method_inputs=own.skip_h2d_for_method_inputs,
                skip_d2h_for_method_outputs=own.skip_d2h_for_method_outputs,
            )
            for method, own in of_methods.items()
        },
        to_out_var_pass=ToOutVarPass(ignore_to_out_var_failure=options.ignore_to_out_var_failure),
        sym_shape_eval_pass={method: SYM_SHAPE_EVAL[own.sym_shape_eval]() for method, own in of_methods.items()},
        remove_view_copy=options.remove_view_copy,
        do_quant_fusion_and_const_prop=options.do_quant_fusion_and_const_prop,
        run_reinplace_pass=options.run_reinplace_pass,
        reinplace_extra_ops=frozenset(find_edge_operators(options.reinplace_extra_ops)) or None,
    )


@declared_bounds()
@constants_once()
def to_executorch(manager: EdgeProgramManager, config: ExecutorchBackendConfig) -> ExecutorchProgramManager:
    """Memory planning and emission of all methods. Passes change `manager`, so it is not usable afterwards."""
    programs = [manager.exported_program(method) for method in manager.methods]
    for program in programs:
        floor_remainders(program)
        copy_results_of_cond(program)
    with torch.set_grad_enabled(not any(map(_writes_gradients, programs))):
        emitted = manager.to_executorch(without_stack_traces(config))
    if config.emit_stacktrace:
        add_stack_traces(emitted, config)
    return emitted


def _writes_gradients(program: ExportedProgram) -> bool:
    """Whether a value that depends on parameters is written to a buffer.

    Passes execute the writes, and autograd rejects those. With gradients disabled they succeed, but then no tensor of
    the file says that it requires gradients; so they are disabled only where they must be.
    """
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate, *signature.user_inputs_to_mutate}
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    return any(node.name in written and node.meta["val"].requires_grad for node in output.all_input_nodes)
