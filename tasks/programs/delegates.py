"""Results of backends as artifacts, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor_layout import TensorLayout

from ...artifacts.digest import Digest
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef, decoding
from ...errors import StoreError
from ..upstream.compat import DataEntry, FileBackedData, NamedDataStoreOutput
from .storages import map_storage, stored_file
from .values import TreeDecoder, TreeEncoder

_FORMAT = 1


@dataclass(frozen=True)
class DelegateResult:
    """A backend's result for one partition."""

    backend_id: str
    processed_bytes: bytes
    compile_specs: tuple[tuple[str, bytes], ...] = ()  # key and value of each compile spec, in order
    # the delegate's part of the named data store; after loading, its buffers are files of the store
    named_data: NamedDataStoreOutput | None = None
    # the backend's node ids to debug handles of the edge program
    debug_handle_map: Mapping[int, Any] | Mapping[str, Any] | None = None
    delegate_info_meta: Any = None  # further information from the backend: a tree that `save_value` takes


@dataclass(frozen=True)
class Delegates:
    """Results of one `preprocess_multimethod`: per method, one result per partition, in partition order."""

    methods: Mapping[str, tuple[DelegateResult, ...]] = field(default_factory=dict)


def keep_named_data(output: NamedDataStoreOutput, store: LocalStore) -> NamedDataStoreOutput:
    """The same data with files of the store as buffers, which take no memory."""
    return replace(output, buffers=[stored_buffer(buffer, store) for buffer in output.buffers])


def stored_buffer(buffer: bytes | FileBackedData, store: LocalStore) -> bytes | FileBackedData:
    """The same bytes as a file of the store."""
    return stored_file(_blob_of(buffer, store), store)


def _blob_of(buffer: bytes | FileBackedData, store: LocalStore) -> BlobRef:
    """The object with a buffer's bytes; a buffer that is a file of the store is not read again."""
    if not isinstance(buffer, FileBackedData):
        return store.put_bytes(buffer)
    blob = BlobRef(Digest(buffer.sha256().hex()), len(buffer))
    return blob if store.contains(blob) else store.put_bytes(buffer.to_bytes())


def save_delegates(delegates: Delegates, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores delegates; payloads and named data are separate blobs. Raises StoreError as `save_value` does."""
    trees = TreeEncoder(store.put_bytes)
    methods = [
        [name, [_encode(result, trees, store) for result in results]] for name, results in delegates.methods.items()
    ]
    body = {"format": _FORMAT, "methods": methods, "storages": trees.storages}
    return store.put_manifest(ArtifactManifest(kind, tuple(trees.blobs), body))


def load_delegates(ref: ArtifactRef, store: LocalStore) -> Delegates:
    """Inverse of `save_delegates`; raises ObjectMissing, ObjectDamaged, or StoreError for another artifact."""
    manifest = store.manifest(ref)
    match manifest.body:
        case {"format": 1, "methods": list() as methods, "storages": list() as storages}:
            with decoding(ref):
                decoder = _Decoder(store, manifest, storages)
                return Delegates({name: tuple(map(decoder.result, results)) for name, results in methods})
    raise StoreError(
        f"the {ref.kind} {ref.root.digest} holds no delegates of format {_FORMAT}; "
        "the stage that makes it has to run again"
    )


def _encode(result: DelegateResult, trees: TreeEncoder, store: LocalStore) -> dict[str, Any]:
    def tree(what: str, value: Any) -> Any:
        try:
            return trees.encode(value)
        except StoreError as error:
            raise StoreError(f"the {what} that {result.backend_id} gives cannot be stored: {error}") from error

    return {
        "backend": result.backend_id,
        "payload": trees.blob(result.processed_bytes),
        "compile_specs": tree("compile specs", [list(spec) for spec in result.compile_specs]),
        "named_data": None if result.named_data is None else _encode_named_data(result.named_data, trees, store),
        "debug_handle_map": tree("debug handle map", result.debug_handle_map),
        "info": tree("delegate info", result.delegate_info_meta),
    }


def _encode_named_data(output: NamedDataStoreOutput, trees: TreeEncoder, store: LocalStore) -> dict[str, Any]:
    buffers = [trees.published(_blob_of(buffer, store)) for buffer in output.buffers]
    external = [[tag, _entries(entries)] for tag, entries in output.external_data.items()]
    return {"buffers": buffers, "pte": _entries(output.pte_data), "external": external}


def _entries(entries: Mapping[str, DataEntry]) -> list[Any]:
    return [[key, entry.buffer_index, entry.alignment, _layout(entry.tensor_layout)] for key, entry in entries.items()]


def _layout(layout: TensorLayout | None) -> Any:
    return None if layout is None else [int(layout.scalar_type), list(layout.sizes), [int(n) for n in layout.dim_order]]


class _Decoder:
    def __init__(self, store: LocalStore, manifest: ArtifactManifest, storages: list[int]) -> None:
        self._store = store
        self._blobs = manifest.blobs
        mapped = [map_storage(store.path(self._blobs[number]), self._blobs[number].size) for number in storages]
        self._trees = TreeDecoder(mapped, self._read)

    def result(self, stored: Mapping[str, Any]) -> DelegateResult:
        named_data = stored["named_data"]
        return DelegateResult(
            backend_id=stored["backend"],
            processed_bytes=self._read(stored["payload"]),
            compile_specs=tuple((key, value) for key, value in self._trees.decode(stored["compile_specs"])),
            named_data=None if named_data is None else self._named_data(named_data),
            debug_handle_map=self._trees.decode(stored["debug_handle_map"]),
            delegate_info_meta=self._trees.decode(stored["info"]),
        )

    def _read(self, number: int) -> bytes:
        return self._store.read(self._blobs[number])

    def _named_data(self, stored: Mapping[str, Any]) -> NamedDataStoreOutput:
        buffers = [stored_file(self._blobs[number], self._store) for number in stored["buffers"]]
        external = {tag: _read_entries(entries) for tag, entries in stored["external"]}
        return NamedDataStoreOutput(buffers, _read_entries(stored["pte"]), external)


def _read_entries(entries: list[Any]) -> dict[str, DataEntry]:
    return {key: DataEntry(index, alignment, _read_layout(layout)) for key, index, alignment, layout in entries}


def _read_layout(layout: Any) -> TensorLayout | None:
    return None if layout is None else TensorLayout(ScalarType(layout[0]), layout[1], layout[2])
