"""A container's blobs as ExecuTorch's named data."""

from __future__ import annotations

from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry

from ...artifacts.nfat.pack import PackedContainer


def named_blobs(packed: PackedContainer) -> NamedDataStoreOutput:
    """The blobs under their digests, aligned as the container says."""
    return NamedDataStoreOutput(
        buffers=[bytes(blob) for blob in packed.blobs.values()],
        pte_data={str(key): DataEntry(index, packed.alignment, None) for index, key in enumerate(packed.blobs)},
        external_data={},
    )
