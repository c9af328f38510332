"""Objects whose bytes stay in a file outside of the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.gc import collect, usage, verify_store
from pteforge.artifacts.known_files import Reference
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactManifest, BlobRef
from pteforge.artifacts.store import Store, open_store
from pteforge.errors import ObjectMissing

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore.open(tmp_path / "store")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"head" * 3 + CONTENT + b"tail")
    return path


def bytes_in(store: LocalStore) -> int:
    return sum(stored.size for stored in store)


def test_bytes_stay_in_the_file_until_somebody_needs_them(store: LocalStore, file: Path) -> None:
    blob = store.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    assert blob == BlobRef(digest_bytes(CONTENT), len(CONTENT))
    assert store.contains(blob)
    assert bytes_in(store) < 1000
    assert store.read(blob) == CONTENT
    assert bytes_in(store) == len(CONTENT)
    file.unlink()
    assert store.path(blob).read_bytes() == CONTENT


def test_bfloat16_is_widened_as_torch_does(store: LocalStore, tmp_path: Path) -> None:
    """All numbers, NaN and infinities among them."""
    torch = pytest.importorskip("torch")
    every = np.arange(1 << 16, dtype="<u2")
    (tmp_path / "all").write_bytes(every.tobytes())
    wide = torch.from_numpy(every.view(np.int16)).view(torch.bfloat16).to(torch.float32)
    blob = store.put_reference(Reference.of(str(tmp_path / "all"), 0, 4 << 16, widened=True))
    assert store.read(blob) == wide.view(torch.int32).numpy().tobytes()


def rewrite(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    os.truncate(file, 100)


def replace(file: Path) -> None:
    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes())
    other.replace(file)


@pytest.mark.parametrize("change", [rewrite, truncate, replace, Path.unlink])
def test_a_file_that_changed_has_lost_the_object(store: LocalStore, file: Path, change: Callable[[Path], None]) -> None:
    blob = store.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    change(file)
    assert not store.contains(blob)
    with pytest.raises(ObjectMissing):
        store.path(blob)
    assert store.put_bytes(CONTENT) == blob
    assert store.read(blob) == CONTENT


def test_a_file_that_changed_unnoticed_is_noticed_by_its_bytes(store: LocalStore, file: Path) -> None:
    blob = store.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    rewrite(file)
    (written,) = store.root.glob("objects/*/*.ref")
    written.chmod(0o600)
    written.write_bytes(Reference.of(str(file), 12, len(CONTENT)).encode())
    assert store.contains(blob)
    with pytest.raises(ObjectMissing):
        store.read(blob)
    assert not store.contains(blob)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'["/etc/passwd", 0, 5, false, [1]]', b"null"])
def test_what_is_no_reference_is_none(store: LocalStore, file: Path, content: bytes) -> None:
    blob = store.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    (written,) = store.root.glob("objects/*/*.ref")
    written.write_bytes(content)
    assert not store.contains(blob)


def test_transfers_take_the_bytes(tmp_path: Path, store: LocalStore, file: Path) -> None:
    """A file for the time of a transfer; in the other store, they are an object like any other."""
    blob = store.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    with store.file(blob) as lent:
        assert lent.read_bytes() == CONTENT
    assert not lent.exists()
    assert bytes_in(store) < 1000
    kept = store.put_bytes(b"kept")
    with store.file(kept) as own:
        assert own == store.path(kept)
    assert own.exists()
    remote = open_store(f"memory://{tmp_path.name}", cache=tmp_path / "cache")
    remote.local.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    ref = remote.local.put_manifest(ArtifactManifest("test", (blob,), {}))
    remote.publish(ref)
    assert bytes_in(remote.local) < 1000
    file.unlink()
    assert not remote.local.contains(blob)
    remote.fetch(ref)
    assert remote.local.read(blob) == CONTENT


def test_maintenance_knows_references(tmp_path: Path, file: Path) -> None:
    store = Store(tmp_path / "store")
    blob = store.local.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    assert [stored.digest for stored in store.objects()] == [blob.digest]
    assert usage(store).size < 1000
    (stored,) = store.objects()
    assert not store.discard(stored.digest, stored.changed)
    assert store.local.refresh(blob)
    assert collect(store).objects_removed == 0  # within the grace period
    assert store.discard(blob.digest, stored.changed + 1000)
    assert not store.local.contains(blob)
    assert not verify_store(store).damaged


def test_a_deep_check_does_not_copy(tmp_path: Path, file: Path) -> None:
    """It would fill the disk with what is in checkpoints already."""
    store = Store(tmp_path / "store")
    store.local.put_reference(Reference.of(str(file), 12, len(CONTENT)))
    assert not verify_store(store).damaged
    assert bytes_in(store.local) < 1000
    rewrite(file)
    assert len(verify_store(store).damaged) == 1
