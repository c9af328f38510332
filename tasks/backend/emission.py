"""Emission of a payload: exir's configuration for our options, memory planning, the call, and debug outputs.

Those are stack traces, ETRecords and maps of debug handles, which lead back to the model's code.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import getitem
from types import MappingProxyType

import torch
from executorch.devtools.etrecord import generate_etrecord
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.pass_manager import PassType
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass, HintBasedSymShapeEvalPass
from executorch.exir.program import ExecutorchProgramManager
from executorch.exir.schema import DelegateCall, FrameList, Instruction, KernelCall, Operator
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ...artifacts.ref import ArtifactRef
from ...configs.recipe import CompileOptions
from ..engine.stage import Workspace
from ..programs.graphs import find_edge_operators, graph_modules, inline_scalar, origin_of, scalar_constant
from ..programs.program import load_program
from ..upstream import compat
from ..upstream.exir import declared_bounds
from ..upstream.exir_emission import constants_once, constants_viewed, copy_results_of_cond, floor_remainders
from . import kernels  # noqa: F401 - the forms of quantized operators that files name
from .delegates import file_of


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


def _planning(kind: type[MemoryPlanningPass], options: CompileOptions) -> MemoryPlanningPass:
    algorithm = {"greedy": greedy, "naive": naive}[options.memory_planning_algo]
    return kind(
        memory_planning_algo=MemoryPlanningAlgorithmSuite([algorithm]),
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
    """Exir's configuration for our options; raises TargetError for an operator in them that is not registered.

    `own` has options of methods whose memory is planned in another way; other fields are equal. With `external_data`,
    weights go to a file of their own. The passes run on each method's program just before emission.
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
@constants_viewed()
def to_executorch(manager: EdgeProgramManager, config: ExecutorchBackendConfig) -> ExecutorchProgramManager:
    """Memory planning and emission of all methods. Passes change `manager`, so it is not usable afterwards."""
    programs = [manager.exported_program(method) for method in manager.methods]
    for program in programs:
        floor_remainders(program)
        copy_results_of_cond(program)
    with torch.set_grad_enabled(not any(map(_writes_gradients, programs))):
        emitted = manager.to_executorch(dataclasses.replace(config, emit_stacktrace=False))
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


def add_stack_traces(emitted: ExecutorchProgramManager, config: ExecutorchBackendConfig) -> None:
    """Adds to each instruction the lines of the model that it comes from, and serializes the program again.

    The call of a delegate gets the lines of all its operators, without repeats; jumps and the like get none.

    Relies on the emitter, which sets ``node.meta["debug_handle"]`` to the number of the node's instruction within its
    graph, and on private attributes of `ExecutorchProgramManager`. Changes `emitted`.
    """
    for plan in emitted.executorch_program.execution_plan:
        if plan.name not in emitted.methods:
            continue  # a constant
        (chain,) = plan.chains
        lists = [FrameList([]) for _ in chain.instructions]
        reading = _Reading(chain.instructions, plan.operators)
        for number, traces in reading.traces(emitted.exported_program(plan.name).graph_module):
            lists[number] = _frames(traces)
        chain.stacktrace = lists
    emitted._pte_data, emitted._tensor_data = compat.serialize_for_executorch(  # noqa: SLF001 - as __init__ does
        emitted._emitter_output,  # noqa: SLF001 - as above
        config,
        emitted._data_serializer,  # noqa: SLF001 - as above
        emitted._named_data,  # noqa: SLF001 - as above
    )


class _Reading:
    """The instructions of one method, matched with the graphs that they were emitted from."""

    def __init__(self, instructions: Sequence[Instruction], operators: Sequence[Operator]) -> None:
        self._instructions = instructions
        self._operators = operators
        self._next = 0

    def traces(self, graph: GraphModule, start: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Numbers of instructions, counted from `start` in a branch, each with the stack traces of its nodes."""
        branches = compat.get_control_flow_submodules(graph)
        for node in graph.graph.nodes:
            number = _number(node)
            if number is not None:
                self._next = start + number + 1
                yield start + number, list(_traces(node, graph))
            for branch in (module for _, module, caller in branches if caller is node):
                yield from self.traces(branch, self._start_of(branch))

    def _start_of(self, branch: GraphModule) -> int:
        """The first instruction of a branch. Jumps, and instructions of the loop itself, come before it."""
        numbered = [(node, number) for node in branch.graph.nodes if (number := _number(node)) is not None]
        span = 1 + max((number for _, number in numbered), default=-1)
        for start in range(self._next, len(self._instructions) - span + 1):
            if all(self._is_of(self._instructions[start + number], node) for node, number in numbered):
                return start
        raise ValueError(f"the instructions of {len(numbered)} operators in a branch are not in the emitted program")

    def _is_of(self, instruction: Instruction, node: Node) -> bool:
        match instruction.instr_args:
            case DelegateCall():
                return node.target is executorch_call_delegate
            case KernelCall(op_index=index) if isinstance(node.target, compat.OpOverload):
                operator, schema = self._operators[index], node.target._schema  # noqa: SLF001 - as exir's emitter
                return (operator.name, operator.overload) == (schema.name, schema.overload_name)
        return False


def _number(node: Node) -> int | None:
    """The number of a node's instruction; None if it has none, or it is not known."""
    emitted = node.op == "call_function" and (
        node.target is executorch_call_delegate or isinstance(node.target, compat.OpOverload)
    )
    number: int | None = node.meta.get("debug_handle") if emitted else None
    return number


def _traces(node: Node, graph: GraphModule) -> Iterator[str]:
    if node.target is not executorch_call_delegate:
        yield node.meta.get("stack_trace") or ""
        return
    delegate = getattr(graph, node.args[0].target)
    for inside in graph_modules(delegate.original_module.graph_module):
        for inner in inside.graph.nodes:
            yield inner.meta.get("stack_trace") or ""


_GENERATED = re.compile(r"<eval_with_key>\.\d+")
"""Torch's file name of the code that it generates for branches; the number counts within a process."""


def _frames(traces: Iterable[str]) -> FrameList:
    texts = [_GENERATED.sub("<eval_with_key>", trace) for trace in dict.fromkeys(traces) if trace]
    lists = list(map(compat.stacktrace_to_framelist, texts))
    if len(lists) == 1:
        return lists[0]
    frames = {(frame.filename, frame.lineno, frame.name): frame for part in lists for frame in part.items}
    return FrameList(list(frames.values()))


def debug_artifacts(
    edge: Mapping[str, ArtifactRef], emitted: ExecutorchProgramManager, work: Workspace
) -> dict[str, ArtifactRef]:
    """The artifacts of a payload, by role: see the outputs of `compile`."""
    programs = {method: load_program(ref, work.store) for method, ref in edge.items()}
    path = work.scratch / "model.etrecord"
    sources = {method: _sources(program.graph_module) for method, program in programs.items()}
    for program in programs.values():
        _inline_scalars(program.graph_module)
    unchecked = EdgeCompileConfig(_check_ir_validity=False)  # `edge` has checked them
    generate_etrecord(path, EdgeProgramManager(programs, None, unchecked), emitted)
    store = work.store
    return {
        "etrecord": store.put_artifact("debug/etrecord", path.read_bytes()),
        "debug_handles": store.put_json("debug/handles", _plain(emitted.debug_handle_map)),
        "delegate_map": store.put_json("debug/delegates", _plain(emitted.delegate_map)),
        "debug_sources": store.put_json("debug/sources", sources),
    }


def _inline_scalars(module: GraphModule) -> None:
    """Replaces constant scalars in branches by `full`: exir's serialization, and so an ETRecord, takes none there.

    exir/serde/export_serialize.py: "getattr nodes containing tensors should not appear in the graph".
    """
    _, *branches = graph_modules(module)
    for branch in branches:
        for node in branch.graph.find_nodes(op="get_attr"):
            if (value := scalar_constant(branch, node)) is not None:
                inline_scalar(node, value, compat.edge_ops.aten.full.default)


def _sources(module: GraphModule) -> dict[str, list[dict[str, str]]]:
    """Debug handle to the operators that have it, those in branches included."""
    sources: dict[str, list[dict[str, str]]] = {}
    for owner in graph_modules(module):
        for node in owner.graph.nodes:
            if node.op == "call_function" and node.target is not getitem and (handle := node.meta.get("debug_handle")):
                origin = origin_of(node)
                operator = getattr(node.target, "__name__", str(node.target))
                source = {"operator": operator, "module": origin.module, "line": origin.line}
                sources.setdefault(str(handle), []).append(source)
    return sources


def _plain(value: object) -> object:
    """The same as JSON: mappings have strings as keys."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value
