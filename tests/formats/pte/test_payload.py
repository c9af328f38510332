"""Payloads that are stored as pieces are rebuilt byte for byte or not at all, and share what they can."""

import hashlib
import os
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import Digest, digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactManifest, BlobRef
from pteforge.errors import FileFormatError, ObjectDamaged, ObjectMissing, StoreError
from pteforge.tasks.programs.payload import (
    FileLayout,
    Remainder,
    Zeros,
    payload_sha256,
    read_payload,
    save_payload,
    write_payload,
)


def _damage(store: LocalStore, blob: BlobRef, *, keep_mark: bool) -> None:
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
    """Any kind of program is read and written as it was stored; the file has the permissions of any new file."""
    ref = save_payload(sample, store=store)
    file, plain = tmp_path / "out" / "model.pte", tmp_path / "plain"
    write_payload(ref, store, file)
    assert file.read_bytes() == sample
    plain.write_bytes(b"")
    assert file.stat().st_mode == plain.stat().st_mode
    assert read_payload(ref, store) == sample
    assert payload_sha256(ref, store) == hashlib.sha256(sample).hexdigest()
    other = LocalStore.open(tmp_path / "other")
    other.put_bytes(b"something else")
    assert save_payload(memoryview(bytearray(sample)), store=other) == ref
    assert (ref.kind, ref.identity, ref.composite) == ("payload/pte", digest_bytes(sample), True)
    assert save_payload(sample, kind="outer/pte", store=store).kind == "outer/pte"


def test_weights_of_the_program_are_stored_once(samples, store):
    """A portable payload adds no object for a weight that the stored program has: only glue and manifest."""
    from pteforge.tasks.programs.program import save_program

    program = store.manifest(save_program(samples.program, kind="program/aten", store=store))
    before = {entry.digest for entry in store}
    ref = save_payload(samples.files["portable"], store=store)
    glue, *tensors = store.manifest(ref).blobs
    assert {blob.digest for blob in tensors} == {
        hashlib.sha256(samples.weights[name]).hexdigest() for name in ("conv.weight", "linear.weight")
    }
    assert set(tensors) < set(program.blobs)
    assert {entry.digest for entry in store} - before == {ref.root.digest, glue.digest}
    xnnpack = store.manifest(save_payload(samples.files["xnnpack"], store=store)).blobs
    assert hashlib.sha256(samples.weights["linear.weight"]).hexdigest() in {blob.digest for blob in xnnpack}


def test_objects_hold_no_zeros(samples, store):
    """A buffer that starts as zeros is an extent of zeros; an object does not include the padding after its data."""
    manifest = store.manifest(save_payload(samples.files["mutable"], store=store))
    assert ["zeros", 2800] in manifest.body["extents"]
    assert all(blob.size != 2800 for blob in manifest.blobs)
    manifest = store.manifest(save_payload(samples.files["methods"], store=store))
    assert 300 * 8 in {blob.size for blob in manifest.blobs}  # the constant method's 300 int64, in a padded segment


def test_trailing_and_missing_bytes(samples, store):
    """Unknown bytes after the program are kept: large ones as objects, zeros as extents. A cut file leaves nothing."""
    with pytest.raises(FileFormatError):
        save_payload(samples.files["portable"][:-1], store=store)
    assert list(store) == []
    content = samples.files["portable"] + bytes(5000) + b"\1"
    assert read_payload(save_payload(content, store=store), store) == content
    content = samples.files["portable"] + bytes(range(256)) * 20
    ref = save_payload(content, store=store)
    assert read_payload(ref, store) == content
    assert 256 * 20 in {blob.size for blob in store.manifest(ref).blobs}


@pytest.mark.parametrize(
    ("break_object", "error"),
    [
        (lambda store, blob: _damage(store, blob, keep_mark=False), ObjectDamaged),
        (lambda store, blob: _damage(store, blob, keep_mark=True), ObjectDamaged),
        (lambda store, blob: store.path(blob).unlink(), ObjectMissing),
    ],
)
def test_broken_objects(samples, store, tmp_path, break_object, error):
    """Any damaged or missing object is an error, whether the store notices or not, and nothing is written."""
    content, destination = samples.files["xnnpack"], tmp_path / "out" / "model.pte"
    destination.parent.mkdir()
    destination.write_bytes(b"old")
    blobs = store.manifest(save_payload(content, store=store)).blobs
    assert len(blobs) == 4
    for blob in blobs:
        for use in (lambda ref: write_payload(ref, store, destination), lambda ref: read_payload(ref, store)):
            ref = save_payload(content, store=store)
            break_object(store, blob)
            with pytest.raises(error) as caught:
                use(ref)
            assert caught.value.digest == blob.digest
    assert destination.read_bytes() == b"old"
    assert list(destination.parent.iterdir()) == [destination]
    write_payload(save_payload(content, store=store), store, destination)
    assert destination.read_bytes() == content


def test_other_manifests(store):
    """A manifest that does not describe pieces, or has no objects, and an artifact without a manifest are refused."""
    glue = store.put_bytes(b"not zlib")
    right = {"size": 0, "sha256": "0" * 64, "extents": []}
    for blobs, body in (
        ((glue,), None),
        ((glue,), {}),
        ((glue,), right | {"size": 1, "extents": [["blob", 1]]}),
        ((glue,), right | {"size": 1, "extents": [["blob", -1]]}),
        ((glue,), right | {"size": 2, "extents": [["zeros", 1]]}),
        ((glue,), right | {"size": 0, "extents": [["zeros", -1], ["zeros", 1]]}),
        ((glue,), right | {"size": 1, "extents": [["zeros", 1]], "sha256": "nonsense"}),
        ((glue,), right | {"size": 1, "extents": ["zeros"]}),
        ((), right),
    ):
        with pytest.raises(StoreError, match="not"):
            payload_sha256(store.put_manifest(ArtifactManifest("payload/pte", blobs, body)), store)
    with pytest.raises(StoreError, match="not the manifest"):
        payload_sha256(store.put_artifact("payload/pte", b"bytes"), store)


@pytest.mark.parametrize(
    ("glue", "extents"),
    [
        (b"1234", [["glue", 4]]),
        (b"1234", [["zeros", 4]]),
        (b"1234", [["blob", 0]]),
        (b"1234", [["glue", 2], ["zeros", 2]]),
        (zlib.compress(bytes(256 << 20), 9), [["glue", 4]]),
    ],
    ids=["glue", "zeros", "blob", "both", "bomb"],
)
def test_pieces_that_make_another_file_are_refused(store, tmp_path, allocates_less_than, glue, extents):
    """Objects in a wrong order, or glue that is too long, too short or not zlib, raise StoreError."""
    body = {"size": 4, "sha256": "0" * 64, "extents": extents}
    ref = store.put_manifest(ArtifactManifest("payload/pte", (store.put_bytes(glue),), body))
    for use in (lambda: write_payload(ref, store, tmp_path / "model.pte"), lambda: read_payload(ref, store)):
        with allocates_less_than(16 << 20), pytest.raises(StoreError, match="do not make the file"):
            use()
    assert not (tmp_path / "model.pte").exists()


_BLOBS = st.builds(
    lambda digit, size: BlobRef(Digest(digit * 64), size), st.sampled_from("0123456789abcdef"), st.integers(1, 5000)
)
_EXTENTS = st.lists(st.one_of(st.builds(Remainder, st.integers(1, 99)), st.builds(Zeros, st.integers(1, 99)), _BLOBS))


@given(_EXTENTS, _BLOBS)
def test_pieces_survive_their_manifest(extents, glue):
    """Any layout round-trips through its manifest."""
    pieces = FileLayout(sum(extent.size for extent in extents), Digest("f" * 64), glue, tuple(extents))
    manifest = ArtifactManifest.decode(pieces.to_manifest("payload/pte").encode())
    assert FileLayout.from_manifest(manifest) == pieces
    assert len(set(manifest.blobs)) == len(manifest.blobs)


def test_rebuilding_imports_no_torch_and_no_numpy(samples, store, tmp_path):
    """A warm run that only writes files does not pay for torch, ExecuTorch or numpy."""
    ref = save_payload(samples.files["portable"], store=store)
    code = f"""
import sys
from pathlib import Path
from pteforge.artifacts.local_store import LocalStore
from pteforge.tasks.programs.payload import write_payload
from pteforge.artifacts.ref import ArtifactManifest, ArtifactRef
ref = ArtifactRef.from_json({ref.to_json()!r})
write_payload(ref, LocalStore(Path({str(store.root)!r})), Path({str(tmp_path / "o.pte")!r}))
print(*sorted({{"torch", "executorch", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
    assert (tmp_path / "o.pte").read_bytes() == samples.files["portable"]
