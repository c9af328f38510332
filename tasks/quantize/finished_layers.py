"""Quantized layers on disk, so that a stage that was interrupted continues with the layers that are missing."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...artifacts.digest import digest_bytes, digest_json
from ...artifacts.files import LocalFiles, write_errors
from ...artifacts.local_store import LocalStore
from ...artifacts.records import RecordFiles, Seal
from ...artifacts.ref import ArtifactManifest
from ...errors import ObjectDamaged, ObjectMissing, StoreUnusable
from ..programs.pickler import dump_stream, load_stream
from ..programs.storages import BlobSink, StorageTable, open_externals, storage_bytes
from ..programs.values import is_dense
from ..programs.weights import TensorFiles, cast_of, rebuilt, reference_of
from ..upstream.absent_weights import AbsentWeights
from ..upstream.compat import is_traceable_wrapper_subclass


@dataclass(kw_only=True)
class FinishedLayers(TensorFiles):
    """The layers that a stage has quantized, in this process and in earlier ones that were interrupted.

    The tensors of a layer are objects of the store. A record, written after them, lists them: its name is a digest of
    all that decides the result, except code and versions, which decide the folder. So processes can share the folder,
    whatever they work on.
    """

    store: LocalStore
    records: Path  # a folder in the store
    _files: RecordFiles = field(init=False)

    def __post_init__(self) -> None:
        self._files = RecordFiles(LocalFiles(self.store.root), Seal(None))
        with write_errors(self.store.root):
            self.records.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.utime(self.records)  # gc takes it for unused otherwise

    @contextmanager
    def layer(self, holder: nn.Module, path: str, asked: Any) -> Iterator[bool]:
        """Has the block quantize a layer unless it was finished before, as `asked`, which is JSON.

        Only what can be restored exactly is kept: new parameters that share no memory with others, made without the
        random generators, by a block that changes nothing else of the layer.
        """
        layer = holder.get_submodule(path)
        before, attributes, generators = dict(layer.named_parameters(recurse=False)), _attributes(layer), _generators()
        plain = all(map(is_dense, before.values()))
        weights = {name: _identity(value) for name, value in before.items()} if plain else {}
        record = digest_json([asked, path, str(type(layer)), weights])
        if plain and self._restore(layer, record):
            self.taken += 1
            self.move_parameters(layer)
            yield False
            return
        yield True
        quantized, after = holder.get_submodule(path), dict(layer.named_parameters(recurse=False))
        changed = [name for name in after | before if after.get(name) is not before.get(name)]
        self.move_parameters(quantized)
        if plain and quantized is layer and _same(attributes, _attributes(layer)) and generators == _generators():
            self._keep(layer, changed, before, record)
            self._restore(layer, record)

    def _name(self, record: str) -> str:
        return (self.records / record).relative_to(self.store.root).as_posix()

    def _keep(self, layer: nn.Module, changed: Sequence[str], before: Mapping[str, nn.Parameter], record: str) -> None:
        sink = BlobSink(self.store, StorageTable())
        try:
            parameters = {name: getattr(layer, name) for name in changed}
            flat = {name: value if value is None else _flat(value) for name, value in parameters.items()}
            stream = dump_stream(flat, sink)
        except (AttributeError, RuntimeError, TypeError, ValueError, pickle.PicklingError):
            return
        addresses = {storage.data_ptr() for storage in sink.storages.storages}
        if addresses.isdisjoint(value.untyped_storage().data_ptr() for value in before.values()):
            body = {"externals": [list(entry) for entry in sink.entries], "stream": stream.hex()}
            manifest = ArtifactManifest("layer", tuple(sink.blobs), body)
            with suppress(StoreUnusable):  # as where the stage of another zoo, in the same slot, has just ended
                self._files.write(self._name(record), record, manifest.encode())

    def _restore(self, layer: nn.Module, record: str) -> bool:
        """Gives a layer the parameters of a record; False if there is none, or it or an object of it is damaged."""
        manifest = self._files.read(self._name(record), record, ArtifactManifest)
        if manifest is None or not all(map(self.store.refresh, manifest.blobs)):
            return False
        try:
            externals = open_externals(manifest, self.store, AbsentWeights().add)  # none is absent
        except (ObjectDamaged, ObjectMissing):
            return False
        flat = load_stream(bytes.fromhex(manifest.body["stream"]), externals)
        for name, value in flat.items():
            setattr(layer, name, value if value is None else nn.Parameter(_unflat(value), requires_grad=False))
        return True


def _flat(tensor: torch.Tensor) -> Any:
    """Plain tensors, and what a traceable subclass is made of; raises TypeError for other ones."""
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        return type(tensor), {name: _flat(getattr(tensor, name)) for name in names}, context, tensor.shape
    if not is_dense(tensor) or tensor.requires_grad:
        raise TypeError(type(tensor))
    return tensor.detach()


def _unflat(flat: Any) -> Any:
    if not isinstance(flat, tuple):
        return flat
    kind, inner, context, shape = flat
    return rebuilt(kind, {name: _unflat(value) for name, value in inner.items()}, context, shape)


def _identity(tensor: torch.Tensor) -> Any:
    """JSON that tells a tensor from those of other values: where it is in a file, or the digest of its bytes."""
    view = [str(tensor.dtype), list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]
    if (source := cast_of(tensor)) is not None:
        return [*view, _identity(source)]
    if reference := reference_of(tensor.untyped_storage()):
        return [*view, reference.encode().decode()]
    return [*view, digest_bytes(storage_bytes(tensor.untyped_storage()))]


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """What a module has besides its parameters; torchao also replaces the method that prints it."""
    own = {name: value for name, value in vars(layer).items() if name not in ("_parameters", "extra_repr")}
    return own | dict(layer.named_buffers()) | dict(layer.named_children())


def _same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return before.keys() == now.keys() and all(now[name] is value for name, value in before.items())


def _generators() -> bytes:
    """The state of all random generators."""
    return pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()))  # noqa: NPY002 - global
