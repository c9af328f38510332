"""What programs contain: operators, lowered modules, control flow, and buffers that methods change and may share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ...errors import SourceError, TargetError
from ..upstream.compat import EdgeOpOverload, edge_ops, get_control_flow_submodules, inductor_decompositions
from .embeddings import is_table


def find_operators(names: Iterable[str]) -> list[torch._ops.OpOverload]:
    """Resolves names such as ``aten.hardswish`` (``.default``); raises TargetError for an unregistered operator."""
    return [_find_operator(name) for name in names]


def find_edge_operators(names: Iterable[str]) -> list[EdgeOpOverload]:
    """The same in the edge dialect; raises TargetError as `find_operators`."""
    operators = []
    for operator in find_operators(names):
        namespace, name = operator.name().split("::")
        packet = getattr(getattr(edge_ops, namespace), name.partition(".")[0])
        operators.append(getattr(packet, operator._overloadname))  # noqa: SLF001 - torch has no public name for it
    return operators


def _find_operator(name: str, where: str = "") -> torch._ops.OpOverload:
    namespace, _, rest = name.partition(".")
    operator, _, suffix = rest.partition(".")
    try:
        overload = getattr(getattr(getattr(torch.ops, namespace), operator), suffix or "default")
    except (AttributeError, RuntimeError):
        overload = None
    if not isinstance(overload, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
        raise TargetError(
            f"unknown operator {name!r}{where}; write it as namespace.operator.overload, "
            "for example aten.hardswish.default"
        )
    return overload


def check_operators(named: Iterable[tuple[str, str]]) -> None:
    """Raises TargetError for the first unknown operator, with the field that has it. Run before any stage starts."""
    for name, field in named:
        _find_operator(name, f" in {field}")


def check_control_flow(method: str, program: ExportedProgram) -> None:
    """Raises SourceError if a program with linked delegates has a ``while_loop``.

    The emitter of executorch 1.5.1 knows cond, map and scan (exir/emit/_emitter.py, `_emit_control_flow`).
    """
    for module in program.graph_module.modules():
        nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
        if any(node.target is torch.ops.higher_order.while_loop for node in nodes):
            raise SourceError(
                f'method {method!r} has a while_loop, which executorch does not emit ("Unsupported control flow '
                'operator: while_loop"); write it as a map or scan over a known number of steps, or run the loop '
                "outside and make its body a method"
            )


_TAKEN = re.compile(r"aten\.(linear|addmm|mm|conv\w*)\b")  # operators that all quantizers take


def only_looks_up(program: ExportedProgram) -> bool:
    """Whether weights are embeddings of tokens only, which quantizers do not take."""
    return {node.target for node in _with_weights(program)} == {torch.ops.aten.embedding.default}


def _with_weights(program: ExportedProgram) -> list[Node]:
    """Calls of operators that take weights."""
    weights = {*program.graph_signature.inputs_to_parameters, *program.graph_signature.inputs_to_buffers}
    return [node for node in calls_of(program.graph) if not weights.isdisjoint(x.name for x in node.all_input_nodes)]


def why_nothing_to_quantize(program: ExportedProgram) -> str:
    """Says where a program that a quantizer leaves as it is computes with weights; may be empty."""
    used = _with_weights(program)
    operators = sorted({str(node.target).removesuffix(".default") for node in used if node.target not in _CONTROL})
    inner = [node.target for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    if not any(map(_TAKEN.match, operators)) and any(_TAKEN.match(str(target)) for target in inner):
        return "it would take operators of branches and loops only"
    if dtypes := [node.meta["val"].dtype for node in used if _TAKEN.match(str(node.target))]:
        others = [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype is not torch.float32]
        return f"its layers compute in {others[0]}" if len(others) == len(dtypes) else ""
    return f"with weights it has {', '.join(operators)}" if operators else "it has no operator with weights"


_CONTROL = {getattr(torch.ops.higher_order, name) for name in ("cond", "map_impl", "scan", "while_loop")}


def calls_of(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op == "call_function")


def graph_modules(graph_module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """A graph module, and those that its control flow calls, parents first."""
    yield graph_module
    for _, inner, _ in get_control_flow_submodules(graph_module):
        yield from graph_modules(inner)


def scalar_constant(owner: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor | None:
    """The 0-dimensional tensor of the graph module that a node names, ExecuTorch's form of numbers; None if none."""
    constant = getattr(owner, str(node.target), None) if node.op == "get_attr" else None
    return constant if isinstance(constant, torch.Tensor) and constant.dim() == 0 else None


def inline_scalar(node: torch.fx.Node, constant: torch.Tensor, full: Any) -> None:
    """Replaces the node of a `scalar_constant` by a call of the operator `full`."""
    with node.graph.inserting_before(node):
        call = node.graph.call_function(full, ([], constant.item()), {"dtype": constant.dtype})
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


def lowered_modules(program: ExportedProgram) -> Iterator[tuple[torch.fx.GraphModule, str, LoweredBackendModule]]:
    """The program's lowered modules in graph order: the graph module that owns it, its attribute name, the module."""
    for owner in graph_modules(program.graph_module):
        for node in owner.graph.nodes:
            if node.op == "call_function" and node.target is executorch_call_delegate:
                name = node.args[0].target
                yield owner, name, getattr(owner, name)


_NAMESPACE = "torchao"
_LIBRARY = torch.library.Library("pteforge", "FRAGMENT")


def _hidden(operator: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """An operator that computes the same and has no decomposition."""
    name = operator._opname  # noqa: SLF001 - torch has no public name for it
    _LIBRARY.define(str(operator._schema).replace(f"{_NAMESPACE}::", ""))  # noqa: SLF001 - as above
    _LIBRARY.impl(name, operator, "CompositeExplicitAutograd")
    hidden: torch._ops.OpOverload = getattr(torch.ops.pteforge, name).default
    return hidden


_AFFINE = {
    operator: _hidden(operator)
    for operator in (
        torch.ops.torchao.choose_qparams_affine.default,
        torch.ops.torchao.quantize_affine.default,
        torch.ops.torchao.dequantize_affine.default,
    )
}
"""torchao's affine quantization, and what stands for the calls that stay while others are decomposed."""
_SHOWN = {hidden: operator for operator, hidden in _AFFINE.items()}


def affine_calls(program: ExportedProgram) -> list[Node]:
    """Calls of torchao's affine quantization in a program, ATen or edge, in the order of its graphs."""
    calls = (node for module in graph_modules(program.graph_module) for node in calls_of(module.graph))
    return [node for node in calls if _aten_operator(node.target) in _AFFINE]


def _aten_operator(target: Any) -> Any:
    return target._op if isinstance(target, EdgeOpOverload) else target  # noqa: SLF001 - has no public name


def decompose_affine(program: ExportedProgram, kept: Collection[Node] = ()) -> ExportedProgram:
    """The ATen program with torchao's affine quantization decomposed, so that portable kernels can run it.

    `kept` calls stay, and so do tables of embeddings, since there are operators for them. The decompositions are
    torchao's own; it registers them for torch.compile (torchao/utils.py).
    """
    for node in affine_calls(program):
        if node in kept or is_table(node):
            node.target = _AFFINE[node.target]
    decomposed = program.run_decompositions({operator: inductor_decompositions[operator] for operator in _AFFINE})
    for changed in (program, decomposed):
        for module in graph_modules(changed.graph_module):
            for node in calls_of(module.graph):
                node.target = _SHOWN.get(node.target, node.target)
            module.recompile()
    return decomposed


def check_no_affine(method: str, program: ExportedProgram) -> None:
    """Checks that backends took all affine operators of torchao; TargetError where some are left."""
    targets = [node.target for node in program.graph.nodes if isinstance(node.target, EdgeOpOverload)]
    if left := sorted({str(target._op) for target in targets if target.namespace == _NAMESPACE}):  # noqa: SLF001 - names the operator as users know it
        raise TargetError(
            f"method {method!r}: no backend took all of {', '.join(left)}, and ExecuTorch has no kernels for them; "
            "quantize those layers in a way that the target knows, or leave them out of source_transforms"
        )


def state_names(program: ExportedProgram) -> set[str]:
    """Names of the buffers that a program in the edge dialect changes."""
    return set(program.graph_signature.buffers_to_mutate.values())


def _placeholders(program: ExportedProgram, names: Collection[str]) -> Iterator[Node]:
    """The inputs of a program that are buffers with these names."""
    buffers = program.graph_signature.inputs_to_buffers
    return (node for node in program.graph.nodes if node.op == "placeholder" and buffers.get(node.name) in names)


def keep_initial_state(program: ExportedProgram, names: Collection[str] | None = None) -> None:
    """Stores the initial values of buffers in the file; without them buffers are uninitialized memory.

    Relies on the mark that exir.passes.init_mutable_pass.InitializedMutableBufferPass sets; the pass itself finds
    buffers by parts of their names. The file grows by the state's size. By default, all buffers that it changes.
    """
    for node in _placeholders(program, state_names(program) if names is None else names):
        node.meta["et_init_buffer"] = True


def keep_shared_initial_state(programs: Mapping[str, ExportedProgram], order: Sequence[str]) -> None:
    """Applies `keep_initial_state` to methods that share state: the first one with a buffer sets it.

    Loading a method writes its initial values, so if all methods had them, one that is loaded late would undo what
    others have done. Raises SourceError if buffers of one name differ in shape, type or value.
    """
    owners: dict[str, tuple[str, torch.Tensor]] = {}
    state = set().union(*map(state_names, programs.values()))
    for method in order:
        program = programs[method]
        for name in sorted(state & set(program.graph_signature.inputs_to_buffers.values())):
            value = _value(program, name)
            owner, theirs = owners.setdefault(name, (method, value))
            if theirs.dtype != value.dtype or not torch.equal(theirs, value):
                raise SourceError(
                    f"the buffer {name!r} of {method!r} is not that of {owner!r}: shape, type or value differ, so they "
                    "cannot be one state; give them different names, or leave compile.share_mutable_buffers out"
                )
        for node in _placeholders(program, state):
            node.meta[SHARED] = True
        keep_initial_state(program, {name for name, (owner, _) in owners.items() if owner == method})


def _value(program: ExportedProgram, name: str) -> torch.Tensor:
    value: torch.Tensor = {**program.constants, **program.state_dict}[name]
    return value


SHARED = "pteforge_shared_state"  # marks placeholders of state that methods share, also in methods that only read it


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TORCH = re.compile(r"[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """The module and the line that an operator comes from."""

    module: str = ""  # path of the module that calls it, empty for the model itself
    line: str = ""  # ``file.py:12 in forward``, the innermost line that is not torch's own; empty where it is not known


def origin_of(node: Node) -> NodeOrigin:
    """Returns the origin of a node of an exported program."""
    frames = [frame for frame in _FRAME.findall(node.meta.get("stack_trace") or "") if not _TORCH.search(frame[0])]
    if not frames:
        return NodeOrigin(module_path(node))
    file, line, function = frames[-1]
    return NodeOrigin(module_path(node), f"{PurePath(file).name}:{line} in {function}")


def module_path(node: Node) -> str:
    """The path of the module that calls an operator; empty for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""
