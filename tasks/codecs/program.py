"""Saves and loads `torch.export.ExportedProgram`s: a graph, and a blob for each tensor storage."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import torch
from executorch.version import __version__ as executorch_version
from torch.export import ExportedProgram

from ...artifacts.digest import digest_json
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, ArtifactRef
from ...errors import StoreError
from .canonical import program_digest
from .pickler import dump_program, load_program_stream
from .storages import BlobSink, StorageTable, open_externals

CODEC_VERSION = 1
"""Increase it with each change of `restore` or `pickler` that cannot read older streams."""

_LEVEL = 6


def save_program(program: ExportedProgram, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a program: its graph as a compressed stream, and the exact bytes of each weight storage as a blob.

    The program is not changed. Its example inputs are left out: they are a separate artifact. The ref's identity
    covers the kind and the canonical digest of the program.

    Raises:
        StoreError: the program has an object that cannot be stored.
    """
    storages = StorageTable()
    sink = BlobSink(store, storages)
    try:
        stream = dump_program(program, storages, sink)
    except (AttributeError, RuntimeError, TypeError, ValueError, pickle.PicklingError) as error:
        raise StoreError(f"the {kind} cannot be stored: {error}") from error
    identity = digest_json([kind, program_digest(program, storages)])
    number = sink.number(store.put_bytes(zlib.compress(stream, _LEVEL)))
    body = {**_written_by(), "stream": number, "externals": sink.entries}
    return store.put_manifest(ArtifactManifest(kind, tuple(sink.blobs), body), identity)


def load_program(ref: ArtifactRef, store: LocalStore) -> ExportedProgram:
    """Loads a program. Weights are mapped copy-on-write, so changes never reach the store.

    Unpickling can run any code: `ref` must come from a trusted ledger, never from a user's file.

    Raises:
        ObjectMissing, ObjectDamaged: a part of the artifact.
        StoreError: the program was written by other versions of torch, executorch or this codec, or it refers to
            Python modules that cannot be imported here (a user's own pytree types).
    """
    manifest = store.manifest(ref)
    body = manifest.body
    written_by = {key: body.get(key) for key in _written_by()} if isinstance(body, dict) else None
    if written_by != _written_by():
        raise StoreError(
            f"the {ref.kind} {ref.root.digest} was written by {written_by}, this is {_written_by()}: "
            "the stage that makes it has to run again"
        )
    stream = store.read(manifest.blobs[body["stream"]])
    externals = open_externals(manifest, body["externals"], store)
    try:
        return load_program_stream(zlib.decompress(stream), externals)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError, pickle.PickleError, zlib.error) as error:
        problem = f"the {ref.kind} {ref.root.digest} cannot be loaded: {type(error).__name__}: {error}"
        raise StoreError(problem) from error


def _written_by() -> dict[str, Any]:
    return {"codec": CODEC_VERSION, "torch": torch.__version__, "executorch": executorch_version}
