"""Which nodes of a program the native backend can claim: all that portable kernels can run once lowered."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.runtime import Runtime
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.operator_support import OperatorSupportBase

from ..formats.pte.reader import read_pte
from ..tasks.programs.graphs import graph_modules, scalar_constant
from ..tasks.upstream.compat import EdgeOpOverload, pytree

NON_CORE_OPERATORS = ("aten.linear.default", "aten.matmul.default", "aten.scaled_dot_product_attention.default")
"""Operators outside core ATen that are kept whole for specializations. The fallback decomposes them."""

_AFFINE = "torchao"
"""Namespace of torchao's quantized operators, which are decomposed for the fallback."""

_DIALECTS = ("dim_order_ops", "quantized_decomposed", _AFFINE)
"""Namespaces of ExecuTorch's operators other than ATen's."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Support(OperatorSupportBase):  # type: ignore[misc]  # torch is untyped here
    """Decides node by node what can be claimed."""

    def __init__(self, listed: Collection[torch._ops.OpOverload], refused: Collection[Node] = ()) -> None:
        """Also supports operators that are `listed`, but no nodes that are `refused`."""
        self._listed = frozenset(listed)
        self._refused = frozenset(refused)
        self._decomposed = torch.export.default_decompositions()

    def is_node_supported(self, submodules: object, node: Node) -> bool:
        """Whether a node can be claimed. `submodules` is unused: branches are found through their own graphs."""
        del submodules
        if node.op != "call_function" or node in self._refused or _depends_on_unbacked_symbols(node):
            return False
        if node.target is torch.ops.higher_order.cond:
            branches = branch_nodes(node)
            own = len(branches) == 2 and all(len(branch.users) == 1 for branch in branches)
            return own and all(self._is_branch_supported(inner_module(branch)) for branch in branches)
        if node.target is operator.getitem:  # belongs to the node with several results
            return self.is_node_supported({}, node.args[0])
        called = unwrapped(node)
        return is_symbolic(node) if called is None else self._is_operator_supported(called)

    def can_keep(self, overload: torch._ops.OpOverload) -> bool:
        """Whether an operator outside core ATen can stay whole, because it is claimed and decomposed later."""
        return torch.Tag.core not in overload.tags and self._is_operator_supported(overload)

    def _is_operator_supported(self, overload: torch._ops.OpOverload) -> bool:
        tagged = not {torch.Tag.core, torch.Tag.view_copy}.isdisjoint(overload.tags)
        listed = overload in self._listed or overload in self._decomposed or overload.namespace in _DIALECTS
        return is_functional(overload) and (tagged or listed)

    def _is_branch_supported(self, branch: GraphModule) -> bool:
        inner = {module for node in branch.graph.nodes for module in branch_nodes(node)}
        return all(
            node.op in {"placeholder", "output"}
            or node in inner
            or scalar_constant(branch, node) is not None
            or self.is_node_supported({}, node)
            for node in branch.graph.nodes
        )


def branch_nodes(node: Node) -> tuple[Node, ...]:
    """The `get_attr` nodes of a `torch.cond`'s branches, the true branch first; empty for other nodes."""
    if node.op != "call_function" or node.target is not torch.ops.higher_order.cond:
        return ()
    return tuple(branch for branch in node.args[1:3] if isinstance(branch, Node) and branch.op == "get_attr")


def inner_module(branch: Node) -> GraphModule:
    owner = branch.graph.owning_module
    if owner is None:
        raise ValueError(f"{branch} belongs to no graph module")
    module = owner.get_submodule(str(branch.target))
    if not isinstance(module, GraphModule):
        raise TypeError(f"{branch} is a {type(module).__name__}, not a graph module")
    return module


def missing_kernels(content: bytes) -> tuple[str, ...]:
    """Operators of a `.pte` without kernels in this process's runtime, sorted.

    The wheel's runtime has the portable kernels, and with `executorch.kernels.quantized` those of quantized operators.
    Some core ATen operators have none, such as `aten::sort.values`.
    """
    operators = {operator for method in read_pte(content).methods for operator in method.operators}
    return tuple(sorted(operators - set(Runtime.get().operator_registry.operator_names)))


def unwrapped(node: Node) -> torch._ops.OpOverload | None:
    """The ATen operator that a node calls, without its edge wrapper; None if it calls something else."""
    target = node.target
    if isinstance(target, EdgeOpOverload):
        target = target._op  # noqa: SLF001 - the wrapper has no other name for it
    return target if isinstance(target, torch._ops.OpOverload) else None  # noqa: SLF001 - torch has no public name


def is_functional(overload: torch._ops.OpOverload) -> bool:
    """Whether an operator returns something, writes to no argument and returns no view of one."""
    schema = overload._schema  # noqa: SLF001 - torch has no public name for it
    values = (*schema.arguments, *schema.returns)
    return bool(schema.returns) and all(value.alias_info is None for value in values)


def is_lowered(graph_module: GraphModule) -> bool:
    nodes = (node for module in graph_modules(graph_module) for node in module.graph.nodes)
    return any(node.target is executorch_call_delegate for node in nodes)


def is_symbolic(node: Node) -> bool:
    """Whether a node's value is a number known only at run time."""
    return isinstance(node.meta.get("val"), _SYMBOLIC)


def calls(graph_module: GraphModule) -> Iterator[tuple[torch._ops.OpOverload, Node]]:
    """All calls of operators, including those in branches and loop bodies."""
    for module in graph_modules(graph_module):
        for node in module.graph.nodes:
            if node.op == "call_function" and (called := unwrapped(node)) is not None:
                yield called, node


def is_affine(program: ExportedProgram) -> bool:
    """Whether it has torchao's quantized operators, for which ExecuTorch has no kernels."""
    return any(overload.namespace == _AFFINE for overload, _ in calls(program.graph_module))


def _depends_on_unbacked_symbols(node: Node) -> bool:
    """Whether sizes depend on data. The sizes of a partition's arguments must follow from its inputs."""
    values = [argument.meta.get("val") for argument in (node, *node.all_input_nodes)]
    symbolic = (value for value in pytree.tree_leaves(values) if isinstance(value, (torch.Tensor, *_SYMBOLIC)))
    return any(map(free_unbacked_symbols, symbolic))
