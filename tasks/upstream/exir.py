"""What exir of executorch 1.5.1 repeats and mistakes; in the keys of `edge` to `compile`, and `bisect_payload`."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import sympy
import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.pass_base import ExportPass
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.passes.tools_common import legalize_graph
from torch.fx.passes.utils.fuser_utils import validate_partition

from . import compat
from .patches import mends

_ATEN = torch.ops.aten


@mends("operators whose first operand is a number, such as `17 % x`, cannot be lowered")
def take_numbers_as_tensors(program: ExportedProgram) -> None:
    """Gives operators whose first operand is a number a tensor of the result's dtype instead, in place.

    ``17 % x`` is ``remainder.Scalar_Tensor``, which is no operator of the edge dialect and is not decomposed, so that
    lowering fails without a helpful error. Delete an operator once `to_edge` takes a program with it.
    """
    for module in _graph_modules(program):
        nodes = [node for node in module.graph.nodes if node.target in _OF_TENSORS]
        for node in nodes:
            number, operand = node.args
            value = node.meta["val"]
            with module.graph.inserting_before(node):
                tensor = module.graph.call_function(_ATEN.full.default, ([], number), {"dtype": value.dtype})
            tensor.meta = {**node.meta, "val": value.new_empty(())}
            node.target, node.args = _OF_TENSORS[node.target], (tensor, operand)
        if nodes:
            module.recompile()


_OF_TENSORS = {
    packet.Scalar_Tensor: packet.Tensor
    for packet in (_ATEN.remainder, _ATEN.bitwise_and, _ATEN.bitwise_or, _ATEN.bitwise_xor)
}


def _graph_modules(program: ExportedProgram) -> Iterator[GraphModule]:
    return (module for module in program.graph_module.modules() if isinstance(module, GraphModule))


@mends("a `view` of what attention returns cannot be decomposed", "torch.export.ExportedProgram.run_decompositions")
def no_idle_decompositions() -> AbstractContextManager[object]:
    """Skips decompositions whose table has no operator of the program. The empty table stays: it functionalizes.

    For partitioners that check support, `_gen_edge_manager_for_partitioners` (exir/program/_program.py) decomposes with
    every table it has, each a trace of the whole program. For others it first looks whether the graph has any operator
    of the table. Delete once it always looks. Tables that apply may decompose attention: see `_reshape_views`.
    """
    trace = ExportedProgram.run_decompositions

    def run_decompositions(program: ExportedProgram, decomp_table: Any = None, **options: Any) -> ExportedProgram:
        if decomp_table and not _calls_any(program, decomp_table):
            return program
        if decomp_table:
            _reshape_views(program)
        return trace(program, decomp_table, **options)

    return patch.object(ExportedProgram, "run_decompositions", run_decompositions)


def _calls_any(program: ExportedProgram, operators: Collection[Any]) -> bool:
    nodes = (node for module in _graph_modules(program) for node in module.graph.nodes if node.op == "call_function")
    return any(node.target in operators for node in nodes)


def _reshape_views(program: ExportedProgram) -> None:
    """Replaces views by reshapes, in place, in graphs that have attention.

    ``scaled_dot_product_attention`` returns heads and tokens in the layout of its inputs. Its decomposition in torch
    2.13 (torch/_decomp/decompositions.py) does so only for the kernels that it stands for, so a program that was
    exported with ``view``, as valid eager code may be, cannot be decomposed: "Cannot view a tensor with shape ...".
    With ``reshape`` it can; where the layout is right, reshaping is a view again and the decomposed program is the
    same. Delete once the decomposition keeps the layout.
    """
    for module in _graph_modules(program):
        views = module.graph.find_nodes(op="call_function", target=_ATEN.view.default)
        if views and module.graph.find_nodes(op="call_function", target=_ATEN.scaled_dot_product_attention.default):
            for view in views:
                view.target = _ATEN.reshape.default
            module.recompile()


@contextmanager
def declared_bounds() -> Iterator[None]:
    """Keeps the bounds of input sizes as declared, and what depends on them, while the context is open."""
    patches = (_unrefined_ranges, _functions_of_sizes, _whole_lists, _full_for_empty, _numbers_of_one_type, _one_layout)
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each())
        yield


@mends(
    "fake kernels narrow the bounds of dynamic sizes", "torch.fx.experimental.symbolic_shapes.ShapeEnv._refine_ranges"
)
def _unrefined_ranges() -> AbstractContextManager[object]:
    """Keeps the bounds of input sizes.

    Exir runs programs on fake tensors many times, and torch 2.13 takes each comparison of a size for a fact about it.
    The fake convolution, for example, asks whether a batch has 16 or more items to choose a CPU algorithm. The
    example's batch has fewer, so the upper bound becomes 15: memory is planned for that, and the file rejects sizes
    that the model was exported for. Bounds of sizes that depend on data are left to torch: checks in the model's code
    narrow them. Delete once fake kernels do not refine ranges while exir runs its passes.
    """
    refine = ShapeEnv._refine_ranges  # noqa: SLF001 - see above

    def refine_ranges(env: ShapeEnv, expr: sympy.Basic) -> None:
        if not expr.free_symbols <= env.backed_var_to_val.keys():
            refine(env, expr)

    return patch.object(ShapeEnv, "_refine_ranges", refine_ranges)


@mends("functions of sizes, such as `torch.sym_max`, are refused", "edge_verifier._EXECUTORCH_SYM_OPS")
def _functions_of_sizes() -> AbstractContextManager[object]:
    """Lets exir's verifier (verification/verifier.py) take functions of sizes that are written in Python.

    `EdgeToBackendOpsPass` gives them operators later, which the runtime has. Delete once it knows them by itself.
    """
    operators = compat.edge_verifier._EXECUTORCH_SYM_OPS | compat.PYTHON_SYM_OPS_TO_EXECUTORCH_SYM_OPS.keys()  # noqa: SLF001 - see above
    return patch.object(compat.edge_verifier, "_EXECUTORCH_SYM_OPS", operators)


@mends("what `split` returns has the example's size", "EdgeOpArgValidator.call_function")
def _whole_lists() -> AbstractContextManager[object]:
    """Lets exir's verifier see the whole list that an operator returns, such as ``split``.

    It (verification/arg_validator.py) takes the first tensor for the list, and asks for its length. That makes a
    constant of its first size. Here it sees a list with the list inside. Delete once it uses no length of a tensor.
    """
    check = compat.EdgeOpArgValidator.call_function

    def call_function(validator: compat.EdgeOpArgValidator, target: Any, args: Any, kwargs: Any) -> Any:
        returns: Any = getattr(getattr(target, "_schema", None), "returns", ())
        meta = validator.node.meta
        if len(returns) != 1 or returns[0].type != torch.ListType.ofTensors():
            return check(validator, target, args, kwargs)
        tensors = meta["val"]
        meta["val"] = [tensors]
        try:
            return check(validator, target, args, kwargs)
        finally:
            meta["val"] = tensors

    return patch.object(compat.EdgeOpArgValidator, "call_function", call_function)


@mends("`empty` takes constant sizes only", "MemoryFormatOpsPass.call_operator")
def _full_for_empty() -> AbstractContextManager[object]:
    """Fills empty tensors of dynamic sizes with zeros.

    Exir's operator for ``empty`` takes constant sizes only (passes/dim_order_ops_registry.py), and makes them constant.
    ``full`` takes others, and the content of an empty tensor is undefined. Delete once it takes them.
    """
    convert = compat.MemoryFormatOpsPass.call_operator

    def call_operator(self: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        if op is not compat.edge_ops.aten.empty.memory_format or all(type(size) is int for size in args[0]):
            return convert(self, op, args, kwargs, meta)
        options = {**kwargs, "dtype": meta["val"].dtype}
        options.pop("memory_format", None)
        return ExportPass.call_operator(self, compat.edge_ops.aten.full.default, (args[0], 0), options, meta)

    return patch.object(compat.MemoryFormatOpsPass, "call_operator", call_operator)


@mends(
    "integers next to floating point tensors, as in `x + 3`, are cast in each call, outside of delegates",
    "ScalarToTensorPass.call_operator",
)
def _numbers_of_one_type() -> AbstractContextManager[object]:
    """Makes floating point tensors of integers next to floating point tensors, as in ``x + 3``.

    `ScalarToTensorPass` (exir/passes/scalar_to_tensor_pass.py) makes integers, which the program then casts in each
    call, outside of delegates: ``hardsigmoid`` has two of these casts. Delete once it makes tensors of the other dtype.
    """
    convert = compat.ScalarToTensorPass.call_operator

    def call_operator(self: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        tensors = [arg.to_tensor() for arg in args if isinstance(arg, compat.ProxyValue) and arg.is_tensor()]
        if op in _PROMOTED and any(tensor.dtype is torch.float32 for tensor in tensors):
            args = tuple(float(arg) if type(arg) is int else arg for arg in args)
        return convert(self, op, args, kwargs, meta)

    return patch.object(compat.ScalarToTensorPass, "call_operator", call_operator)


_PROMOTED = {getattr(_ATEN, name).Tensor for name in ("add", "mul", "sub", "div")}


@mends(
    'portable kernels refuse tensors of several layouts: "different dim orders"',
    "LegalizePortableDimOrderPass.call_operator",
)
def _one_layout() -> AbstractContextManager[object]:
    """Has operators of the portable kernels compute in the contiguous layout if their inputs have several.

    Kernels take tensors of one layout ("different dim orders"), but ``permute`` of channels-last values, the results of
    ``pixel_shuffle`` or ``pad`` of permuted ones, and sums of those and contiguous ones have several. Upstream copies
    the inputs of a few operators (exir/passes/legalize_portable_dim_order_pass.py). Images with one channel are laid
    out in both ways, and copies name another layout than the program says their result has. Delete once upstream copies
    for all operators, and compares strides.
    """
    legalize = compat.LegalizePortableDimOrderPass.call_operator

    def call_operator(self: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        value: Any = meta["val"] if "val" in meta else None  # noqa: SIM401 - it has no `get`; what writes state back has no value
        if _is_copy(op) and kwargs.get("dim_order") and _is_in_both_layouts(value):
            kwargs = {**kwargs, "dim_order": list(range(value.dim()))}
        if op in self._target_ops or not _has_several_layouts(op, args, value):
            return legalize(self, op, args, kwargs, meta)

        def copy(operand: Any) -> Any:
            is_tensor = isinstance(operand, compat.ProxyValue) and operand.is_tensor()
            if not is_tensor or _is_contiguous(operand.to_tensor()):
                return operand
            order = list(range(operand.to_tensor().dim()))
            metadata = compat.NodeMetadata(operand.node.meta)
            return legalize(self, self._copy_op, (operand,), {"dim_order": order}, metadata)

        args, kwargs = compat.pytree.tree_map(copy, (args, kwargs))
        return legalize(self, op, args, kwargs, meta)

    return patch.object(compat.LegalizePortableDimOrderPass, "call_operator", call_operator)


def _has_several_layouts(op: Any, args: Any, result: Any) -> bool:
    """Whether an operator takes or returns images in several layouts; convolutions may, and so may copies."""
    if op is compat.edge_ops.aten.convolution.default or _is_copy(op):
        return False
    leaves = compat.pytree.tree_leaves((args, result))
    values = [leaf.data if isinstance(leaf, compat.ProxyValue) else _of_node(leaf) for leaf in leaves]
    return len({_is_contiguous(value) for value in values if isinstance(value, torch.Tensor) and value.dim() > 3}) > 1


def _is_copy(op: Any) -> bool:
    return getattr(op, "namespace", "") == "dim_order_ops"


def _is_in_both_layouts(value: Any) -> bool:
    is_static = isinstance(value, torch.Tensor) and all(type(size) is int for size in value.shape)
    return is_static and value.is_contiguous() and not _is_contiguous(value)


def _is_contiguous(value: torch.Tensor) -> bool:
    return bool(compat.dim_order_from_stride(value.stride()) == tuple(range(value.dim())))


@mends("the whole graph is copied for each partition, which takes time", "lowered_backend_module.legalize_graph")
def sorting_in_place() -> AbstractContextManager[object]:
    """Has exir move the nodes of a graph that it sorts, while the context is open.

    For each partition, `create_submodule_from_nodes` (exir/lowered_backend_module.py) calls torch 2.13's
    `legalize_graph` (torch/fx/passes/tools_common.py), which makes a new graph of copied nodes in another order. That
    is more than half of the work of partitioning a transformer of 12 layers. Sound because the new graph is the same in
    all that a pass can see: the order of nodes, of users and of what `find_nodes` finds, and names, also of nodes that
    are created later. Nothing reads the old graph, now empty. Delete once exir sorts once, or torch sorts in place.
    """
    return patch.object(compat.lowered_backend_module, "legalize_graph", sort_nodes)


def sort_nodes(module: GraphModule) -> GraphModule:
    """Replaces `legalize_graph`: gives the module a new graph with the nodes of its old one, sorted."""
    old, new = module.graph, Graph()
    nodes = _in_order(old)
    if len(nodes) < len(old.nodes):
        return legalize_graph(module)  # there is a cycle: it raises
    for node in nodes:
        node.users.clear()
    names = new._graph_namespace  # noqa: SLF001 - as `Graph.create_node` does, and below
    for node in nodes:
        node.graph = new
        new._root.prepend(node)  # noqa: SLF001
        name = names.create_name(node.name, None)
        if name != node.name:
            node.name = name
        names.associate_name_with_obj(name, node)
        for source in node.all_input_nodes:
            source.users.setdefault(node)
        new._find_nodes_lookup_table.insert(node)  # noqa: SLF001
        new._len += 1  # noqa: SLF001
    new._codegen = old._codegen  # noqa: SLF001
    module.graph = new
    return module


def _in_order(graph: Graph) -> list[Node]:
    """Nodes after their inputs, the longest waiting first; without those of a cycle."""
    waiting = {node: len(node.all_input_nodes) for node in graph.nodes}
    queue = deque(node for node, count in waiting.items() if not count)
    nodes = []
    while queue:
        node = queue.popleft()
        nodes.append(node)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                first = user.op == "call_function" and user.target in _FIRST
                (queue.appendleft if first else queue.append)(user)
    return nodes


_FIRST = frozenset(
    {
        *(operator.add, operator.mul, operator.sub, operator.floordiv, operator.truediv, operator.mod),
        *(operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne),
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten._assert_async.msg,  # noqa: SLF001 - an operator's name
        torch.ops.aten.scalar_tensor.default,
        torch.ops.aten._assert_scalar.default,  # noqa: SLF001 - as above
    }
)
"""What `legalize_graph` takes as soon as it can: sizes and assertions about them."""


@mends(
    "all nodes after two partitions are looked up one by one, which takes time",
    "GroupBasedPartitioner._can_merge_partitions",
)
def merging_by_sets() -> AbstractContextManager[object]:
    """Has exir compare the nodes after two partitions as sets, not one by one, while the context is open.

    `GroupBasedPartitioner._can_merge_partitions` (exir/backend/canonical_partitioners/group_partitioner.py) asks for
    each pair of partitions whether a path leaves them and comes back. For a Llama of 12 layers that is 16 million
    look-ups. Sound because the answer is the same. Delete once upstream uses `isdisjoint`.
    """

    def can_merge(partitioner: Any, first: int, second: int, partitions: Mapping[int, Any]) -> bool:
        nodes = {*partitions[first].nodes, *partitions[second].nodes}
        users = {user for node in nodes for user in node.users} - nodes
        after = partitioner.dependency_viewer.downstreams_of
        return all(nodes.isdisjoint(after(user)) for user in users) and bool(validate_partition(list(nodes)))

    return patch.object(compat.GroupBasedPartitioner, "_can_merge_partitions", can_merge)


_CALLBACKS = [
    name
    for name in dir(ExportPass)
    if name.startswith(("call_", "_fx", "Export")) or name in {"placeholder", "output", "on_attr", "inputs"}
]
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@mends("passes trace graphs again in which nothing changed, which takes time", "ExportPassBase.call")
def no_idle_retraces() -> AbstractContextManager[object]:
    """Skips traces at the end of passes that would return their graph, while the context is open.

    Passes that edit a graph in place end with `super().call(graph_module)` (exir/pass_base.py), which executes the
    graph on fake tensors, node by node, whether or not the pass changed anything. A graph that is equal, name for name,
    to the result of its last trace comes out of the next one as it went in. The same holds for passes that override
    `call_operator`, if the graph has none of the operators that they treat specially (`_UNCHANGED_BY`). Sizes may be
    symbolic if that trace taught torch nothing about symbols, and nothing else has since: it then computes the same
    expressions. Everything else is traced: other passes that override a callback, graphs with submodules, operators
    that make symbols, and values of unknown types. Delete once passes that change nothing skip the trace.
    """
    trace = compat.ExportPassBase.call
    traced: WeakKeyDictionary[GraphModule, Any] = WeakKeyDictionary()  # what the last trace of a graph gave

    def call(self: ExportPass, graph_module: GraphModule) -> PassResult:
        symbols = _symbols_state(graph_module)
        before = _fingerprint(graph_module) if _would_only_retrace(self, graph_module) else None
        if before is not None and traced.get(graph_module) == (symbols, before):
            return PassResult(graph_module, modified=True)
        result = trace(self, graph_module)
        # `OpReplacePass` gives one operator for one, as a trace of its result would give them again.
        if (before is not None or type(self) is compat.OpReplacePass) and _symbols_state(graph_module) == symbols:
            traced[result.graph_module] = symbols, _fingerprint(result.graph_module)
        return result

    return patch.object(compat.ExportPassBase, "call", call)


def _would_only_retrace(pass_: ExportPass, graph_module: GraphModule) -> bool:
    kind: Any = type(pass_)
    if _only_retraces(kind):
        return True
    unchanged = _UNCHANGED_BY.get(kind)
    operators = (node for node in graph_module.graph.nodes if node.op == "call_function")
    return unchanged is not None and all(map(unchanged, operators))


def _has_tensors(node: Node) -> bool:
    """Whether no argument that should be a tensor is a number or a symbol."""
    schema = getattr(node.target, "_schema", None)
    parameters = schema.arguments if schema else ()
    arguments = [(node.kwargs.get(parameter.name), parameter) for parameter in parameters]
    arguments += zip(node.args, parameters, strict=False)
    values = (_of_node(value) for value, parameter in arguments if isinstance(parameter.type, torch.TensorType))
    return not any(isinstance(value, (int, float, *_SYMBOLIC)) for value in values)


def _of_node(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, Node) else argument


_PROMOTING = {"add", "mul", "sub", "div", "minimum"}


def _is_of_one_type(node: Node) -> bool:
    """Whether an operator that promotes its inputs, if it is one, has tensors of one floating point type."""
    packet = getattr(node.target, "overloadpacket", None)
    if len(node.args) < 2 or packet is None or packet.__name__ not in _PROMOTING:
        return True
    values = [_of_node(argument) for argument in node.args]
    dtypes = {value.dtype if isinstance(value, compat.FakeTensor) else None for value in values}
    return len(dtypes) == 1 and all(dtype is not None and dtype.is_floating_point for dtype in dtypes)


def _is_in_default_order(node: Node) -> bool:
    """Whether an operator that needs its input's dimensions in the default order, if it is one, has that."""
    if _is_copy(node.target) and _is_in_both_layouts(node.meta.get("val")):
        return False
    if _has_several_layouts(node.target, (node.args, node.kwargs), node.meta.get("val")):
        return False
    if node.target not in compat.LegalizePortableDimOrderPass._target_ops:  # noqa: SLF001 - has no public name
        return True
    value = _of_node(node.args[0])
    if not isinstance(value, compat.FakeTensor) or not all(
        type(size) is int for size in (*value.shape, *value.stride())
    ):
        return False
    return bool(value.dim_order() == tuple(range(value.dim())))


_UNCHANGED_BY: dict[type[ExportPass], Callable[[Node], bool]] = {
    compat.ConstPropPass: lambda node: any(value.op != "get_attr" for value in node.all_input_nodes),
    compat.DimOrderOpsRevertPass: lambda node: node.target not in compat.MemoryFormatOpsMap,
    compat.LegalizePortableDimOrderPass: _is_in_default_order,
    compat.MemoryFormatOpsPass: lambda node: node.target not in compat.DimOrderOpsMap,
    compat.NormalizeTransposePass: lambda node: node.target != torch.ops.aten.t.default,
    compat.RemoveMixedTypeOperators: _is_of_one_type,
    compat.ReplaceBrokenOpsWithFunctionalOpsPass: lambda node: not getattr(node.target, "is_view", False),
    compat.ScalarToTensorPass: _has_tensors,
    compat.SymToTensorPass: _has_tensors,
}
"""Says of an operator whether a pass that overrides `call_operator` leaves it as it is, by pass."""


@cache
def _only_retraces(pass_class: Hashable) -> bool:
    """Whether no callback of a pass changes what is traced."""
    return all(getattr(pass_class, name, None) is getattr(ExportPass, name) for name in _CALLBACKS)


def _fingerprint(graph_module: GraphModule) -> Any:
    """Everything that a trace reads; None if a value cannot be compared."""
    if any(isinstance(child, GraphModule) for child in graph_module.children()):
        return None
    try:
        return [
            (
                node.name,
                node.op,
                node.target,
                _argument(node.args),
                _argument(node.kwargs),
                _value(node.meta.get("val")),
            )
            for node in graph_module.graph.nodes
        ]
    except _UnknownError:
        return None


def _symbols_state(graph_module: GraphModule) -> Any:
    """Everything that torch simplifies sizes by, and the existing symbols."""
    values = (node.meta.get("val") for node in graph_module.graph.nodes)
    environments = (value.fake_mode.shape_env for value in values if isinstance(value, compat.FakeTensor))
    env = next(environments, None)
    return env and (env._version_counter, len(env.guards), dict(env.var_to_range))  # noqa: SLF001 - as its own caches do


class _UnknownError(Exception):
    """A value that two graphs cannot be compared by."""


def _argument(argument: Any) -> Any:
    if isinstance(argument, Node):
        return argument.op, argument.name
    if isinstance(argument, dict):
        return [(name, _argument(value)) for name, value in argument.items()]
    return _plain(argument, _argument)


def _value(value: Any) -> Any:
    if isinstance(value, compat.FakeTensor):
        sizes = [*map(_value, (*value.shape, *value.stride(), value.storage_offset()))]
        return value.dtype, value.requires_grad, value.dim(), sizes, value.fake_mode, value.constant is None
    if isinstance(value, _SYMBOLIC):
        return type(value), value.node.expr
    return _plain(value, _value)


def _plain(value: Any, of_item: Any) -> Any:
    if isinstance(value, list | tuple):
        return [of_item(item) for item in value]
    if isinstance(value, _PLAIN):
        return type(value), value
    raise _UnknownError


@mends("why partitioners leave calls to the CPU is not told", "WhyNoPartition.__call__")
@contextmanager
def reasons_of_partitioners() -> Iterator[dict[str, str]]:
    """The last reason of partitioners for leaving a node to others while the context is open, by its name.

    They only log it, through `WhyNoPartition` (exir/backend/utils.py of executorch 1.5.1), or `log_skip` of Vulkan's.
    """
    reasons: dict[str, str] = {}

    def noting(log: Callable[..., None]) -> Callable[..., None]:
        def note(self: Any, node: Node, reason: str) -> None:
            reasons[node.name] = reason
            log(self, node, reason)

        return note

    with ExitStack() as patches:
        patches.enter_context(patch.object(compat.WhyNoPartition, "__call__", noting(compat.WhyNoPartition.__call__)))
        if vulkan := sys.modules.get("executorch.backends.vulkan.partitioner.vulkan_partitioner"):
            operators = vulkan.VulkanSupportedOperators
            patches.enter_context(patch.object(operators, "log_skip", noting(operators.log_skip)))
        yield reasons


KEPT = "pteforge.kept_on_cpu"  # key of `Node.meta` under which a partitioner says why it leaves a call to the CPU


def exclude_from_partitions(program: ExportedProgram, state: Collection[str]) -> None:
    """Removes buffers that other methods change from a tagged program's partitions: delegates take them as inputs.

    To partitioners, a buffer that a method only reads is a constant, though another method may change it.
    """
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if node.op == "placeholder" and buffers.get(node.name) in state:
            node.meta.pop("delegation_tag", None)


class Keeping(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Has operators kept whole, all their calls or those that a function names, and delegates nothing."""

    def __init__(self, operators: list[Any], calls: Callable[[Node], bool] | None = None) -> None:
        super().__init__()
        self._kept = operators, calls

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[Node], bool] | None]:  # noqa: ARG002
        return self._kept

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})
