"""How the objects of a program are written: for each kind, the call of `restore` that makes it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from executorch.exir.dialects.backend._ops import BackendOpOverload
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.program._program import transform_op_to_aten_op
from torch._export.verifier import Verifier
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import CodeGen
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils._pytree import LeafSpec, treespec_leaf
from torch.utils._traceback import CapturedTraceback

from . import restore
from .sharing import Sharing

Reduction = tuple[Any, ...]
"""Callable and arguments as `object.__reduce_ex__` gives them; maybe a state and, sixth, what takes the state."""

_FRESH_MODULE = dict(restore.graph_module().__dict__)
_FRESH_ENV = dict(restore.shape_env().__dict__)
_REBUILT = {
    "_graph",
    "_code",
    "_lineno_map",
    "_prologue_start",
    "_tracer_cls",
    "_tracer_extras",
    "_in_spec",
    "_out_spec",
}
_CACHES = {"tracked_fakes", "fake_tensor_cache", "fx_node_cache", "log"}


def reduce_program(program: ExportedProgram) -> Reduction:
    """Everything but the example inputs, which are an artifact of their own."""
    return restore.program, ({key: value for key, value in vars(program).items() if key != "_example_inputs"},)


def reduce_graph_module(module: torch.fx.GraphModule) -> Reduction:
    """The graph, and what a fresh module does not have. Python source is made again from the graph."""
    state = (module.graph, _changed(vars(module), _FRESH_MODULE, _REBUILT))  # attributes may name nodes
    return restore.graph_module, (), state, None, None, restore.fill_graph_module


def reduce_graph(graph: torch.fx.Graph, sharing: Sharing) -> Reduction:
    """All nodes first, then their `meta`, which may name any of them."""
    codegen = graph._codegen  # noqa: SLF001 - see `restore.graph`
    nodes = tuple(graph.nodes)
    metas = tuple(sharing.meta(node.meta) for node in nodes)
    arguments = (None if type(codegen) is CodeGen else codegen,)
    return restore.graph, arguments, (nodes, metas), None, None, restore.fill_graph


def _changed(attributes: dict[str, Any], fresh: dict[str, Any], without: set[str]) -> dict[str, Any]:
    """The attributes that a fresh object has not."""
    return {
        key: value
        for key, value in attributes.items()
        if key not in without and not (key in fresh and _is_fresh(value, fresh[key]))
    }


def _is_fresh(value: Any, fresh: Any) -> bool:
    if type(value) is not type(fresh):
        return False
    if isinstance(value, (dict, list, set)):
        return not value and not fresh
    return value is fresh or (isinstance(value, (bool, int, tuple)) and bool(value == fresh))


def reduce_node(node: torch.fx.Node) -> Reduction:
    """Earlier nodes in the arguments are already in the stream."""
    return restore.node, (node.graph, node.op, node.target, node.args, node.kwargs or None, node.name, node.type)


def lasting_operator(target: OpOverload) -> OpOverload:
    """The aten operator for one of the copies (EDGE_DO_NOT_DECOMP) that exir registers per process while it lowers."""
    return cast(OpOverload, transform_op_to_aten_op.get(str(target), target))


def reduce_operator(target: OpOverload) -> Reduction:
    """An operator by name."""
    target = lasting_operator(target)
    namespace, name = target._schema.name.split("::")  # noqa: SLF001 - overloads have no public schema
    return restore.operator, (namespace, name, target._overloadname)  # noqa: SLF001 - as above


def reduce_dialect_operator(target: EdgeOpOverload) -> Reduction:
    """An operator of exir's own dialects by name."""
    dialect = "backend" if isinstance(target, BackendOpOverload) else "edge"  # the first is a subclass of the second
    return restore.dialect_operator, (dialect, *reduce_operator(target._op)[1])  # noqa: SLF001 - no public access


def reduce_packet(target: OpOverloadPacket) -> Reduction:
    """All overloads of an operator, by name."""
    return restore.packet, tuple(target._qualified_op_name.split("::"))  # noqa: SLF001 - no public access


def reduce_higher_order_operator(target: HigherOrderOperator) -> Reduction:
    """A higher-order operator by name."""
    return restore.higher_order_operator, (target.name(),)


def reduce_fake_tensor(fake: FakeTensor) -> Reduction:
    """Type, shape and strides. Upstream describes views and memos too, which no stage of a lowering looks at."""
    if fake.layout is not torch.strided:
        raise TypeError(f"a fake tensor of layout {fake.layout} cannot be stored")
    return restore.fake_tensor, (
        fake.fake_mode,
        fake.dtype,
        (tuple(fake.shape), fake.stride(), fake.storage_offset()),
        str(fake.fake_device),
        fake.requires_grad,
        isinstance(fake, torch.nn.Parameter),
        fake.constant,
    )


def reduce_fake_mode(mode: FakeTensorMode) -> Reduction:
    """Options of a fake tensor mode; its caches are left out."""
    options = {
        "allow_fallback_kernels": mode.allow_fallback_kernels,
        "allow_non_fake_inputs": mode.allow_non_fake_inputs,
        "static_shapes": mode.static_shapes,
        "export": mode.fake_tensor_converter.export,
    }
    return restore.fake_mode, (options, mode.shape_env)


def reduce_shape_env(env: ShapeEnv) -> Reduction:
    """Symbols, hints, ranges and guards."""
    return restore.shape_env, (), _changed(vars(env), _FRESH_ENV, _CACHES), None, None, restore.fill_shape_env


def reduce_sym_node(node: SymNode) -> Reduction:
    """Expression and hint as they are, not simplified."""
    return restore.sym_node, (node._expr, node.shape_env, node.pytype, node._hint, node.constant)  # noqa: SLF001 - the properties simplify


def reduce_verifier(verifier: type[Verifier]) -> Reduction:
    """A local class, as exir's verifiers are: made again from its options. Others are found by name."""
    restores = {"EDGE": restore.edge_verifier, "OLD_EXIR_ATEN": restore.aten_verifier}
    if verifier.dialect not in restores:
        raise TypeError(f"the verifier of dialect {verifier.dialect!r} is a local class of {verifier.__module__}")
    return restores[verifier.dialect], verifier_options(verifier)


def verifier_options(verifier: type[Verifier]) -> tuple[Any, ...]:
    """What the class was made from: for edge whether it checks and uses dim order; exempt and preserved operators."""
    if verifier.dialect not in ("EDGE", "OLD_EXIR_ATEN"):
        return ()
    made: Any = verifier()
    switches = (made.enable, made.use_dim_order) if verifier.dialect == "EDGE" else ()
    return (*switches, list(made._core_aten_ops_exception_list), list(made._preserve_ops))  # noqa: SLF001 - not public


def reduce_view_spec(spec: _ViewSpec) -> Reduction:
    """Base and shape; attributes of these specs run guards, so they are read past them."""
    return restore.view_spec, (object.__getattribute__(spec, "_base"), list(object.__getattribute__(spec, "shape")))


def reduce_traceback(_traceback: CapturedTraceback) -> Reduction:
    """Where in torch a symbol was made: not kept, it names frames of a process that is gone."""
    return CapturedTraceback, (None, 0)


REDUCTIONS: dict[type, Callable[[Any], Reduction]] = {
    BackendOpOverload: reduce_dialect_operator,
    CapturedTraceback: reduce_traceback,
    EdgeOpOverload: reduce_dialect_operator,
    ExportedProgram: reduce_program,
    FakeTensor: reduce_fake_tensor,
    FakeTensorMode: reduce_fake_mode,
    OpOverload: reduce_operator,
    OpOverloadPacket: reduce_packet,
    ShapeEnv: reduce_shape_env,
    SymNode: reduce_sym_node,
    _ViewSpec: reduce_view_spec,
    LeafSpec: lambda _leaf: (treespec_leaf, ()),
    immutable_dict: lambda mapping: (immutable_dict, (dict(mapping),)),
    immutable_list: lambda sequence: (immutable_list, (tuple(sequence),)),
    torch.SymBool: lambda number: (torch.SymBool, (number.node,)),
    torch.SymFloat: lambda number: (torch.SymFloat, (number.node,)),
    torch.SymInt: lambda number: (torch.SymInt, (number.node,)),
}
"""By exact type; see `pickler` for kinds that are recognised otherwise or need its state."""
