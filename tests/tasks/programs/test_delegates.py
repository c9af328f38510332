"""Results of backends, without pickle."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.tensor_layout import TensorLayout
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.errors import StoreError
from pteforge.tasks.programs.delegates import (
    DelegateResult,
    Delegates,
    keep_named_data,
    load_delegates,
    save_delegates,
    stored_buffer,
)
from pteforge.tasks.upstream.exir_emission import named_data_stored


def buffers_read(result: DelegateResult) -> DelegateResult:
    """The same with buffers as bytes, to be compared."""
    named = result.named_data
    if named is None:
        return result
    buffers = [buffer.to_bytes() if isinstance(buffer, FileBackedData) else buffer for buffer in named.buffers]
    return dataclasses.replace(result, named_data=dataclasses.replace(named, buffers=buffers))


def test_round_trip(store, tmp_path: Path):
    """Everything a backend gives comes back; payloads and named data are blobs of exactly their bytes."""
    (tmp_path / "weights").write_bytes(b"w" * 100)
    named = NamedDataStoreOutput(
        [b"b" * 100, FileBackedData(str(tmp_path / "weights"))],
        {"tensor": DataEntry(0, 16, TensorLayout.from_tensor(torch.zeros(2, 3))), "same": DataEntry(0, 8, None)},
        {"outside": {"weights": DataEntry(1, 1, None)}},
    )
    full = DelegateResult(
        backend_id="One",
        processed_bytes=b"payload" * 100,
        compile_specs=(("small", b"\x00"), ("large", b"s" * 100), ("small", b"")),
        named_data=named,
        debug_handle_map={1: (2, 3), 2: [4], 3: 5},
        delegate_info_meta={"scale": 0.1, "weights": {"w": torch.arange(3.0)}},
    )
    bare = DelegateResult("Two", b"")
    ref = save_delegates(Delegates({"forward": (full, bare), "other": ()}), kind="delegates", store=store)
    loaded = load_delegates(ref, store)
    assert save_delegates(loaded, kind="delegates", store=store) == ref
    assert ref.identity == ref.root.digest
    assert list(loaded.methods) == ["forward", "other"]
    assert loaded.methods["other"] == ()
    first, second = loaded.methods["forward"]
    assert second == bare
    weights = first.delegate_info_meta["weights"].pop("w")
    assert torch.equal(weights, full.delegate_info_meta["weights"].pop("w"))
    assert buffers_read(first) == buffers_read(full)
    assert all(isinstance(buffer, FileBackedData) for buffer in first.named_data.buffers)
    digests = {blob.digest for blob in store.manifest(ref).blobs}
    assert {digest_bytes(content) for content in (b"payload" * 100, b"b" * 100, b"w" * 100)} <= digests


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"delegate_info_meta": {"graph": object()}}, r"the delegate info that One gives .*value\['graph'\]"),
        ({"debug_handle_map": {1: {2, 3}}}, "the debug handle map that One gives .*set"),
    ],
    ids=["info", "debug handles"],
)
def test_refused(change, what, store):
    """What cannot be represented is refused, and the message names the backend and the place."""
    result = DelegateResult("One", b"", **change)
    with pytest.raises(StoreError, match=what):
        save_delegates(Delegates({"forward": (result,)}), kind="delegates", store=store)


def test_other_formats(store):
    """A manifest of something else is refused."""
    with pytest.raises(StoreError, match="no delegates of format 1"):
        load_delegates(store.put_manifest(ArtifactManifest("delegates", (), {"format": 2})), store)


def test_named_data_is_stored_when_it_is_added(store):
    """Large data is a file of the store at once, equal data once; small data, keys and checks are as upstream's."""
    large = b"l" * (1 << 16)
    with named_data_stored(partial(stored_buffer, store=store)):
        named = NamedDataStore()
        for key, content in {"one": large, "same": large, "small": b"s", "apart": large + b"l"}.items():
            named.add_named_data(key, content, alignment=16)
        with pytest.raises(ValueError, match="Duplicate key one"):
            named.add_named_data("one", b"o" * len(large))
    first, small, apart = named.buffers
    assert small == b"s"
    assert (first.to_bytes(), apart.to_bytes()) == (large, large + b"l")
    assert [named.pte_data[key].buffer_index for key in ("one", "same", "small", "apart")] == [0, 0, 1, 2]
    named.add_named_data("later", large * 2)
    assert isinstance(named.buffers[-1], bytes)
    kept = keep_named_data(named.get_named_data_store_output(), store)
    assert [buffer.to_bytes() for buffer in kept.buffers] == [large, b"s", large + b"l", large * 2]
