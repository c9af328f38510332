"""Debug outputs: stack traces, ETRecords and maps of debug handles, which lead back to the model's code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import getitem

import torch
from executorch.devtools.etrecord import generate_etrecord
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig, ExecutorchProgramManager
from executorch.exir._serialize._serialize import serialize_for_executorch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects._ops import ops
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.print_program import _stacktrace_to_framelist
from executorch.exir.schema import DelegateCall, FrameList, Instruction, KernelCall, Operator
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from ...artifacts.digest import canonical_json
from ...artifacts.ref import ArtifactRef
from ..codecs.program import load_program
from ..engine.stage import Workspace
from .graphs import graph_modules
from .matching import origin_of


def without_stack_traces(config: ExecutorchBackendConfig) -> ExecutorchBackendConfig:
    """The same configuration, for a program that gets its traces from `add_stack_traces`."""
    return dataclasses.replace(config, emit_stacktrace=False)


def add_stack_traces(emitted: ExecutorchProgramManager, config: ExecutorchBackendConfig) -> None:
    """Adds to each instruction the lines of the model that it comes from, and serializes the program again.

    The call of a delegate gets the lines of all operators in it, without repeats. Jumps and other instructions of
    ExecuTorch's own get none.

    Relies on the emitter to leave in ``node.meta["debug_handle"]`` the number of the node's instruction within the
    node's graph, and on private attributes of `ExecutorchProgramManager`. Changes `emitted`.
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
    emitted._pte_data, emitted._tensor_data = serialize_for_executorch(  # noqa: SLF001 - as __init__ does
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
        branches = get_control_flow_submodules(graph)
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
            case KernelCall(op_index=index) if isinstance(node.target, OpOverload):
                operator, schema = self._operators[index], node.target._schema  # noqa: SLF001 - as exir's emitter
                return (operator.name, operator.overload) == (schema.name, schema.overload_name)
        return False


def _number(node: Node) -> int | None:
    """The number of a node's instruction; None where it has none, or it is not known."""
    emitted = node.op == "call_function" and (
        node.target is executorch_call_delegate or isinstance(node.target, OpOverload)
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
    lists = [
        _stacktrace_to_framelist(_GENERATED.sub("<eval_with_key>", trace)) for trace in dict.fromkeys(traces) if trace
    ]
    if len(lists) == 1:
        return lists[0]
    frames = {(frame.filename, frame.lineno, frame.name): frame for found in lists for frame in found.items}
    return FrameList(list(frames.values()))


def debug_artifacts(
    edge: Mapping[str, ArtifactRef], emitted: ExecutorchProgramManager, work: Workspace
) -> dict[str, ArtifactRef]:
    """The artifacts of a payload.

    Returns:
        - `etrecord` (debug/etrecord): the file that `executorch.devtools.Inspector` takes;
        - `debug_handles` (debug/handles): by method, instruction number to debug handles of the edge program;
        - `delegate_map` (debug/delegates): by method, instruction number to the delegate that it calls, with the map
          from its own debug handles to those of the edge program, where the backend makes one;
        - `debug_sources` (debug/sources): by method, debug handle to the operators of the edge program that have it,
          and where in the model each comes from.
    """
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
        "debug_handles": store.put_artifact("debug/handles", canonical_json(_plain(emitted.debug_handle_map))),
        "delegate_map": store.put_artifact("debug/delegates", canonical_json(_plain(emitted.delegate_map))),
        "debug_sources": store.put_artifact("debug/sources", canonical_json(sources)),
    }


def _inline_scalars(module: GraphModule) -> None:
    """Replaces constant scalars in branches by `full`: exir's serialization, and so an ETRecord, takes none there.

    exir/serde/export_serialize.py: "getattr nodes containing tensors should not appear in the graph".
    """
    _, *branches = graph_modules(module)
    for branch in branches:
        for node in list(branch.graph.nodes):
            value = getattr(branch, str(node.target), None) if node.op == "get_attr" else None
            if not isinstance(value, torch.Tensor) or value.dim():
                continue
            with branch.graph.inserting_before(node):
                full = branch.graph.call_function(
                    ops.edge.aten.full.default, ([], value.item()), {"dtype": value.dtype}
                )
            full.meta = dict(node.meta)
            node.replace_all_uses_with(full)
            branch.graph.erase_node(node)


def _sources(module: GraphModule) -> dict[str, list[dict[str, str]]]:
    """Debug handle to the operators that have it, those in branches included."""
    found: dict[str, list[dict[str, str]]] = {}
    for owner in graph_modules(module):
        for node in owner.graph.nodes:
            if node.op == "call_function" and node.target is not getitem and (handle := node.meta.get("debug_handle")):
                origin = origin_of(node)
                operator = getattr(node.target, "__name__", str(node.target))
                source = {"operator": operator, "module": origin.module, "line": origin.line}
                found.setdefault(str(handle), []).append(source)
    return found


def _plain(value: object) -> object:
    """The same as JSON: mappings have strings as keys."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value
