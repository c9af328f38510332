"""What is known of files without reading them."""

import os

import pytest
from pteforge.artifacts import known_files
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.known_files import KnownFiles


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def read(monkeypatch):
    """Names of the files that were read."""
    names = []

    def noting(path):
        names.append(path.name)
        return digest(path)

    digest = known_files.digest_file
    monkeypatch.setattr(known_files, "digest_file", noting)
    return names


def test_files_that_did_not_change_are_read_once(store, tmp_path, read, monkeypatch):
    """A later run knows a file by stat. Whatever is written to it since, of any size and time, is noticed."""
    monkeypatch.setattr(known_files, "_SETTLING", 0)
    file = tmp_path / "net.pte"
    file.write_bytes(b"one")
    for _ in range(3):
        known = KnownFiles(store, "published")
        assert known.sha256(file) == digest_bytes(b"one")
        known.save()
    assert read == ["net.pte"]
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert KnownFiles(store, "published").sha256(file) == digest_bytes(b"two")
    (tmp_path / "other.pte").write_bytes(b"six")
    (tmp_path / "other.pte").replace(file)
    assert KnownFiles(store, "published").sha256(file) == digest_bytes(b"six")
    file.unlink()
    assert KnownFiles(store, "published").sha256(file) is None
    assert KnownFiles(store, "published").sha256(tmp_path) is None


def test_files_known_by_another_digest(store, tmp_path, read, monkeypatch):
    """A file may be known by a digest that leaves out a part of it, as long as it is not written and is still there."""
    file, digest = tmp_path / "net.json", digest_bytes(b"what matters")
    file.write_bytes(b"one")
    known = KnownFiles(store, "published")
    known.note(file, digest)
    assert not known.knows(str(file), digest)  # it was written just now
    monkeypatch.setattr(known_files, "_SETTLING", 0)
    known.note(file, digest)
    known.note(tmp_path / "gone.json", digest)
    known.save()
    known = KnownFiles(store, "published")
    assert known.knows(str(file), digest)
    assert not known.knows(str(file), digest_bytes(b"one"))
    assert not known.knows(str(tmp_path / "gone.json"), digest)
    file.write_bytes(b"two")
    assert not known.knows(str(file), digest)
    file.unlink()
    assert not known.knows(str(file), digest)
    assert read == []


def test_files_that_were_just_written_are_read_again(store, tmp_path, read):
    """Within the resolution of a file system's clock, a second write may leave all times as they are."""
    file = tmp_path / "net.pte"
    file.write_bytes(b"one")
    for _ in range(2):
        known = KnownFiles(store, "published")
        assert known.sha256(file) == digest_bytes(b"one")
        known.save()
    assert read == ["net.pte"] * 2


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b'{"a": 1}', b'{"a": [{}]}'])
def test_what_cannot_be_read_is_forgotten(store, tmp_path, monkeypatch, content):
    """A damaged list of known files costs reading them."""
    monkeypatch.setattr(known_files, "_SETTLING", 0)
    (tmp_path / "net.pte").write_bytes(b"one")
    known = KnownFiles(store, "published")
    known.sha256(tmp_path / "net.pte")
    known.save()
    (store / "ledger" / "published").write_bytes(content)
    assert KnownFiles(store, "published").sha256(tmp_path / "net.pte") == digest_bytes(b"one")


def test_rot_of_what_is_known(store, tmp_path, monkeypatch):
    """A digest that rotted in the list is not believed."""
    monkeypatch.setattr(known_files, "_SETTLING", 0)
    (tmp_path / "net.pte").write_bytes(b"one")
    known, right = KnownFiles(store, "inputs"), digest_bytes(b"one")
    known.digest(tmp_path / "net.pte")
    known.save()
    record = store / "ledger" / "inputs"
    record.write_bytes(record.read_bytes().replace(right.encode(), digest_bytes(b"two").encode()))
    assert KnownFiles(store, "inputs").digest(tmp_path / "net.pte") == right
