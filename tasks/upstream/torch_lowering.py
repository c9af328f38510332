"""torch 2.13 as graphs are lowered: repeated work, symbols. In keys of `edge`, `partition`, `preprocess`, `compile`."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx.graph_module import GraphModule
from torch.fx.traceback import NodeSource

from . import compat
from .patches import mends

_recompile = GraphModule.recompile


@mends(
    "the code of graphs is generated after every pass, which takes time", "torch.fx.graph_module.GraphModule.recompile"
)
@contextmanager
def code_on_demand() -> Iterator[None]:
    """Postpones generating the code of graph modules to its first use, while the context is open.

    `GraphModule.recompile` (torch/fx/graph_module.py) writes and compiles the source of `forward`. Lowering calls it
    thousands of times, and almost none of this code is ever called or read: exir interprets graphs. Here, `recompile`
    only marks the module, and readers of its code generate it first. Torch's own `_LazyGraphModule` does so for modules
    that are created that way. Sound unless an edited graph is not recompiled. Delete once exir creates lazy modules.

    exir's `backend_api` (executorch 1.5.1) formats whole graphs for messages that it then does not log; formatted, a
    graph module is its class and its number of nodes. `str` and `print` give its code as always.
    """

    def describe(module: GraphModule, specification: str) -> str:
        return format(f"{type(module).__name__} of {len(module.graph.nodes)} nodes", specification)

    with patch.object(GraphModule, "recompile", _mark), patch.object(GraphModule, "__format__", describe):
        yield


def _mark(module: GraphModule) -> Any:
    """Replaces `GraphModule.recompile`. Each graph module has its own class, which gets the marks."""
    module_class = type(module)
    if "GraphModuleImpl" not in module_class.__qualname__:
        return _recompile(module)
    codegen = module.graph._codegen  # noqa: SLF001 - as `recompile` does
    if isinstance(codegen, compat.PyTreeCodeGen):
        module._in_spec = codegen.pytree_info.in_spec  # noqa: SLF001 - as above
        module._out_spec = codegen.pytree_info.out_spec  # noqa: SLF001 - as above
    for name, mark in _MARKS.items():
        setattr(module_class, name, mark)
    return _Code(module)


def _generate(module: GraphModule) -> Any:
    """Removes the marks of a module, and generates its code."""
    for name, mark in _MARKS.items():
        if vars(type(module)).get(name) is mark:
            delattr(type(module), name)
    return _recompile(module)


@dataclass(eq=False)
class _Generated:
    """An attribute that exists once a module's code has been generated."""

    _name: str

    def __get__(self, module: GraphModule | None, owner: type) -> Any:
        if module is None:
            return self
        _generate(module)
        return getattr(module, self._name)

    def __set__(self, module: GraphModule, value: Any) -> None:
        vars(module)[self._name] = value


def _calling(name: str) -> Any:
    """A method that generates the code of a module, and then calls its method of that name."""

    def call(module: GraphModule, *args: Any) -> Any:
        _generate(module)
        return getattr(module, name)(*args)

    return call


_MARKS: dict[str, Any] = {
    **{name: _Generated(name) for name in ("forward", "_code", "_lineno_map", "_prologue_start")},
    **{name: _calling(name) for name in ("__reduce__", "__reduce_package__")},
}


@dataclass(eq=False, repr=False)
class _Code:
    """What `recompile` returns: the code of a module, generated when one of its attributes is read."""

    _module: GraphModule

    def __getattr__(self, name: str) -> Any:
        return getattr(_generate(self._module), name)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - as torch does


@mends(
    "every decomposition scans the whole operator registry, which takes time",
    "export_utils._collect_all_valid_cia_ops",
    "export_utils._materialize_cpp_cia_ops",
    "torch_ops.OperatorBase.py_impl",
    "torch_ops.Callable",
)
@contextmanager
def one_registry_scan() -> Iterator[None]:
    """Scans again only if operators were registered since, in C++ or by `py_impl`. Nothing outlasts the context.

    `_collect_all_valid_cia_ops` (torch/_export/utils.py) collects the operators with a CompositeImplicitAutograd kernel
    that can be kept. It checks every overload of every namespace, and asks C++ for all registrations once for each
    namespace. `to_edge` calls it more than a hundred times. Delete once torch caches the result.

    `run_decompositions` then registers some ten thousand kernels in Python while it runs, with
    `OperatorBase.py_impl` (torch/_ops.py), which builds the types of its annotations at each call. Those of `typing`
    are cached, those of `collections.abc` are not. Delete once torch's annotations are not evaluated.
    """
    scan, register = compat.export_utils._collect_all_valid_cia_ops, compat.torch_ops.OperatorBase.py_impl  # noqa: SLF001 - see above
    last: tuple[Any, set[compat.torch_ops.OperatorBase]] | None = None  # registrations, and the result of the scan

    def py_impl(operator: compat.torch_ops.OperatorBase, key: Any) -> Any:
        nonlocal last
        if last and key == _COMPOSITE and operator not in last[1]:
            last = None
        return register(operator, key)

    def scan_once() -> set[compat.torch_ops.OperatorBase]:
        nonlocal last
        if last is None or last[0] != _registered():
            compat.export_utils._materialize_cpp_cia_ops()  # noqa: SLF001 - see above
            with patch.object(compat.export_utils, "_materialize_cpp_cia_ops", lambda: None):  # asks C++ once
                operators = scan()
            last = _registered(), operators  # asked again: the scan itself creates namespaces
        return set(last[1])

    with ExitStack() as patches:
        every = [module for module in list(sys.modules.values()) if hasattr(module, "__dict__")]  # openvino's has none
        for module in [module for module in every if vars(module).get(scan.__name__) is scan]:
            patches.enter_context(patch.object(module, scan.__name__, scan_once))
        patches.enter_context(patch.object(compat.torch_ops.OperatorBase, "py_impl", py_impl))
        patches.enter_context(patch.object(compat.torch_ops, "Callable", typing.Callable))
        yield


def _registered() -> Any:
    """Registrations in C++, and the namespaces in Python."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(_COMPOSITE.name)  # noqa: SLF001 - as torch does
    return list(registered), list(torch.ops._dir)  # noqa: SLF001 - as torch does


@mends("each trace copies all ancestors of every node, which takes time", "torch.fx.traceback.NodeSource")
def shared_ancestors() -> AbstractContextManager[object]:
    """Makes deep copies of a `NodeSource` the same object, while the context is open.

    `NodeSource.__init__` (torch/fx/traceback.py) deep-copies ``meta["from_node"]``, which grows by one with each trace
    of the graph: quadratic work. Sound because nobody changes a finished `NodeSource`. Delete once torch shares them.
    """
    return patch.object(NodeSource, "__deepcopy__", lambda source, _: source, create=True)


@mends("unbacked symbols of one partition are taken for those of another")
@contextmanager
def no_pending_symbols(program: ExportedProgram) -> Iterator[None]:
    """Hides the pending symbols of other parts of the model while `program` is lowered.

    Passes of exir (executorch 1.5.1) leave fresh unbacked symbols in the shape environment that all partitions of a
    model share, and `compute_unbacked_bindings` (torch/fx/experimental/symbolic_shapes.py) takes them for symbols of
    the program that is traced. Delete once exir's passes leave no symbol pending.
    """
    mode = compat.detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    pending = mode.shape_env.pending_fresh_unbacked_symbols if mode and mode.shape_env else []
    kept = list(pending)
    pending.clear()
    try:
        yield
    finally:
        pending[:] = kept
