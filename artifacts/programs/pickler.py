"""Programs as pickle streams. Tensor storages and large bytes leave the stream and are put aside by the caller.

Plain pickle with reductions of our own for what refuses to be pickled. `torch.fx._graph_pickler.GraphPickler`, which
does the same for compile caches, is not used: it is several times slower, drops nodes held in `meta`, knows neither
exir's operators nor its verifiers, and silently turns into dill's pure Python pickler where dill is installed. The
reductions rely on torch 2.13 and executorch 1.5; manifests name the versions that wrote a stream (see `codec`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from torch._export.verifier import Verifier
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.fx.traceback import NodeSource

from . import restore
from .reductions import (
    REDUCTIONS,
    Reduction,
    reduce_graph,
    reduce_graph_module,
    reduce_higher_order_operator,
    reduce_node,
    reduce_verifier,
)
from .sharing import Sharing
from .storages import StorageTable, is_plain, storage_bytes

INLINE_LIMIT = 4096
"""Bytes objects up to this size stay in the stream."""

INLINE_STORAGE_LIMIT = 512
"""Tensor storages up to this size stay in the stream."""


_PLAIN = (bool, int, float, str)
"""Of the attributes that were put on a tensor, the ones to keep: `torch.nn.Buffer` marks its tensors so."""


class Externals(Protocol):
    """What takes bytes that leave a stream. Each method returns the number that the stream names them by."""

    def put_storage(self, storage: torch.UntypedStorage) -> int:
        """Takes a storage; the same one once."""

    def put_bytes(self, content: bytes) -> int:
        """Takes bytes that are read back as bytes."""

    def put_buffer(self, content: bytes | FileBackedData) -> int:
        """Takes a buffer that may be read back as a file."""


class _Buffer:
    """Marks a buffer of named data in the stream."""

    def __init__(self, content: bytes | FileBackedData) -> None:
        self.content = content


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, storages: StorageTable, externals: Externals) -> None:
        super().__init__(stream, protocol=5)
        self._storages = storages
        self._externals = externals
        self._graphs: set[torch.fx.Graph] = set()
        self._sharing = Sharing()
        self._stateful: dict[type, Callable[[Any], Reduction]] = {
            NamedDataStoreOutput: self._reduce_named_data,
            NodeSource: self._reduce_node_source,
            torch.Tensor: self._reduce_tensor,
            torch.UntypedStorage: self._reduce_storage,
            torch.fx.Graph: self._reduce_graph,
            torch.fx.Node: self._reduce_node,
            torch.nn.Parameter: self._reduce_tensor,
        }

    def persistent_id(self, item: Any) -> int | None:
        kind = type(item)
        if kind is bytes:
            return self._externals.put_bytes(item) if len(item) > INLINE_LIMIT else None
        if kind is torch.UntypedStorage:
            large = item.device.type == "cpu" and item.nbytes() > INLINE_STORAGE_LIMIT
            return self._externals.put_storage(item) if large else None
        if kind is _Buffer:
            return self._externals.put_buffer(item.content)
        if kind is FileBackedData:
            return self._externals.put_buffer(item)
        return None

    def reducer_override(self, item: Any) -> Any:
        kind = type(item)
        reduce = REDUCTIONS.get(kind) or self._stateful.get(kind)
        if reduce is not None:
            return reduce(item)
        if isinstance(item, type):
            local = issubclass(item, Verifier) and "<locals>" in item.__qualname__
            return reduce_verifier(item) if local else NotImplemented
        if isinstance(item, torch.fx.GraphModule):
            return reduce_graph_module(item)
        if isinstance(item, HigherOrderOperator):
            return reduce_higher_order_operator(item)
        return NotImplemented

    def _reduce_graph(self, graph: torch.fx.Graph) -> Reduction:
        self._graphs.add(graph)
        return reduce_graph(graph, self._sharing)

    def _reduce_node(self, node: torch.fx.Node) -> Reduction:
        if node.graph not in self._graphs or node._erased:  # noqa: SLF001 - no public access
            return restore.missing, ()
        return reduce_node(node)

    def _reduce_node_source(self, source: NodeSource) -> Reduction:
        return restore.node_source, self._sharing.source_arguments(source)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Reduction:
        if tensor.device.type not in ("cpu", "meta") or not is_plain(tensor):
            raise TypeError(
                f"a tensor of layout {tensor.layout}, type {tensor.dtype} on {tensor.device} cannot be stored"
            )
        return restore.tensor, (
            self._storages.first(tensor.untyped_storage()),
            tensor.dtype,
            (tuple(tensor.shape), tensor.stride(), tensor.storage_offset()),
            tensor.requires_grad,
            type(tensor) is torch.nn.Parameter,
            {name: value for name, value in vars(tensor).items() if type(value) in _PLAIN},
        )

    def _reduce_storage(self, storage: torch.UntypedStorage) -> Reduction:
        if storage.device.type == "cpu":
            return restore.storage, (bytes(storage_bytes(storage)),)
        return restore.meta_storage, (storage.nbytes(),)

    def _reduce_named_data(self, output: NamedDataStoreOutput) -> Reduction:
        buffers = [_Buffer(buffer) if len(buffer) > INLINE_LIMIT else buffer for buffer in output.buffers]
        return restore.named_data, (buffers, output.pte_data, output.external_data)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, externals: Sequence[Any]) -> None:
        super().__init__(stream)
        self._externals = externals

    def persistent_load(self, number: int) -> Any:
        return self._externals[number]


def dump_program(program: ExportedProgram, storages: StorageTable, externals: Externals) -> bytes:
    """The program's stream; what leaves it goes to `externals`. Raises what pickle does for what it cannot hold."""
    stream = io.BytesIO()
    _Pickler(stream, storages, externals).dump(program)
    return stream.getvalue()


def load_program_stream(stream: bytes, externals: Sequence[Any]) -> ExportedProgram:
    """Inverse of `dump_program`; runs what the stream says, so it must come from a source that is trusted.

    Args:
        stream: what `dump_program` returned.
        externals: by number, what left the stream: storages, bytes and named data buffers.
    """
    program: ExportedProgram = _Unpickler(io.BytesIO(stream), externals).load()
    return program
