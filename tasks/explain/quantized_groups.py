"""Which nodes of an edge program backends take together: an operator with what quantizes its inputs and its output."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

from executorch.exir.delegate import executorch_call_delegate
from torch.fx import Graph, Node

from ..lower.graphs import calls_of

_CODING = ("quantize_per", "quantize_affine", "choose_qparams")  # also of what dequantizes


def groups_of(graph: Graph, *, delegated: bool = True) -> list[Sequence[tuple[str, ...]]]:
    """Names of nodes that stay together, in an order in which they can be computed; one list between two delegates.

    For delegates, what quantizes an output stays with the operator, and what quantizes inputs is in no group: it
    belongs to every operator that takes them, see `take_quantization`. Kernels compute one node each.
    """
    owner: dict[Node, Node] = {}  # node -> the last node of its group
    nodes = list(calls_of(graph))
    for node in reversed(nodes):
        if node.target is executorch_call_delegate or _of_delegate(node) or (delegated and _is_free(node)):
            continue
        owner[node] = owner.get(_ends_with(node) if delegated else _last_result(node), node)
    stretches: list[list[tuple[str, ...]]] = [[]]
    members: dict[Node, list[str]] = {}
    for node in nodes:
        if node.target is executorch_call_delegate:
            stretches.append([])
        elif node in owner:
            members.setdefault(owner[node], []).append(node.name)
            if owner[node] is node:
                stretches[-1].append(tuple(members[node]))
    return [stretch for stretch in stretches if stretch]


def take_quantization(graph: Graph, names: Collection[str]) -> set[str]:
    """Adds what quantizes the inputs of nodes to their names, copied if other nodes use it, too."""
    inside = {node for node in graph.nodes if node.name in names}
    for node in reversed(graph.nodes):
        if not _is_free(node) or node in inside or not inside.intersection(node.users):
            continue
        taken = node
        if not inside.issuperset(node.users):
            with graph.inserting_after(node):
                taken = graph.node_copy(node, lambda argument: argument)
            for user in list(node.users):
                if user in inside:
                    user.replace_input_with(node, taken)
        inside.add(taken)
    return {node.name for node in inside}


def _is_free(node: Node) -> bool:
    """Whether a node quantizes or dequantizes an input, and is not what an operator's own output goes through."""
    if not _codes(node):
        return False
    return not (_quantizes(node) and _is_static(node) and _computes(node.args[0]))


def _codes(node: object) -> bool:
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _codes(node.args[0])
    return any(part in str(getattr(node.target, "__name__", node.target)) for part in _CODING)


def _quantizes(node: Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    return "quantize_" in name and "dequantize_" not in name


def _is_static(node: Node) -> bool:
    """Whether scale and zero point are constants, and no values that are computed."""
    return not any(_codes(given) for given in node.all_input_nodes[1:])


def _computes(node: object) -> bool:
    if not isinstance(node, Node) or _codes(node) or node.op != "call_function":
        return False
    return node.target is not executorch_call_delegate and not _of_delegate(node)


def _of_delegate(node: Node) -> bool:
    given = node.args[0] if node.target is operator.getitem else None
    return isinstance(given, Node) and given.target is executorch_call_delegate


def _last_result(node: Node) -> Node:
    """The last node that takes one of several results, of this node or of the one that this takes it from."""
    producer = node.args[0] if node.target is operator.getitem else node
    results = [user for user in producer.users if user.target is operator.getitem] if isinstance(producer, Node) else []
    return max(results, default=node)


def _ends_with(node: Node) -> Node:
    """The node that has to follow in the same group: one that quantizes the output, or takes it before that."""
    users = list(node.users)
    if (last := _last_result(node)) is not node or node.target is operator.getitem:
        return last
    if len(users) != 1 or not isinstance(users[0], Node) or users[0].op != "call_function":
        return node
    (user,) = users
    if _quantizes(user) and _codes(user) and _is_static(user):
        return user
    taken = [given for given in node.all_input_nodes if _codes(given)]
    quantized = [following for following in user.users if _codes(following) and _quantizes(following)]
    fused = taken and not _codes(user) and quantized and all(map(_is_static, quantized))
    return user if fused else node
