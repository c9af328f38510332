"""What backends made of partitions, as artifacts, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executorch.exir._serialize._named_data_store import NamedDataStoreOutput

from ..ref import ArtifactRef

if TYPE_CHECKING:
    from ..local_store import LocalStore


@dataclass(frozen=True)
class DelegateResult:
    """What a backend made of one partition.

    Attributes:
        backend_id: the backend's registered name.
        processed_bytes: the delegate's payload.
        compile_specs: key and value of each compile spec, in order.
        named_data: what the delegate put into the named data store.
        debug_handle_map: the backend's node ids to debug handles of the edge program.
        delegate_info_meta: what else the backend says; JSON values only.
    """

    backend_id: str
    processed_bytes: bytes
    compile_specs: tuple[tuple[str, bytes], ...] = ()
    named_data: NamedDataStoreOutput | None = None
    debug_handle_map: dict[int, Any] | dict[str, Any] | None = None
    delegate_info_meta: Any = None


@dataclass(frozen=True)
class Delegates:
    """Results of one `preprocess_multimethod`: method name to one result per partition, in partition order."""

    methods: Mapping[str, tuple[DelegateResult, ...]] = field(default_factory=dict)


def save_delegates(delegates: Delegates, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores delegates; payloads and named data are blobs of their own."""
    raise NotImplementedError


def load_delegates(ref: ArtifactRef, store: LocalStore) -> Delegates:
    """Inverse of `save_delegates`."""
    raise NotImplementedError
