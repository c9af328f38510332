"""What executorch 1.5.1 emits: ``cond``, remainders, weights; part of the keys of `compile` and `bisect_payload`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from hashlib import sha256
from io import BufferedIOBase
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ...artifacts.digest import Digest, digest_bytes
from . import compat
from .patches import mends

_COND = torch.ops.higher_order.cond
_CONTROL_FLOW = (_COND, torch.ops.higher_order.map_impl, torch.ops.higher_order.scan)
_CLONE = compat.edge_ops.dim_order_ops._clone_dim_order.default  # noqa: SLF001 - the operator's name
_VIEWS = (compat.edge_ops.aten.view_copy.default,)  # which become views of the same memory


@mends("the result of `torch.cond` is overwritten by the next control flow operator")
def copy_results_of_cond(program: ExportedProgram) -> None:
    """Copies the results of ``cond`` that are used by or after the next control flow operator, in place.

    Memory planning (exir/memory_planning.py, `_apply_algo_to_submodules`) gives the tensors of all branches and bodies
    of a graph the same memory, which is right while they run. But the emitter (exir/emit/_emitter.py) lets the result
    of ``cond`` refer to the branch's own tensor, so the next control flow operator overwrites it. The sum of two
    ``cond`` is enough. Delete once the emitter copies results of ``cond``, or the planner keeps their memory.
    """
    for graph in _graphs(program):
        flows = [node for node in graph.nodes if node.target in _CONTROL_FLOW]
        for cond, later in pairwise(flows):
            results = [user for user in cond.users if cond.target is _COND and user.target is operator.getitem]
            for result in results:
                if isinstance(result.meta["val"], torch.Tensor) and _is_used_from(later, result):
                    cond.append(result)  # it may stand behind the operator that overwrites it
                    _copy(result)


def _graphs(program: ExportedProgram) -> Iterator[Graph]:
    return (module.graph for module in program.graph_module.modules() if isinstance(module, GraphModule))


def _copy(value: Node) -> None:
    with value.graph.inserting_after(value):
        copy = value.graph.call_function(_CLONE, (value,))
    copy.meta |= value.meta
    value.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _is_used_from(later: Node, value: Node) -> bool:
    return any(not user < later or (user.target in _VIEWS and _is_used_from(later, user)) for user in value.users)


@mends("remainders of negative integers come out negative")
def floor_remainders(program: ExportedProgram) -> None:
    """Gives remainders of integers whose dividend may be negative Python's sign, in place.

    The runtime's remainders are those of C++, which have the dividend's sign.

    Sizes: ``-length % 8``, as models pad to a multiple of eight, is traced as Python's remainder, which has the
    divisor's sign. The runtime's operator (kernels/prim_ops/register_prim_ops.cpp) takes C++'s ``%``: the padding is
    negative, and later operators fail, or the process dies of a division by zero. Adding the divisor to a remainder and
    taking the remainder again is the same in Python, and right with C++'s. Delete once the runtime floors.

    Tensors: the kernel of ``remainder`` (kernels/portable/cpu/op_remainder.cpp) does the same, so that
    ``torch.tensor(-7) % 2`` is -1. Division that floors is right, and what it leaves is the remainder, even if a
    product overflows. Delete `_floor_divide` once the kernel is right for ``torch.tensor([-7]) % 2``.
    """
    for graph in _graphs(program):
        for node in graph.find_nodes(op="call_function", target=operator.mod):
            if _may_be_negative(node.args[0]):
                _add_and_take_again(graph, node, node.args[1])
        for target in _DIVISIONS:
            for node in graph.find_nodes(op="call_function", target=target):
                if node.meta["val"].dtype.is_signed and not node.meta["val"].is_floating_point():
                    _floor_divide(graph, node)


_DIVISIONS = {
    compat.edge_ops.aten.remainder.Tensor: (compat.edge_ops.aten.div.Tensor_mode, compat.edge_ops.aten.mul.Tensor),
    compat.edge_ops.aten.remainder.Scalar: (compat.edge_ops.aten.div.Scalar_mode, compat.edge_ops.aten.mul.Scalar),
}
"""Operators of remainders to those that divide and multiply."""


def _may_be_negative(size: Any) -> bool:
    value = size.meta["val"] if isinstance(size, Node) else size
    if isinstance(value, torch.SymInt):
        return bool(value.node.shape_env.bound_sympy(value.node.expr).lower < 0)
    return bool(value < 0)


def _add_and_take_again(graph: Graph, remainder: Node, divisor: Any) -> None:
    value = divisor.meta["val"] if isinstance(divisor, Node) else divisor
    with graph.inserting_after(remainder):
        total = graph.call_function(operator.add, (remainder, divisor))
    with graph.inserting_after(total):
        floored = graph.call_function(operator.mod, (total, divisor))
    total.meta |= {**remainder.meta, "val": remainder.meta["val"] + value}
    floored.meta |= remainder.meta
    remainder.replace_all_uses_with(floored, delete_user_cb=lambda user: user is not total)


def _floor_divide(graph: Graph, remainder: Node) -> None:
    dividend, divisor = remainder.args
    divide, multiply = _DIVISIONS[remainder.target]
    with graph.inserting_before(remainder):
        quotient = graph.call_function(divide, (dividend, divisor), {"rounding_mode": "floor"})
        product = graph.call_function(multiply, (quotient, divisor))
        left = graph.call_function(compat.edge_ops.aten.sub.Tensor, (dividend, product))
    for node in (quotient, product, left):
        node.meta |= remainder.meta
    remainder.replace_all_uses_with(left)
    graph.erase_node(remainder)


MIN_SHARED = 1 << 16
"""Bytes; smaller tensors are written twice, so that files without large ones are byte for byte as upstream's."""


@mends(
    "a tensor that an operator and a delegate use is written twice",
    "executorch_serialization.serialize_pte_binary",
    "pte_serialization._program_to_flatbuffer",
)
@contextmanager
def constants_once() -> Iterator[None]:
    """Writes named data that equals a constant as a part of the constants, while the context is open.

    `serialize_pte_binary` (exir/_serialize/_program.py) puts the constants of operators into one segment, and each
    buffer of the delegates' named data into its own, so a tensor that both use is written twice, such as a tied
    embedding. A segment is a range of the file that the runtime loads by offset and size, so one of named data may lie
    inside of the constants. Constants are then aligned as segments are, so that all data keeps its alignment. Delete
    once the serializer compares the two.
    """
    with patch.object(compat.executorch_serialization, "serialize_pte_binary", _serialize_once):
        yield


def _serialize_once(
    pte_file: compat.PTEFile,
    *,
    segment_alignment: int = 128,
    constant_tensor_alignment: int | None = None,
    **options: Any,
) -> compat.Cord:
    """Replaces `serialize_pte_binary`."""
    named = pte_file.named_data
    shared = _shared_constants(pte_file.program.constant_buffer, named) if named else {}
    if named and shared:
        inside = {key: entry for key, entry in named.pte_data.items() if entry.buffer_index in shared}
        apart = {key: entry for key, entry in named.pte_data.items() if entry.buffer_index not in shared}
        pte_file = replace(pte_file, named_data=compat.NamedDataStoreOutput(named.buffers, apart, {}))
        wanted = (
            constant_tensor_alignment or compat.pte_serialization.ALIGNMENT,
            *(entry.alignment for entry in inside.values()),
        )
        constant_tensor_alignment = max(segment_alignment, *wanted)  # powers of two
    plain = compat.pte_serialization._program_to_flatbuffer  # noqa: SLF001 - the only step between placing segments and writing them

    def to_flatbuffer(program: compat.Program, **others: Any) -> Any:
        segments: dict[int, int] = {}
        for key, entry in inside.items():
            constant = shared[entry.buffer_index]
            if constant not in segments:
                segments[constant] = len(program.segments)
                start = program.segments[program.constant_segment.segment_index].offset
                offset = start + program.constant_segment.offsets[constant]
                program.segments.append(compat.DataSegment(offset, len(named.buffers[entry.buffer_index])))
            program.named_data = [*(program.named_data or ()), compat.NamedData(key, segments[constant])]
        return plain(program, **others)

    with patch.object(compat.pte_serialization, "_program_to_flatbuffer", to_flatbuffer) if shared else nullcontext():
        return compat.pte_serialization.serialize_pte_binary(
            pte_file,
            segment_alignment=segment_alignment,
            constant_tensor_alignment=constant_tensor_alignment,
            **options,
        )


def _shared_constants(constants: list[compat.Buffer], named: compat.NamedDataStoreOutput) -> dict[int, int]:
    """Index of the constant with the same bytes, by index of the buffer. Constants can be aligned to powers of two."""
    entries = named.pte_data.values()
    odd = {entry.buffer_index for entry in entries if entry.alignment & (entry.alignment - 1)}
    sizes = {entry.buffer_index: len(named.buffers[entry.buffer_index]) for entry in entries}
    sizes = {number: size for number, size in sizes.items() if size >= MIN_SHARED and number not in odd}
    same_size = [
        (index, buffer.storage) for index, buffer in enumerate(constants) if len(buffer.storage) in sizes.values()
    ]
    indices = {_digest(content): index for index, content in same_size}
    lengths = {len(constants[index].storage) for index in indices.values()}
    digests = {number: _digest(named.buffers[number]) for number, size in sizes.items() if size in lengths}
    return {number: indices[digest] for number, digest in digests.items() if digest in indices}


def _digest(buffer: bytes | compat.FileBackedData) -> Digest:
    return Digest(buffer.sha256().hex()) if isinstance(buffer, compat.FileBackedData) else digest_bytes(buffer)


class ViewedData(compat.FileBackedData):  # type: ignore[misc]  # executorch is untyped here
    """Bytes that are written from where they are, such as a mapped file, without a copy; the view has format "B"."""

    def __init__(self, content: memoryview) -> None:
        self.owner: object = None  # keeps the bytes alive, if the view does not
        self._content = content
        self._sha256: bytes | None = None
        self._finalizer = None  # upstream's `close` looks at it

    def __len__(self) -> int:
        return len(self._content)

    def __deepcopy__(self, memo: object) -> ViewedData:
        return self

    def prefix(self, size: int) -> bytes:
        """The first bytes, as upstream's."""
        return bytes(self._content[:size])

    def sha256(self) -> bytes:
        if self._sha256 is None:
            self._sha256 = sha256(self._content).digest()
        return self._sha256

    def to_bytes(self) -> bytes:
        return bytes(self._content)

    def write_to_file(self, outfile: BufferedIOBase) -> None:
        outfile.write(self._content)


_LEAST = 1 << 16  # bytes; smaller buffers stay in memory until their backend returns


@mends("the weights of a partition are in memory until its backend returns", "NamedDataStore._add_named_data_to_map")
def named_data_stored(
    stored: Callable[[bytes | compat.FileBackedData], compat.FileBackedData],
) -> AbstractContextManager[object]:
    """Has data that backends add to a `NamedDataStore` be what `stored` returns for it, while the context is open.

    A partition can be the whole model, and `NamedDataStore` (exir/_serialize/_named_data_store.py) holds all of its
    weights until its backend returns. All of its public methods end in the one that is replaced.
    """
    add = compat.NamedDataStore._add_named_data_to_map  # noqa: SLF001 - see above

    def add_stored(named: Any, key: str, data: bytes | compat.FileBackedData, *args: Any, **options: Any) -> None:
        add(named, key, stored(data) if len(data) >= _LEAST else data, *args, **options)

    return patch.object(compat.NamedDataStore, "_add_named_data_to_map", add_stored)


def viewed(content: memoryview) -> ViewedData | bytes:
    """Data that is written from where it is; a copy where ExecuTorch, before 1.5, takes bytes only."""
    return bytes(content) if compat.is_missing(compat.FileBackedData) else ViewedData(content)


@mends(
    "all weights outside of delegates are in memory while a file is written",
    "Emitter._save_new_const_tensor",
    "emitter.hashlib",
)
@contextmanager
def constants_viewed() -> Iterator[None]:
    """Keeps the emitter from copying large constants into bytes, while the context is open.

    `_tensor_spec_to_evalue` (exir/emit/_emitter.py) copies each constant outside of delegates, which is the whole model
    if nothing is delegated, and the serializer holds all of them until the file is written. Constants are mapped files,
    whose pages the kernel can drop. Delete once the emitter makes `FileBackedData`, or a view, of a storage.
    ExecuTorch before 1.5 takes bytes only.
    """
    if compat.is_missing(compat.FileBackedData):
        yield
        return
    save = compat.Emitter._save_new_const_tensor  # noqa: SLF001 - the only function that gets bytes and storage

    def content(array: Any) -> bytes | ViewedData:
        view = memoryview(array).cast("B")
        return viewed(view) if len(view) >= MIN_SHARED else bytes(view)

    def hashed(data: bytes | ViewedData) -> Any:
        return SimpleNamespace(hexdigest=data.sha256().hex) if isinstance(data, ViewedData) else sha256(data)

    def saved(emitter: Any, spec: Any, data: bytes | ViewedData, *others: Any) -> int:
        if isinstance(data, ViewedData):
            data.owner = spec.storage
        return int(save(emitter, spec, data, *others))

    with (
        patch.object(compat.emitter, "bytes", content, create=True),
        patch.object(compat.emitter, "hashlib", SimpleNamespace(sha256=hashed)),
        patch.object(compat.Emitter, "_save_new_const_tensor", saved),
    ):
        yield
