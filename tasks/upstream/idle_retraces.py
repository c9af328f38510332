"""Exir 1.5.1 traces a graph again at the end of many passes; with this patch not if the trace would give it back.

Passes that edit a graph in place end with `super().call(graph_module)` (exir/pass_base.py), which executes the graph on
fake tensors, node by node, whether or not the pass changed anything. A graph that is, name for name, what the last such
trace of it gave comes out of the next one as it went in. Everything else takes the plain way: passes that override a
callback, graphs with submodules, symbolic sizes, and values of unknown types. Delete once passes that change nothing
skip the trace.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.exir.pass_base import ExportPass, _ExportPassBase
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
        if not _only_retraces(type(self)):  # type: ignore[arg-type]  # classes are hashable
            return trace(self, graph_module)
        before = _fingerprint(graph_module)
        if before is not None and traced.get(graph_module) == before:
            return PassResult(graph_module, modified=True)
        result = trace(self, graph_module)
        if before is not None:
            traced[result.graph_module] = _fingerprint(result.graph_module)
        return result

    _ExportPassBase.call = call
    try:
        yield
    finally:
        _ExportPassBase.call = trace


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
