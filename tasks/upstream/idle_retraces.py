"""Exir 1.5.1 traces a graph again at the end of many passes; with this patch not if the trace would give it back.

Passes that edit a graph in place end with `super().call(graph_module)` (exir/pass_base.py), which executes the graph on
fake tensors, node by node, whether or not the pass changed anything. A graph that is, name for name, what the last such
trace of it gave comes out of the next one as it went in. The same holds for passes that override `call_operator`, if
the graph has none of the operators that they treat specially (`_UNCHANGED_BY`). Everything else is traced: other passes
that override a callback, graphs with submodules, symbolic sizes, and values of unknown types. Delete once passes that
change nothing skip the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.exir.pass_base import ExportPass, _ExportPassBase
from executorch.exir.passes.const_prop_pass import ConstPropPass
from executorch.exir.passes.dim_order_ops_registry import DimOrderOpsMap, MemoryFormatOpsMap
from executorch.exir.passes.legalize_portable_dim_order_pass import LegalizePortableDimOrderPass
from executorch.exir.passes.memory_format_ops_pass import DimOrderOpsRevertPass, MemoryFormatOpsPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

_CALLBACKS = [
    name
    for name in dir(ExportPass)
    if name.startswith(("call_", "_fx", "Export")) or name in {"placeholder", "output", "on_attr", "inputs"}
]
_PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@contextmanager
def no_idle_retraces() -> Iterator[None]:
    """While the context is open, skips traces that would not change their graph."""
    trace = _ExportPassBase.call
    traced: WeakKeyDictionary[GraphModule, Any] = WeakKeyDictionary()  # what the last trace of a graph gave

    def call(self: ExportPass, graph_module: GraphModule) -> PassResult:
        before = _fingerprint(graph_module) if _would_only_retrace(self, graph_module) else None
        if before is not None and traced.get(graph_module) == before:
            return PassResult(graph_module, modified=True)
        result = trace(self, graph_module)
        # `OpReplacePass` gives one operator for one, as a trace of its result would give them again.
        if before is not None or type(self) is OpReplacePass:
            traced[result.graph_module] = _fingerprint(result.graph_module)
        return result

    _ExportPassBase.call = call
    try:
        yield
    finally:
        _ExportPassBase.call = trace


def _would_only_retrace(pass_: ExportPass, graph_module: GraphModule) -> bool:
    kind: Any = type(pass_)
    if _only_retraces(kind):
        return True
    unchanged = _UNCHANGED_BY.get(kind)
    operators = (node for node in graph_module.graph.nodes if node.op == "call_function")
    return unchanged is not None and all(map(unchanged, operators))


def _has_variable(node: Node) -> bool:
    """Whether an operator takes a value that is known only when the program runs."""
    return any(taken.op != "get_attr" for taken in node.all_input_nodes)


def _has_tensors(node: Node) -> bool:
    """Whether an operator has no number in the place of a tensor."""
    schema = getattr(node.target, "_schema", None)
    arguments = schema.arguments if schema else ()
    given = [(node.kwargs.get(argument.name), argument) for argument in arguments]
    given += zip(node.args, arguments, strict=False)
    return not any(
        isinstance(value, int | float) and isinstance(argument.type, torch.TensorType) for value, argument in given
    )


_PROMOTING = {"add", "mul", "sub", "div", "minimum"}


def _is_of_one_type(node: Node) -> bool:
    """Whether an operator that promotes its inputs, if it is one, has tensors of one floating point type."""
    packet = getattr(node.target, "overloadpacket", None)
    if len(node.args) < 2 or packet is None or packet.__name__ not in _PROMOTING:
        return True
    values = [argument.meta.get("val") if isinstance(argument, Node) else None for argument in node.args]
    dtypes = {value.dtype if isinstance(value, FakeTensor) else None for value in values}
    return len(dtypes) == 1 and all(dtype is not None and dtype.is_floating_point for dtype in dtypes)


def _is_in_default_order(node: Node) -> bool:
    """Whether an operator that needs its input's dimensions in the default order, if it is one, has that."""
    if node.target not in LegalizePortableDimOrderPass._target_ops:  # noqa: SLF001 - has no public name
        return True
    value = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return isinstance(value, FakeTensor) and value.dim_order() == tuple(range(value.dim()))


_UNCHANGED_BY: dict[type[ExportPass], Callable[[Node], bool]] = {
    ConstPropPass: _has_variable,
    DimOrderOpsRevertPass: lambda node: node.target not in MemoryFormatOpsMap,
    LegalizePortableDimOrderPass: _is_in_default_order,
    MemoryFormatOpsPass: lambda node: node.target not in DimOrderOpsMap,
    NormalizeTransposePass: lambda node: node.target != torch.ops.aten.t.default,
    RemoveMixedTypeOperators: _is_of_one_type,
    ReplaceBrokenOpsWithFunctionalOpsPass: lambda node: not getattr(node.target, "is_view", False),
    ScalarToTensorPass: _has_tensors,
    SymToTensorPass: lambda _: True,  # graphs with symbolic values take the plain way
}
"""By pass that overrides `call_operator`, whether it leaves an operator as it is."""


@cache
def _only_retraces(pass_class: Hashable) -> bool:
    """Whether no callback of a pass changes what is traced."""
    return all(getattr(pass_class, name, None) is getattr(ExportPass, name) for name in _CALLBACKS)


def _fingerprint(graph_module: GraphModule) -> Any:
    """What a trace would read; None where that cannot be said."""
    if any(isinstance(child, GraphModule) for child in graph_module.children()):
        return None
    try:
        return [_row(node) for node in graph_module.graph.nodes]
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A value that two graphs cannot be compared by."""


def _row(node: Node) -> Any:
    return node.name, node.op, node.target, _argument(node.args), _argument(node.kwargs), _value(node.meta.get("val"))


def _argument(argument: Any) -> Any:
    if isinstance(argument, Node):
        return argument.op, argument.name
    if isinstance(argument, dict):
        return [(name, _argument(value)) for name, value in argument.items()]
    return _plain(argument, _argument)


def _value(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        sizes = *value.shape, *value.stride(), value.storage_offset()
        if not all(type(size) is int for size in sizes):
            raise _UnknownError
        return value.dtype, value.requires_grad, value.dim(), sizes, value.fake_mode, value.constant is None
    return _plain(value, _value)


def _plain(value: Any, of_item: Any) -> Any:
    if isinstance(value, list | tuple):
        return [of_item(item) for item in value]
    if isinstance(value, _PLAIN):
        return type(value), value
    raise _UnknownError
