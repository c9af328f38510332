"""Programs as pickle streams. The caller keeps tensor storages and large bytes outside of the stream."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import CodeGen
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.traceback import NodeSource

from ..upstream import compat
from ..upstream.absent_weights import plain_attributes
from . import restore
from .storages import INLINE_STORAGE_LIMIT, BlobSink, is_plain, storage_bytes


class Interner:
    """Replaces equal objects by the first of them, within one stream."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._sources: dict[tuple[Any, ...], NodeSource] = {}
        self._seen: dict[int, NodeSource] = {}
        self._graphs: dict[int, int] = {}

    def meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        interned = dict(meta)
        for key in ("stack_trace", "torch_fn"):
            if key in interned:
                interned[key] = self._value(interned[key])
        if (stack := interned.get("nn_module_stack")) is not None:
            interned["nn_module_stack"] = self._stack(stack)
        if (functions := interned.get("source_fn_stack")) is not None:
            interned["source_fn_stack"] = [tuple(map(_nameable, entry)) for entry in functions]
        if (sources := interned.get("from_node")) is not None:
            interned["from_node"] = [self._source(source) for source in sources]
        return interned

    def _value(self, value: Any) -> Any:
        """The first equal value of the same type; strings within tuples are interned too."""
        if type(value) is tuple:
            value = tuple(map(self._value, value))
        try:
            return self._values.setdefault((type(value), value), value)
        except TypeError:  # not hashable
            return value

    def _stack(self, stack: dict[str, tuple[Any, ...]]) -> Any:
        """One object per call: torch's shallow copies of `meta` share the stack already."""
        items = tuple((self._value(key), self._value(tuple(map(_nameable, value)))) for key, value in stack.items())
        try:
            return self._values.setdefault((dict, items), dict(items))
        except TypeError:  # not hashable
            return stack

    def _source(self, source: NodeSource) -> NodeSource:
        if id(source) not in self._seen:
            earlier = tuple(id(self._source(child)) for child in source.from_node)
            key = (source.name, source.target, source.graph_id, source.pass_name, tuple(source.action), earlier)
            self._seen[id(source)] = self._sources.setdefault(key, source)
        return self._seen[id(source)]

    def source_arguments(self, source: NodeSource) -> tuple[Any, ...]:
        """Arguments of `restore.node_source`. Graphs are numbered, since their ids are addresses."""
        node = source.node_info
        described = None
        if node is not None:
            number = self._graphs.setdefault(node.graph_id, len(self._graphs))
            described = (self._value(node.name), self._value(node.target), number)
        earlier = [self._source(child) for child in source.from_node]
        return described, self._value(source.pass_name), source.action, earlier


def _nameable(source: Any) -> Any:
    """The name of a user's class or function, since later stages cannot import it; torch's own stay for its passes."""
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", "")
    if isinstance(source, str) or not module or not name:
        return source
    lasting = module.partition(".")[0] == "torch" and "<locals>" not in name
    return source if lasting else f"{module}.{name}"


_attribute = object.__getattribute__  # past the properties of a class

Reduction = tuple[Any, ...]
"""Callable and arguments as `object.__reduce_ex__` returns them; also a state and, sixth, its setter."""

_FRESH_MODULE = dict(restore.graph_module().__dict__)
_FRESH_ENV = dict(restore.shape_env().__dict__)
_REBUILT = {
    *("_graph", "_code", "_lineno_map", "_prologue_start"),
    *("_tracer_cls", "_tracer_extras", "_in_spec", "_out_spec"),
}
_CACHES = {"tracked_fakes", "fake_tensor_cache", "fx_node_cache", "log"}


def _changed(attributes: dict[str, Any], fresh: dict[str, Any], without: set[str]) -> dict[str, Any]:
    kept = {key: value for key, value in attributes.items() if key not in without}
    return {key: value for key, value in kept.items() if not (key in fresh and _is_fresh(value, fresh[key]))}


def _is_fresh(value: Any, fresh: Any) -> bool:
    if type(value) is not type(fresh):
        return False
    if isinstance(value, (dict, list, set)):
        return not value and not fresh
    return value is fresh or (isinstance(value, (bool, int, tuple)) and bool(value == fresh))


def lasting_operator(target: compat.OpOverload) -> compat.OpOverload:
    """The aten operator for one of the copies (EDGE_DO_NOT_DECOMP) that exir registers per process while it lowers."""
    return cast(compat.OpOverload, compat.transform_op_to_aten_op.get(str(target), target))


def reduce_operator(target: compat.OpOverload) -> Reduction:
    target = lasting_operator(target)
    namespace, name = target._schema.name.split("::")  # noqa: SLF001 - overloads have no public schema
    return restore.operator, (namespace, name, target._overloadname)  # noqa: SLF001 - as above


def reduce_dialect_operator(target: compat.EdgeOpOverload) -> Reduction:
    # the backend dialect's class is a subclass of the edge dialect's
    dialect = "backend" if isinstance(target, compat.BackendOpOverload) else "edge"
    return restore.dialect_operator, (dialect, *reduce_operator(target._op)[1])  # noqa: SLF001 - no public access


def reduce_fake_tensor(fake: compat.FakeTensor) -> Reduction:
    """Type, shape and strides. Upstream describes views and memos too, which no stage reads."""
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


def reduce_fake_mode(mode: compat.FakeTensorMode) -> Reduction:
    options = {
        "allow_fallback_kernels": mode.allow_fallback_kernels,
        "allow_non_fake_inputs": mode.allow_non_fake_inputs,
        "static_shapes": mode.static_shapes,
        "export": mode.fake_tensor_converter.export,
    }
    return restore.fake_mode, (options, mode.shape_env)


def _reduce_shape_env(env: ShapeEnv) -> Reduction:
    return restore.shape_env, (), _changed(vars(env), _FRESH_ENV, _CACHES), None, None, restore.fill_shape_env


def reduce_verifier(verifier: type[compat.Verifier]) -> Reduction:
    """A local class, as exir's verifiers are, by its options. Others are pickled by name."""
    restores = {"EDGE": restore.edge_verifier, "OLD_EXIR_ATEN": restore.aten_verifier}
    if verifier.dialect not in restores:
        raise TypeError(f"the verifier of dialect {verifier.dialect!r} is a local class of {verifier.__module__}")
    return restores[verifier.dialect], verifier_options(verifier)


def verifier_options(verifier: type[compat.Verifier]) -> tuple[Any, ...]:
    """Options of the class: for edge whether it checks and uses dim order; exempt and preserved operators."""
    if verifier.dialect not in ("EDGE", "OLD_EXIR_ATEN"):
        return ()
    instance: Any = verifier()
    switches = (instance.enable, instance.use_dim_order) if verifier.dialect == "EDGE" else ()
    return (*switches, list(instance._core_aten_ops_exception_list), list(instance._preserve_ops))  # noqa: SLF001 - not public


REDUCTIONS: dict[type, Callable[[Any], Reduction]] = {
    compat.BackendOpOverload: reduce_dialect_operator,
    # it names frames of a process that is gone
    compat.CapturedTraceback: lambda _: (compat.CapturedTraceback, (None, 0)),
    compat.EdgeOpOverload: reduce_dialect_operator,
    compat.FakeTensor: reduce_fake_tensor,
    compat.FakeTensorMode: reduce_fake_mode,
    compat.OpOverload: reduce_operator,
    compat.OpOverloadPacket: lambda packet: (restore.packet, tuple(packet._qualified_op_name.split("::"))),  # noqa: SLF001 - no public access
    ShapeEnv: _reduce_shape_env,
    SymNode: lambda node: (restore.sym_node, (node._expr, node.shape_env, node.pytype, node._hint, node.constant)),  # noqa: SLF001 - the properties simplify
    compat.ViewSpec: lambda spec: (restore.view_spec, (_attribute(spec, "_base"), list(_attribute(spec, "shape")))),
    compat.LeafSpec: lambda _leaf: (compat.treespec_leaf, ()),
    immutable_dict: lambda mapping: (immutable_dict, (dict(mapping),)),
    immutable_list: lambda sequence: (immutable_list, (tuple(sequence),)),
    torch.layout: lambda layout: (restore.member_of_torch, (str(layout),)),
    torch.memory_format: lambda memory_format: (restore.member_of_torch, (str(memory_format),)),
    torch.SymBool: lambda number: (torch.SymBool, (number.node,)),
    torch.SymFloat: lambda number: (torch.SymFloat, (number.node,)),
    torch.SymInt: lambda number: (torch.SymInt, (number.node,)),
}
"""Reductions by exact type; `_Pickler` handles types with subclasses or with state."""


INLINE_LIMIT = 4096  # bytes objects up to this size stay in the stream


@dataclass(eq=False)
class _Buffer:
    """Marks a buffer of named data in the stream."""

    content: bytes | compat.FileBackedData


@dataclass(eq=False)
class _AbsentWeight:
    """Marks an entry of a program's state or constants that is stored like a real tensor, but has no bytes."""

    fake: compat.FakeTensor


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, externals: BlobSink) -> None:
        super().__init__(stream, protocol=5)
        self._externals = externals
        self._graphs: set[torch.fx.Graph] = set()
        self._interner = Interner()
        self._marked: dict[int, _AbsentWeight] = {}
        self._stateful: dict[type, Callable[[Any], Reduction]] = {
            ExportedProgram: self._reduce_program,
            compat.NamedDataStoreOutput: self._reduce_named_data,
            NodeSource: lambda source: (restore.node_source, self._interner.source_arguments(source)),
            torch.Tensor: self._reduce_tensor,
            torch.UntypedStorage: self._reduce_storage,
            torch.fx.Graph: self._reduce_graph,
            torch.fx.Node: self._reduce_node,
            torch.nn.Parameter: self._reduce_tensor,
            _AbsentWeight: lambda marked: self._reduce_kept(marked.fake),
        }

    def persistent_id(self, item: Any) -> int | None:
        kind = type(item)
        if kind is bytes:
            return self._externals.put_bytes(item) if len(item) > INLINE_LIMIT else None
        if kind is torch.UntypedStorage:
            large = item.device.type == "cpu" and item.nbytes() > INLINE_STORAGE_LIMIT
            return self._externals.put_storage(item) if large or self._externals.is_weight(item) else None
        if kind is _Buffer:
            return self._externals.put_buffer(item.content)
        if kind is compat.FileBackedData:
            return self._externals.put_buffer(item)
        return None

    def reducer_override(self, item: Any) -> Any:
        kind = type(item)
        reduce = REDUCTIONS.get(kind) or self._stateful.get(kind)
        if reduce is not None:
            return reduce(item)
        if isinstance(item, type):
            local = issubclass(item, compat.Verifier) and "<locals>" in item.__qualname__
            return reduce_verifier(item) if local else NotImplemented
        if isinstance(item, torch.fx.GraphModule):
            # Python source is generated again from the graph; attributes may name its nodes
            state = (item.graph, _changed(vars(item), _FRESH_MODULE, _REBUILT))
            return restore.graph_module, (), state, None, None, restore.fill_graph_module
        if isinstance(item, compat.HigherOrderOperator):
            return restore.higher_order_operator, (item.name(),)
        return NotImplemented

    def _reduce_program(self, program: ExportedProgram) -> Reduction:
        """Everything but the example inputs, which are a separate artifact."""
        state = {key: value for key, value in vars(program).items() if key != "_example_inputs"}
        for table in ("_state_dict", "_constants"):
            state[table] = {name: self._mark(value) for name, value in state[table].items()}
        return restore.program, (state,)

    def _mark(self, value: Any) -> Any:
        """One mark per tensor, since tensors that are one stay one."""
        if not isinstance(value, compat.FakeTensor) or not self._externals.is_weight(value.untyped_storage()):
            return value
        return self._marked.setdefault(id(value), _AbsentWeight(value))

    def _reduce_graph(self, graph: torch.fx.Graph) -> Reduction:
        """All nodes first, then their `meta`, which may name any of them."""
        self._graphs.add(graph)
        codegen = graph._codegen  # noqa: SLF001 - see `restore.graph`
        nodes = tuple(graph.nodes)
        metas = tuple(self._interner.meta(node.meta) for node in nodes)
        arguments = (None if type(codegen) is CodeGen else codegen,)
        return restore.graph, arguments, (nodes, metas), None, None, restore.fill_graph

    def _reduce_node(self, node: torch.fx.Node) -> Reduction:
        if node.graph not in self._graphs or node._erased:  # noqa: SLF001 - no public access
            return restore.missing, ()
        return restore.node, (node.graph, node.op, node.target, node.args, node.kwargs or None, node.name, node.type)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Reduction:
        if tensor.device.type not in ("cpu", "meta") or not is_plain(tensor):
            kind = f"layout {tensor.layout}, type {tensor.dtype} on {tensor.device}"
            raise TypeError(f"a tensor of {kind} cannot be stored")
        self._externals.note_tensor(tensor)
        return self._reduce_kept(tensor)

    def _reduce_kept(self, tensor: torch.Tensor) -> Reduction:
        return restore.tensor, (
            self._externals.storages.first(tensor.untyped_storage()),
            tensor.dtype,
            (tuple(tensor.shape), tensor.stride(), tensor.storage_offset()),
            tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
            plain_attributes(tensor),
        )

    def _reduce_storage(self, storage: torch.UntypedStorage) -> Reduction:
        if storage.device.type == "cpu":
            return restore.storage, (bytes(storage_bytes(storage)),)
        return restore.meta_storage, (storage.nbytes(),)

    def _reduce_named_data(self, output: compat.NamedDataStoreOutput) -> Reduction:
        buffers = [_Buffer(buffer) if len(buffer) > INLINE_LIMIT else buffer for buffer in output.buffers]
        return restore.named_data, (buffers, output.pte_data, output.external_data)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, externals: Sequence[Any]) -> None:
        super().__init__(stream)
        self._externals = externals

    def persistent_load(self, number: int) -> Any:
        return self._externals[number]


def dump_stream(value: Any, externals: BlobSink) -> bytes:
    """The stream of a program or another value; large content goes to `externals`. Raises pickle's errors."""
    stream = io.BytesIO()
    _Pickler(stream, externals).dump(value)
    return stream.getvalue()


def load_stream(stream: bytes, externals: Sequence[Any]) -> Any:
    """Inverse of `dump_stream`, with externals by number; only for trusted streams, which can run any code."""
    return _Unpickler(io.BytesIO(stream), externals).load()
