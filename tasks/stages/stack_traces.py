"""Stack traces in emitted programs, those of delegates and of branches too.

With `ExecutorchBackendConfig.emit_stacktrace`, exir 1.5.1 notes a trace for each operator and none for anything else,
and refuses to go on where there are not as many as instructions (`_emit_operator` in exir/emit/_emitter.py): at the
first operator behind the call of a delegate, or behind a branch. It also refuses operators that passes have made, which
have none, such as those that write state. So programs are emitted without, and get their traces here. For a program of
the model's own operators that is the same file; tests/tasks/stages/test_stack_traces.py compares.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager
from executorch.exir._serialize._serialize import serialize_for_executorch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.print_program import _stacktrace_to_framelist
from executorch.exir.schema import DelegateCall, FrameList, Instruction, KernelCall, Operator
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from .lowered import graph_modules


def without_stack_traces(config: ExecutorchBackendConfig) -> ExecutorchBackendConfig:
    """The same configuration, for a program that gets its traces from `add_stack_traces`."""
    return dataclasses.replace(config, emit_stacktrace=False)


def add_stack_traces(emitted: ExecutorchProgramManager, config: ExecutorchBackendConfig) -> None:
    """Says of each instruction which lines of the model it comes from, and serializes the program again.

    The call of a delegate gets the lines of all operators in it, each once. Instructions that only ExecuTorch has a use
    for, such as jumps, get none.

    Relies on the emitter to leave in ``node.meta["debug_handle"]`` the number of the instruction that it made of the
    node, counted within the node's graph, and on private attributes of `ExecutorchProgramManager`.

    Args:
        emitted: the program; it is changed.
        config: what it was emitted with.
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
    """Instructions of one method, read along with the graphs that they were emitted from."""

    def __init__(self, instructions: Sequence[Instruction], operators: Sequence[Operator]) -> None:
        self._instructions = instructions
        self._operators = operators
        self._next = 0

    def traces(self, graph: GraphModule, start: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Numbers of instructions, each with the stack traces of what it was made of.

        Args:
            graph: the method's, or that of a branch.
            start: the instruction that numbers within the graph count from.
        """
        branches = get_control_flow_submodules(graph)
        for node in graph.graph.nodes:
            number = _number(node)
            if number is not None:
                self._next = start + number + 1
                yield start + number, list(_traces(node, graph))
            for branch in (module for _, module, caller in branches if caller is node):
                yield from self.traces(branch, self._start_of(branch))

    def _start_of(self, branch: GraphModule) -> int:
        """Where the instructions of a branch begin: jumps, and what a loop itself takes, stand before them."""
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
    """The instruction that was made of a node; None for those of which none was made, or it is not known."""
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
        for each in inside.graph.nodes:
            yield each.meta.get("stack_trace") or ""


_GENERATED = re.compile(r"<eval_with_key>\.\d+")
"""What torch calls code that it makes for branches. The number counts all such code of a process."""


def _frames(traces: Iterable[str]) -> FrameList:
    lists = [
        _stacktrace_to_framelist(_GENERATED.sub("<eval_with_key>", trace)) for trace in dict.fromkeys(traces) if trace
    ]
    if len(lists) == 1:
        return lists[0]
    frames = {(each.filename, each.lineno, each.name): each for found in lists for each in found.items}
    return FrameList(list(frames.values()))
