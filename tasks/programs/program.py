"""Saves and loads `torch.export.ExportedProgram`s: a graph, and the bytes of its weights apart from it."""

from __future__ import annotations

import pickle
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from executorch.version import __version__ as executorch_version
from torch.export import ExportedProgram

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, ArtifactRef, decoding
from ...errors import StoreError
from ..upstream.absent_weights import AbsentWeights, fake_on, storage_address
from ..upstream.compat import detect_fake_mode, is_traceable_wrapper_subclass
from . import storages
from .binding import WEIGHT, graph_kind, identity_of, with_weights
from .canonical import program_form
from .pickler import dump_stream, load_stream

CODEC_VERSION = 2  # increase it with each change of `restore` or `pickler` that cannot read older streams
_LEVEL = 6  # of compression


def save_program(program: ExportedProgram, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a program: its graph as a compressed stream, and the exact bytes of each weight storage.

    The example inputs are left out: they are a separate artifact. The ref's identity covers the kind and the canonical
    digest of the program. Raises StoreError if the program has an object that cannot be stored.
    """
    table = storages.StorageTable()
    transparent = not any(map(is_traceable_wrapper_subclass, program.state_dict.values()))
    weights = {table.number(storage): storage for storage in (_weight_storages(program) if transparent else ())}
    sink = storages.BlobSink(store, table, frozenset(weights), frozenset(map(id, program.state_dict.values())))
    manifest, slots = _graph(program, kind, sink)
    stored = storages.put_weights({slot: weights[number] for number, slot in slots.items()}, table, store)
    graph = None
    if transparent and sink.elsewhere.isdisjoint(weights):
        graph = store.put_manifest(manifest, identity_of(manifest.kind, manifest.body))
    full = with_weights(kind, graph, manifest, stored)
    return store.put_manifest(full, identity_of(kind, full.body, stored))


def save_graph(program: ExportedProgram, absent: AbsentWeights, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores the graph of a program whose weights are absent; `kind` is that of the program.

    Raises StoreError if the program has an object that cannot be stored, such as a tensor computed from absent weights.
    """
    manifest, _ = _graph(program, kind, storages.BlobSink(store, storages.StorageTable(absent)))
    return store.put_manifest(manifest, identity_of(manifest.kind, manifest.body))


def load_program(ref: ArtifactRef, store: LocalStore, *, on_use: bool = False) -> ExportedProgram:
    """Loads a program. Weights are mapped copy-on-write, so changes never reach the store.

    `on_use` leaves those that the store has references to in their files, to be read by `WeightsOnUse` only.

    Unpickling can run any code: `ref` must come from a trusted ledger, never from a user's file.

    Raises ObjectMissing, ObjectDamaged, or StoreError if the program was written by other versions of Python, torch,
    executorch or this codec, or refers to modules that cannot be imported here (a user's own pytree types).
    """
    manifest = _manifest(ref, store)
    with decoding(ref):
        return _load(manifest, store, storages.weight_opener(manifest, store, on_use=on_use))


def load_graph(ref: ArtifactRef, store: LocalStore) -> tuple[ExportedProgram, AbsentWeights]:
    """The graph of a program, with weights as fake tensors in its nodes' mode; raises as `load_program`."""
    absent = AbsentWeights()
    manifest = _manifest(ref, store)
    with decoding(ref):
        program = _load(manifest, store, absent.add)
    state = program.state_dict
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"])
    if mode is None and absent:
        raise StoreError(f"the {ref.kind} {ref.root.digest} has no fake values to go with fake weights")
    weights = {id(value): value for value in state.values() if absent.slot(value.untyped_storage()) is not None}
    # Entries that are one tensor stay one.
    fakes = {key: fake_on(value.untyped_storage(), value, mode) for key, value in weights.items()}
    state.update({name: fakes[id(value)] for name, value in state.items() if id(value) in fakes})
    return program, absent


def _graph(program: ExportedProgram, kind: str, sink: storages.BlobSink) -> tuple[ArtifactManifest, dict[int, int]]:
    """The manifest of a program's graph, and the slot of each weight by the number of its storage."""
    table = sink.storages
    try:
        stream = dump_stream(program, sink)
    except (AttributeError, RuntimeError, TypeError, ValueError, pickle.PicklingError) as error:
        raise StoreError(f"the {kind} cannot be stored: {error}") from error
    form, contents = program_form(program, table)
    slots: dict[int, int] = {}
    parts: list[Any] = []
    for position, number in enumerate(contents):
        storage = table.storages[number]
        slot = position if number in sink.weights else table.absent.slot(storage)
        if slot is None:
            parts.append(table.digest(storage))
        else:
            slots[number] = slot
            parts.append([slot, storage.nbytes()])
    externals = [
        [WEIGHT, slots[number], table.storages[number].nbytes()] if what == WEIGHT else [what, number]
        for what, number in sink.entries
    ]
    number = sink.number(sink.store.put_bytes(zlib.compress(stream, _LEVEL)))
    body = {**_written_by(), "stream": number, "externals": externals, "form": form, "contents": parts}
    return ArtifactManifest(graph_kind(kind), tuple(sink.blobs), body), slots


def _weight_storages(program: ExportedProgram) -> Iterator[torch.UntypedStorage]:
    """Storages of the program's state, but not those that constants or attributes of the graph use too."""
    module = program.graph_module
    others = [*program.constants.values(), *module.parameters(), *module.buffers()]
    used = {storage_address(value.untyped_storage()) for value in others if isinstance(value, torch.Tensor)}
    for tensor in program.state_dict.values():
        if (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.device.type == "cpu"
            and storages.is_plain(tensor)
        ):
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage_address(storage) not in used:
                yield storage


def _load(
    manifest: ArtifactManifest, store: LocalStore, open_weight: Callable[[int, int], torch.UntypedStorage]
) -> ExportedProgram:
    stream = store.read(manifest.blobs[manifest.body["stream"]])
    externals = storages.open_externals(manifest, store, open_weight)
    return cast("ExportedProgram", load_stream(zlib.decompress(stream), externals))


def _manifest(ref: ArtifactRef, store: LocalStore) -> ArtifactManifest:
    manifest = store.manifest(ref)
    body = manifest.body
    written_by = {key: body.get(key) for key in _written_by()} if isinstance(body, dict) else None
    if written_by != _written_by():
        raise StoreError(
            f"the {ref.kind} {ref.root.digest} was written by {written_by}, this is {_written_by()}: "
            "the stage that makes it has to run again"
        )
    return manifest


def _written_by() -> dict[str, Any]:
    """Versions that a stream depends on; Python because pickles name internals of its modules."""
    python = "{}.{}".format(*sys.version_info)
    return {"codec": CODEC_VERSION, "torch": torch.__version__, "executorch": executorch_version, "python": python}
