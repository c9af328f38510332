"""Functions that the streams of `pickler` call. Their names and arguments are part of the stream format."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.verification.verifier import EXIRATenDialectVerifier, EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import NodeSource

from ..upstream import compat
from .storages import copied_storage

# Modules that register operators: imported when a stream names an operator that the process does not know yet.
_LIBRARIES = {
    "quantized_decomposed": ("torch.ao.quantization.fx._decomposed",),
    "torchao": ("torchao",),
    "llama": ("executorch.extension.llm.custom_ops.custom_ops",),
    "quant": ("torchao.prototype.quantization.codebook_coreml.codebook_ops",),
    "dim_order_ops": ("executorch.exir.passes.dim_order_ops_registry",),
}


def program(state: dict[str, Any]) -> ExportedProgram:
    """An `ExportedProgram` without running its constructor, which would verify the graph and copy it."""
    restored = ExportedProgram.__new__(ExportedProgram)
    restored.__dict__.update(state)
    restored._example_inputs = None  # noqa: SLF001 - the one attribute that is not stored
    return restored


def graph_module() -> torch.fx.GraphModule:
    """A graph module without a graph, with the other attributes as `GraphModule.__init__` leaves them."""
    module = torch.fx.GraphModule.__new__(torch.fx.GraphModule)
    torch.nn.Module.__init__(module)
    module.__dict__.update(
        _tracer_cls=None,
        _tracer_extras={},
        meta={},
        _replace_hooks=[],
        _create_node_hooks=[],
        _erase_node_hooks=[],
        _deepcopy_hooks=[],
        shape_env=None,
    )
    return module


def fill_graph_module(module: torch.fx.GraphModule, state: tuple[torch.fx.Graph, dict[str, Any]]) -> None:
    module.__dict__["_graph"], attributes = state
    module.__dict__.update(attributes)
    module.graph.owning_module = module
    module.recompile()


def graph(codegen: Any) -> torch.fx.Graph:
    restored = torch.fx.Graph()
    if codegen is not None:
        restored._codegen = codegen  # noqa: SLF001 - has no constructor argument
    return restored


def node(
    graph: torch.fx.Graph, operation: str, target: Any, args: Any, kwargs: Any, name: str, kind: Any
) -> torch.fx.Node:
    """Appends a node under exactly this name, which the signature may refer to."""
    restored = graph.create_node(operation, target, args, kwargs, name, kind)
    restored.name = name
    return restored


def fill_graph(_graph: torch.fx.Graph, state: tuple[tuple[torch.fx.Node, ...], tuple[dict[str, Any], ...]]) -> None:
    """Sets the `meta` of all nodes at the end, since it may refer to later nodes."""
    for restored, meta in zip(*state, strict=True):
        restored.meta = meta


def missing() -> None:
    """None in place of a node whose graph is not part of the program."""


@cache
def installed_targets() -> tuple[Any, ...]:
    """The classes of all targets that can be imported.

    They are entry points here, and not imports, so that their code is only in keys of stages that use them.
    """
    targets: list[Any] = []
    for entry in entry_points(group="pteforge.targets"):
        with suppress(Exception):  # says more where it is used
            target = entry.load()
            targets += [target] if hasattr(target, "operators") else []
    return tuple(targets)


@cache
def operator_modules() -> dict[str, tuple[str, ...]]:
    """The modules that register operators of targets and what these compute in Python, by the operators' namespace."""
    return {namespace: modules for target in installed_targets() for namespace, modules in target.operators.items()}


def operator(namespace: str, name: str, overload: str) -> Any:
    packets = getattr(torch.ops, namespace)
    if not hasattr(packets, name):
        for module in {**operator_modules(), **_LIBRARIES}.get(namespace, ()):
            importlib.import_module(module)
    return getattr(getattr(packets, name), overload)


def dialect_operator(dialect: str, namespace: str, name: str, overload: str) -> Any:
    operator(namespace, name, overload)
    return getattr(getattr(getattr(getattr(compat.exir_ops, dialect), namespace), name), overload)


def packet(namespace: str, name: str) -> Any:
    return getattr(getattr(torch.ops, namespace), name)


def higher_order_operator(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


def member_of_torch(name: str) -> Any:
    """A memory format or a layout. Pickle itself would look for one through all loaded modules, in their order."""
    return getattr(torch, name.removeprefix("torch."))


def storage(content: bytes) -> torch.UntypedStorage:
    return copied_storage(content)


def meta_storage(size: Any) -> torch.UntypedStorage:
    return torch.UntypedStorage(size, device="meta")


def tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    geometry: tuple[Sequence[int], Sequence[int], int],
    requires_grad: bool,
    parameter: bool,
    attributes: dict[str, Any],
) -> torch.Tensor:
    """A tensor on a storage of the program; `geometry` is shape, strides and offset."""
    shape, strides, offset = geometry
    restored = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
    if parameter:
        restored = torch.nn.Parameter(restored, requires_grad=requires_grad)
    elif requires_grad:
        restored.requires_grad_()
    vars(restored).update(attributes)
    return restored


def fake_mode(options: dict[str, Any], shape_env: ShapeEnv | None) -> compat.FakeTensorMode:
    return compat.FakeTensorMode(shape_env=shape_env, **options)


def fake_tensor(
    mode: compat.FakeTensorMode,
    dtype: torch.dtype,
    geometry: tuple[Sequence[int], Sequence[int], int],
    device: str,
    requires_grad: bool,
    parameter: bool,
    constant: torch.Tensor | None,
) -> torch.Tensor:
    """A strided fake tensor with its own storage; shape, strides and offset may be symbolic."""
    shape, strides, offset = geometry
    with compat.no_dispatch():
        if isinstance(offset, int) and offset == 0:
            meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        else:
            empty = any(isinstance(size, int) and size == 0 for size in shape)
            extent = 0 if empty else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
            meta = torch.empty(offset + extent, dtype=dtype, device="meta").as_strided(shape, strides, offset)
    restored = compat.FakeTensor(mode, meta, torch.device(device), constant=constant)
    if parameter:
        return torch.nn.Parameter(restored, requires_grad=requires_grad)
    return restored.requires_grad_() if requires_grad else restored


def shape_env() -> ShapeEnv:
    return ShapeEnv()


def fill_shape_env(env: ShapeEnv, attributes: dict[str, Any]) -> None:
    env.__dict__.update(attributes)


def sym_node(expression: Any, env: ShapeEnv, kind: type, hint: Any, constant: Any) -> SymNode:
    return SymNode(expression, env, kind, hint, constant)


def edge_verifier(enable: bool, dim_order: bool, exceptions: list[Any], preserve: list[Any]) -> type[compat.Verifier]:
    config = EdgeCompileConfig(_check_ir_validity=enable, _skip_dim_order=not dim_order)
    made: type[compat.Verifier] = EXIREdgeDialectVerifier(
        edge_compile_config=config, class_only=True, core_aten_ops_exception_list=exceptions, preserve_ops=preserve
    )
    return made


def aten_verifier(exceptions: list[Any], preserve: list[Any]) -> type[compat.Verifier]:
    made: type[compat.Verifier] = EXIRATenDialectVerifier(
        class_only=True, core_aten_ops_exception_list=exceptions, preserve_ops=preserve
    )
    return made


def view_spec(base: Any, shape: list[int]) -> compat.ViewSpec:
    return compat.ViewSpec(base, shape)


def named_data(
    buffers: list[Any], pte_data: dict[str, Any], external_data: dict[str, Any]
) -> compat.NamedDataStoreOutput:
    return compat.NamedDataStoreOutput(buffers, pte_data, external_data)


def node_source(node: tuple[str, str, int] | None, pass_name: str, action: list[Any], earlier: list[Any]) -> NodeSource:
    """The origin of a node; `graph_id` is the graph's number in the program, not an address."""
    restored = NodeSource(None, pass_name, action)
    restored.node_info = None if node is None else NodeSource.NodeInfo(*node)
    restored.from_node = earlier
    return restored
