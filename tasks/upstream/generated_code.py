"""Torch 2.13 writes and compiles Python code for a graph after each pass; with this patch, only if that code is used.

`GraphModule.recompile` (torch/fx/graph_module.py) generates the source of `forward`. Lowering calls it thousands of
times, and next to none of this code is ever called or read: exir interprets graphs. Here, `recompile` only marks the
module, and whatever reads its code generates that first. Torch's own `_LazyGraphModule` does so for modules that are
created as such. Sound as long as nobody edits a graph, does not recompile it, and counts on the code from before.
Delete once exir creates lazy graph modules.

exir's `backend_api` (executorch 1.5.1) formats whole graphs for messages that it then does not log; formatted, a graph
module is its class and its number of nodes. `str` and `print` give its code as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx.graph import _PyTreeCodeGen
from torch.fx.graph_module import GraphModule

_recompile = GraphModule.recompile


@contextmanager
def code_on_demand() -> Iterator[None]:
    """Generates no code while the context is open. What is marked then generates its code at first use, whenever."""
    GraphModule.recompile = _mark
    GraphModule.__format__ = _describe
    try:
        yield
    finally:
        GraphModule.recompile = _recompile
        del GraphModule.__format__


def _mark(module: GraphModule) -> Any:
    """In place of `GraphModule.recompile`. Each graph module has a class of its own, which gets the marks."""
    own_class = type(module)
    if "GraphModuleImpl" not in own_class.__qualname__:
        return _recompile(module)
    codegen = module.graph._codegen  # noqa: SLF001 - as `recompile` does
    if isinstance(codegen, _PyTreeCodeGen):
        module._in_spec = codegen.pytree_info.in_spec  # noqa: SLF001 - as above
        module._out_spec = codegen.pytree_info.out_spec  # noqa: SLF001 - as above
    for name, mark in _MARKS.items():
        setattr(own_class, name, mark)
    return _Code(module)


def _generate(module: GraphModule) -> Any:
    """Removes the marks of a module, and generates its code."""
    own_class = type(module)
    for name, mark in _MARKS.items():
        if vars(own_class).get(name) is mark:
            delattr(own_class, name)
    return _recompile(module)


class _Generated:
    """An attribute that exists once a module's code has been generated."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: GraphModule | None, owner: type) -> Any:
        if module is None:
            return self
        _generate(module)
        return getattr(module, self._name)

    def __set__(self, module: GraphModule, value: Any) -> None:
        vars(module)[self._name] = value


def _reduce(module: GraphModule) -> Any:
    _generate(module)
    return module.__reduce__()


def _reduce_package(module: GraphModule, exporter: Any) -> Any:
    _generate(module)
    return module.__reduce_package__(exporter)


_MARKS: dict[str, Any] = {
    **{name: _Generated(name) for name in ("forward", "_code", "_lineno_map", "_prologue_start")},
    "__reduce__": _reduce,
    "__reduce_package__": _reduce_package,
}


class _Code:
    """What `recompile` returns: the code of a module, generated when one of its attributes is read."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(_generate(self._module), name)


def _describe(module: GraphModule, specification: str) -> str:
    return format(f"{type(module).__name__} of {len(module.graph.nodes)} nodes", specification)
