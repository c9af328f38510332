"""Payloads kept as pieces come back byte for byte, share what they can, and never come back wrong."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import Digest, digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.manifest import Manifest
from pteforge.artifacts.pte.extents import Glue, Pieces, Zeros
from pteforge.artifacts.pte.pieces import payload_sha256, read_payload, save_payload, write_payload
from pteforge.artifacts.ref import BlobRef
from pteforge.errors import FileFormatError, ObjectDamaged, ObjectMissing, StoreError


def _damage(store: LocalStore, blob: BlobRef, *, keep_mark: bool = False) -> None:
    """Changes one byte of an object on the disk; with `keep_mark` such that the store cannot see it from outside."""
    path = store.path(blob)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)
    if keep_mark:
        os.utime(path, ns=times)


def test_rebuilt_byte_for_byte(sample, store, tmp_path):
    """Whatever kind of program it is, reading and writing give the stored bytes."""
    ref = save_payload(sample, store=store)
    write_payload(ref, store, tmp_path / "out" / "model.pte")
    assert (tmp_path / "out" / "model.pte").read_bytes() == sample
    assert read_payload(ref, store) == sample
    assert payload_sha256(ref, store) == hashlib.sha256(sample).hexdigest()


def test_ref_is_made_by_content_only(sample, store, tmp_path):
    """Another store, another buffer type and another order of saving give the same ref."""
    ref = save_payload(sample, store=store)
    other = LocalStore.open(tmp_path / "other")
    other.put_bytes(b"something else")
    assert save_payload(memoryview(bytearray(sample)), store=other) == ref
    assert ref.identity == digest_bytes(sample)
    assert ref.composite


def test_kind_is_kept(samples, store):
    """The artifact has the kind it was saved under."""
    assert save_payload(samples.files["stateless"], kind="outer/pte", store=store).kind == "outer/pte"
    assert save_payload(samples.files["stateless"], store=store).kind == "payload/pte"


def test_weights_of_the_program_are_stored_once(samples, store):
    """A portable payload adds no object for a weight that the stored program has: only glue and manifest."""
    from pteforge.artifacts.programs import save_program

    program = store.manifest(save_program(samples.program, kind="program/aten", store=store))
    before = {entry.digest for entry in store.objects}
    ref = save_payload(samples.files["portable"], store=store)
    glue, *tensors = store.manifest(ref).blobs
    assert {blob.digest for blob in tensors} == {
        hashlib.sha256(samples.weights[name]).hexdigest() for name in ("conv.weight", "linear.weight")
    }
    assert set(tensors) < set(program.blobs)
    assert {entry.digest for entry in store.objects} - before == {ref.root.digest, glue.digest}


def test_payloads_share_equal_tensors(samples, store):
    """XNNPACK keeps linear weights as they are: both payloads name the same object."""
    portable, xnnpack = (
        {blob.digest for blob in store.manifest(save_payload(samples.files[name], store=store)).blobs}
        for name in ("portable", "xnnpack")
    )
    assert hashlib.sha256(samples.weights["linear.weight"]).hexdigest() in portable & xnnpack


def test_zeros_take_no_object(samples, store):
    """A buffer that starts as zeros is an extent of zeros, not an object."""
    manifest = store.manifest(save_payload(samples.files["mutable"], store=store))
    assert ["zeros", 2800] in manifest.body["extents"]
    assert all(blob.size != 2800 for blob in manifest.blobs)


def test_padding_belongs_to_no_object(samples, store):
    """Objects end where their data ends, though the file goes on with padding."""
    manifest = store.manifest(save_payload(samples.files["methods"], store=store))
    assert 300 * 8 in {blob.size for blob in manifest.blobs}  # the constant method's 300 int64, in a padded segment


def test_bytes_behind_the_program_are_kept(samples, store):
    """What nobody knows the meaning of is kept all the same: large as objects, zeros as extents."""
    content = samples.files["portable"] + bytes(5000) + b"\1"
    assert read_payload(save_payload(content, store=store), store) == content
    content = samples.files["portable"] + bytes(range(256)) * 20
    ref = save_payload(content, store=store)
    assert read_payload(ref, store) == content
    assert 256 * 20 in {blob.size for blob in store.manifest(ref).blobs}


def test_invalid_files_are_not_saved(samples, store):
    """Bytes that are no `.pte` leave nothing in the store."""
    with pytest.raises(FileFormatError):
        save_payload(samples.files["portable"][:-1], store=store)
    assert list(store.objects) == []


@pytest.mark.parametrize("keep_mark", [False, True])
def test_damaged_object_stops_everything(samples, store, tmp_path, keep_mark):
    """Whichever object is damaged, seen by the store or not, reading raises ObjectDamaged and writes nothing."""
    content = samples.files["xnnpack"]
    destination = tmp_path / "out" / "model.pte"
    destination.parent.mkdir()
    destination.write_bytes(b"old")
    blobs = store.manifest(save_payload(content, store=store)).blobs
    assert len(blobs) == 4
    for blob in blobs:
        ref = save_payload(content, store=store)
        _damage(store, blob, keep_mark=keep_mark)
        with pytest.raises(ObjectDamaged) as caught:
            write_payload(ref, store, destination)
        assert caught.value.digest == blob.digest
        save_payload(content, store=store)
        _damage(store, blob, keep_mark=keep_mark)
        with pytest.raises(ObjectDamaged):
            read_payload(ref, store)
    assert destination.read_bytes() == b"old"
    assert list(destination.parent.iterdir()) == [destination]
    ref = save_payload(content, store=store)
    write_payload(ref, store, destination)
    assert destination.read_bytes() == content


def test_missing_object(samples, store, tmp_path):
    """An object that is gone is named, and nothing is written."""
    ref = save_payload(samples.files["portable"], store=store)
    for blob in store.manifest(ref).blobs:
        path = store.path(blob)
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(ObjectMissing):
            write_payload(ref, store, tmp_path / "model.pte")
        assert not (tmp_path / "model.pte").exists()
        store.put_bytes(content)


def test_written_file_has_ordinary_permissions(samples, store, tmp_path):
    """The file is the user's, with the permissions that the umask gives any new file."""
    write_payload(save_payload(samples.files["portable"], store=store), store, tmp_path / "model.pte")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "model.pte").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_manifests_of_other_things_are_refused(store):
    """A ref whose manifest is not one of pieces raises StoreError, whatever its body holds."""
    glue = store.put_bytes(b"not zlib")
    for body in (
        None,
        {},
        {"size": 1, "sha256": "0" * 64, "extents": [["blob", 1]]},
        {"size": 1, "sha256": "0" * 64, "extents": [["blob", -1]]},
        {"size": 2, "sha256": "0" * 64, "extents": [["zeros", 1]]},
        {"size": 0, "sha256": "0" * 64, "extents": [["zeros", -1], ["zeros", 1]]},
        {"size": 1, "sha256": "nonsense", "extents": [["zeros", 1]]},
        {"size": 1, "sha256": "0" * 64, "extents": ["zeros"]},
    ):
        with pytest.raises(StoreError, match="not"):
            payload_sha256(store.put_manifest(Manifest("payload/pte", (glue,), body)), store)
    with pytest.raises(StoreError):
        payload_sha256(
            store.put_manifest(Manifest("payload/pte", (), {"size": 0, "sha256": "0" * 64, "extents": []})), store
        )
    with pytest.raises(StoreError):
        payload_sha256(store.put_artifact("payload/pte", b"bytes"), store)


@pytest.mark.parametrize("extents", [[["glue", 4]], [["zeros", 4]], [["blob", 0]], [["glue", 2], ["zeros", 2]]])
def test_pieces_that_make_another_file_are_refused(store, tmp_path, extents):
    """Sound objects put together wrongly, or a glue that is too long, too short or no zlib, raise StoreError."""
    glue = store.put_bytes(b"1234")
    ref = store.put_manifest(Manifest("payload/pte", (glue,), {"size": 4, "sha256": "0" * 64, "extents": extents}))
    with pytest.raises(StoreError, match="do not make the file"):
        write_payload(ref, store, tmp_path / "model.pte")
    with pytest.raises(StoreError, match="do not make the file"):
        read_payload(ref, store)
    assert not (tmp_path / "model.pte").exists()


def test_a_bomb_in_the_glue_does_not_go_off(store):
    """However far the glue would inflate, no more memory is taken than the file has."""
    glue = store.put_bytes(zlib.compress(bytes(256 << 20), 9))
    body = {"size": 4, "sha256": "0" * 64, "extents": [["glue", 4]]}
    ref = store.put_manifest(Manifest("payload/pte", (glue,), body))
    tracemalloc.start()
    try:
        with pytest.raises(StoreError):
            read_payload(ref, store)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


_BLOBS = st.builds(
    lambda digit, size: BlobRef(Digest(digit * 64), size), st.sampled_from("0123456789abcdef"), st.integers(1, 5000)
)
_EXTENTS = st.lists(st.one_of(st.builds(Glue, st.integers(1, 99)), st.builds(Zeros, st.integers(1, 99)), _BLOBS))


@given(_EXTENTS, _BLOBS)
def test_pieces_survive_their_manifest(extents, glue):
    """Any pieces come back from their manifest as they were."""
    pieces = Pieces(sum(extent.size for extent in extents), Digest("f" * 64), glue, tuple(extents))
    manifest = Manifest.decode(pieces.to_manifest("payload/pte").encode())
    assert Pieces.from_manifest(manifest) == pieces
    assert len(set(manifest.blobs)) == len(manifest.blobs)


def test_rebuilding_imports_no_torch_and_no_numpy(samples, store, tmp_path):
    """A warm run that only writes files does not pay for torch, ExecuTorch or numpy."""
    ref = save_payload(samples.files["portable"], store=store)
    code = f"""
import sys
from pathlib import Path
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.pte.pieces import write_payload
from pteforge.artifacts.ref import ArtifactRef
ref = ArtifactRef.from_json({ref.to_json()!r})
write_payload(ref, LocalStore(Path({str(store.root)!r})), Path({str(tmp_path / "o.pte")!r}))
print(*sorted({{"torch", "executorch", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
    assert (tmp_path / "o.pte").read_bytes() == samples.files["portable"]
