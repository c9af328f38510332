"""Weights in files instead of memory: computed ones, and those of a checkpoint, cast to another dtype as they are used.

Both are mapped, and `WeightsOnUse` drops their pages again after each operator that reads them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from ...artifacts.files import write_errors
from ...artifacts.known_files import Reference
from ..upstream import compat
from ..upstream.torchao import dequantization_by_rows

_IN_MEMORY = 1 << 16  # bytes up to which a tensor stays in memory

_PAGE = mmap.PAGESIZE


@dataclass
class TensorFiles:
    """Moves tensors to files in a folder and maps them from there, so that the kernel can drop their pages."""

    folder: Path
    taken: int = 0  # layers that did not have to be quantized
    _numbers: Iterator[int] = field(default_factory=count)

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """A mapped tensor of zeros, contiguous; raises StoreUnusable if there is no space for it on the disk."""
        size = shape.numel() * dtype.itemsize
        if size <= _IN_MEMORY:
            return torch.zeros(shape, dtype=dtype)
        path = self.folder / f"tensor-{next(self._numbers)}"
        with write_errors(self.folder), path.open("wb") as file:  # else the system ends who writes to a full disk
            os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
        storage = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=size)
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor in a file; a traceable subclass with its inner tensors there."""
        if compat.is_traceable_wrapper_subclass(tensor):
            names, context = tensor.__tensor_flatten__()
            inner = {name: self.moved(getattr(tensor, name)) for name in names}
            return rebuilt(type(tensor), inner, context, tensor.shape)
        if tensor.untyped_storage().nbytes() <= _IN_MEMORY or not tensor.is_contiguous():
            return tensor
        if cast_of(tensor) is not None:
            return tensor
        if mapping := _mapping_of(tensor.untyped_storage()):
            if mapping.shared:
                _drop_mapped(tensor.data_ptr(), tensor.nbytes)
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    @contextmanager
    def layer(self, holder: nn.Module, path: str, asked: Any) -> Iterator[bool]:
        """Moves the parameters of a layer of `holder` that the block quantizes as `asked`; yields whether it has to."""
        del asked
        yield True
        self.move_parameters(holder.get_submodule(path))

    def move_parameters(self, module: nn.Module) -> None:
        """Moves a module's own parameters, and returns the memory that was free to the system."""
        for name, weight in module.named_parameters(recurse=False):
            moved = nn.Parameter(self.moved(weight.detach()), requires_grad=weight.requires_grad)
            setattr(module, name, moved)
        if trim := getattr(_libc, "malloc_trim", None):  # glibc keeps what large temporary tensors used
            trim(0)


def rebuilt(kind: type[Any], inner: dict[str, Any], context: Any, shape: torch.Size) -> torch.Tensor:
    """A tensor of a traceable subclass, from its inner tensors."""
    stride = torch.empty(shape, device="meta").stride()
    return cast("torch.Tensor", kind.__tensor_unflatten__(inner, context, shape, stride))


_LEAST_CAST = 1 << 20  # bytes from which on a cast is put off

_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python 3.11 has no name for
_libc = ctypes.CDLL(None)
_CAN_DROP = hasattr(mmap, "MADV_DONTNEED") and os.path.exists("/proc/self/pagemap")  # noqa: PTH110 - Linux


class _Cast(mmap.mmap):
    """Memory of a tensor that is a cast of another one: zeros, but while an operator reads it."""

    source: torch.Tensor
    dtype: torch.dtype


_CASTS: WeakValueDictionary[int, _Cast] = WeakValueDictionary()  # by address


def cast_on_use(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of another dtype whose values are computed when an operator reads them, under `WeightsOnUse`.

    Without it, readers get zeros. Casts at once if the source is no mapped matrix, or the system cannot drop pages.
    """
    size = source.numel() * dtype.itemsize
    put_off = _CAN_DROP and source.dim() == 2 and source.is_contiguous() and size >= _LEAST_CAST
    if not put_off or _mapping_of(source.untyped_storage()) is None:
        return source.to(dtype)
    return _put_off(source, dtype).view(source.shape)


def _put_off(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Flat; cast at once if the system has no address space left, as with ``vm.overcommit_memory=2``."""
    size = source.numel() * dtype.itemsize
    try:
        memory = _Cast(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError:
        return source.to(dtype).flatten()
    memory.source, memory.dtype = source, dtype
    flat = torch.frombuffer(memory, dtype=dtype)
    _CASTS[flat.data_ptr()] = memory
    return flat


def map_reference(reference: Reference) -> torch.UntypedStorage:
    """The bytes of a reference, mapped copy-on-write; raises OSError. Only `WeightsOnUse` can read widened ones."""
    start = reference.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    before = reference.offset - start
    length = reference.size // 2 if reference.widened else reference.size
    with open(reference.path, "rb") as file:  # noqa: PTH123 - a path of the system's
        mapped = mmap.mmap(file.fileno(), before + length, access=mmap.ACCESS_COPY, offset=start)
    content = torch.frombuffer(mapped, dtype=torch.uint8, offset=before)
    if reference.widened:
        content = _put_off(content.view(torch.bfloat16), torch.float32)
    return content.untyped_storage()


_BUILDER: ContextVar[ExitStack | None] = ContextVar("_BUILDER", default=None)


@contextmanager
def builder_scope(*, own: bool) -> Iterator[None]:
    """The scope of a builder; under `WeightsOnUse` from its first cast on, or always for one of our `own`."""
    with ExitStack() as stack:
        token = _BUILDER.set(stack)
        stack.callback(_BUILDER.reset, token)
        if own:
            stack.enter_context(WeightsOnUse())
        yield


def cast_for_builder(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Casts on use in a builder, and at once elsewhere, where `WeightsOnUse` may not be in force."""
    if (stack := _BUILDER.get()) is None or source.dtype == dtype or not source.is_floating_point():
        return source.to(dtype) if source.is_floating_point() else source
    if not _is_in_force():
        stack.enter_context(WeightsOnUse())
    return cast_on_use(source, dtype)


def cast_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that one from `cast_on_use`, or a view of it, is a cast of."""
    memory = _cast_at(tensor.untyped_storage())
    return memory.source if memory else None


def _cast_at(storage: torch.UntypedStorage) -> _Cast | None:
    """The memory of a storage, if that is of a tensor from `cast_on_use`."""
    return _CASTS.get(storage.data_ptr())


class Span(NamedTuple):
    """Bytes of a storage."""

    start: int
    end: int


def _span(tensor: torch.Tensor) -> Span:
    """The bytes of its storage that a tensor may use."""
    start = tensor.storage_offset()
    length = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    length = length if tensor.numel() else 0
    return Span(start * tensor.itemsize, (start + length) * tensor.itemsize)


def _fill(memory: _Cast, span: Span) -> None:
    first, last = span.start // memory.dtype.itemsize, span.end // memory.dtype.itemsize
    with compat.disable_current_modes():
        target = torch.frombuffer(memory, dtype=memory.dtype)[first:last]
        target.copy_(memory.source.view(-1)[first:last])


def _drop(memory: _Cast, span: Span) -> None:
    start = span.start // _PAGE * _PAGE
    memory.madvise(mmap.MADV_DONTNEED, start, min(len(memory), span.end) - start)
    item = memory.source.element_size()
    first, last = (edge // memory.dtype.itemsize * item for edge in span)
    _drop_mapped(memory.source.data_ptr() + first, last - first)


class Mapping(NamedTuple):
    """Pages of this process that a file is mapped to."""

    start: int
    end: int
    shared: bool
    offset: int
    inode: int
    path: str  # with `` (deleted)`` at its end if the file has no name any more


def _mappings() -> list[Mapping]:
    """Those of files, without programs and libraries; by address."""
    mappings = []
    with suppress(OSError), open("/proc/self/maps") as file:  # noqa: PTH123 - Linux has it
        for line in file:
            addresses, mode, offset, _, inode, *path = line.rstrip("\n").split(maxsplit=5)
            if path and path[0].startswith("/") and mode[:2] != "--" and "x" not in mode and ".so" not in path[0]:
                start, end = (int(edge, 16) for edge in addresses.split("-"))
                mappings.append(Mapping(start, end, mode[3] == "s", int(offset, 16), int(inode), path[0]))
    return mappings


def _mapping_of(storage: torch.UntypedStorage, mappings: Sequence[Mapping] | None = None) -> Mapping | None:
    """The mapping that has all of a storage."""
    mappings = _mappings() if mappings is None else mappings
    address = storage.data_ptr()
    index = bisect(mappings, address, key=lambda mapping: mapping.start) - 1
    inside = index >= 0 and address + storage.nbytes() <= mappings[index].end
    return mappings[index] if inside else None


def reference_of(storage: torch.UntypedStorage) -> Reference | None:
    """The position of a storage's bytes in a mapped file, or of those that it is a cast of."""
    memory = _cast_at(storage)
    widened = memory is not None and (memory.source.dtype, memory.dtype) == (torch.bfloat16, torch.float32)
    if memory is not None and not widened:
        return None
    source = memory.source.untyped_storage() if memory else storage
    address = memory.source.data_ptr() if memory else storage.data_ptr()
    length = memory.source.nbytes if memory else storage.nbytes()
    mapping = _mapping_of(source)
    if mapping is None or not (mapping.shared or _is_unchanged(address, length)):
        return None
    with suppress(OSError):
        offset = mapping.offset + address - mapping.start
        reference = Reference.of(mapping.path, offset, storage.nbytes(), widened=widened)
        return reference if reference.seen[-1] == mapping.inode else None
    return None


_FILE_PAGE, _PRESENT = 1 << 61, 1 << 63


def _is_unchanged(address: int, length: int) -> bool:
    """Whether pages of a private mapping are still the file's (``/proc/self/pagemap``); False where that is unknown."""
    first, last = address // _PAGE, -(-(address + length) // _PAGE)
    pages = np.empty(0, np.uint64)
    with suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as file:  # noqa: PTH123 - Linux has it
        pages = np.frombuffer(os.pread(file.fileno(), 8 * (last - first), 8 * first), np.uint64)
    return len(pages) == last - first and not bool(((pages & _PRESENT > 0) & (pages & _FILE_PAGE == 0)).any())


def _drop_mapped(address: int, length: int) -> None:
    start = address // _PAGE * _PAGE
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + length - start), mmap.MADV_DONTNEED)


_LEAST_DROPPED = 1 << 22  # bytes of a mapped tensor from which on its pages are dropped

_EMBEDDINGS = (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default)
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


class WeightsOnUse(compat.TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Casts weights for the operators that read them, and drops the pages of mapped ones after that.

    Results do not change. Writing to a cast tensor makes it one in memory. Higher-order operators read all weights.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._mapped = _mappings()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "is_view", False):  # operators of higher order have no such attribute
            return func(*args, **kwargs)
        weights = [leaf for leaf in compat.pytree.tree_leaves((args, kwargs)) if _is_in_memory(leaf)]
        casts = [(memory, _span(leaf)) for leaf in weights if (memory := _cast_at(leaf.untyped_storage()))]
        if casts and func in _EMBEDDINGS and (rows := self._rows(func, args, kwargs)) is not None:
            return rows
        if casts and _writes(func, args, kwargs):
            for memory in {id(memory): memory for memory, _ in casts}.values():
                _fill(memory, Span(0, len(memory)))
                del _CASTS[torch.frombuffer(memory, dtype=torch.uint8).data_ptr()]
            casts = []
        for memory, span in casts:
            _fill(memory, span)
        try:
            return func(*args, **kwargs)
        finally:
            for memory, span in casts:
                _drop(memory, span)
            for leaf in weights:
                self._drop(leaf)

    def _rows(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The chosen rows of a cast table, without the others."""
        table = args[0]
        source = cast_of(table)
        if source is None or table.shape != source.shape or table.stride() != source.stride():
            return None
        return cast("torch.Tensor", func(source, *args[1:], **kwargs).to(table.dtype))

    def _drop(self, tensor: torch.Tensor) -> None:
        if tensor.nbytes < _LEAST_DROPPED:
            return
        mapping = _mapping_of(tensor.untyped_storage(), self._mapped)
        if mapping is not None:
            span = _span(tensor)
            address = tensor.untyped_storage().data_ptr() + span.start
            if mapping.shared or _is_unchanged(address, span.end - span.start):
                _drop_mapped(address, span.end - span.start)


def _is_in_memory(leaf: Any) -> bool:
    return type(leaf) in _PLAIN and leaf.device.type == "cpu" and leaf.layout is torch.strided


def _writes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operator writes to a cast tensor."""
    schema = getattr(func, "_schema", None)  # overloads have no public one
    for number, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            if any(_is_in_memory(leaf) and cast_of(leaf) is not None for leaf in compat.pytree.tree_leaves(value)):
                return True
    return False


_MOST_KEPT = 1 << 30  # bytes of mapped files up to which their pages stay


@contextmanager
def weights_on_use() -> Iterator[None]:
    """`WeightsOnUse` if it is needed: if weights are cast, or much is mapped, and it is not in force yet."""
    sizes = (mapping.end - mapping.start for mapping in (_mappings() if _CAN_DROP else ()))
    if _is_in_force() or not (_CASTS or sum(sizes) > _MOST_KEPT):
        yield
        return
    with dequantization_by_rows(), WeightsOnUse():
        yield


def _is_in_force() -> bool:
    return any(isinstance(mode, WeightsOnUse) for mode in compat.get_current_dispatch_mode_stack())


@contextmanager
def content_of(storage: torch.UntypedStorage) -> Iterator[None]:
    """Makes the bytes of a storage readable while the context is open, even if they are a cast."""
    whole = Span(0, storage.nbytes())
    memory = _cast_at(storage) if whole.end else None
    if memory is not None:
        _fill(memory, whole)
    try:
        yield
    finally:
        if memory is not None:
            _drop(memory, whole)
