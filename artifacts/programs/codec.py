"""Saving and loading of `torch.export.ExportedProgram`s of every stage."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import torch
from executorch.version import __version__ as executorch_version
from torch.export import ExportedProgram

from ...errors import StoreError
from ..digest import digest_json
from ..local_store import LocalStore
from ..manifest import Manifest
from ..ref import ArtifactRef
from .canonical_program import program_digest
from .externals import BlobSink, open_externals
from .pickler import dump_program, load_program_stream
from .storages import StorageTable

CODEC_VERSION = 1
"""Changes with every change of `restore`, `reductions` or `pickler` that older streams do not survive."""

_LEVEL = 6


def save_program(program: ExportedProgram, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a program: its graph as a compressed stream, each weight storage as a blob of exactly the storage's bytes.

    The program is not changed. Its example inputs are left out: they are an artifact of their own.

    Args:
        program: of any stage: ATen, quantized, edge, with or without delegates.
        kind: the artifact's kind, for example ``program/edge``.
        store: where to.

    Returns:
        A composite artifact; `identity` covers the kind and the canonical digest of the program.

    Raises:
        StoreError: the program holds something that cannot be stored.
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
    return store.put_manifest(Manifest(kind, tuple(sink.blobs), body), identity)


def load_program(ref: ArtifactRef, store: LocalStore) -> ExportedProgram:
    """Loads a program; weights are mapped copy-on-write: nothing is copied until it is changed, the store never is.

    Unpickles, which can run anything: `ref` must come from a ledger that is trusted, never from a user's file.

    Raises:
        ObjectMissing, ObjectDamaged: a part of the artifact.
        StoreError: the program was written by other versions of torch, executorch or this codec, or it names Python
            modules that cannot be imported here (a user's own pytree types).
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
    except (
        AttributeError,
        ImportError,
        RuntimeError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
        zlib.error,
    ) as error:
        raise StoreError(
            f"the {ref.kind} {ref.root.digest} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _written_by() -> dict[str, Any]:
    return {"codec": CODEC_VERSION, "torch": torch.__version__, "executorch": executorch_version}
