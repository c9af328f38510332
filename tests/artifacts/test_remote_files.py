"""Backends without a conditional put, where files are staged and moved; tested on fsspec's own local backend."""

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pteforge.artifacts import remote_files
from pteforge.artifacts.records import Seal
from pteforge.artifacts.ref import BlobRef
from pteforge.artifacts.remote_files import RemoteFiles
from pteforge.artifacts.store import PublishingNotes
from pteforge.errors import StoreAway, StoreUnusable
from pteforge.tests.contract.conftest import s3_server as s3_server  # noqa: PLC0414 - a fixture
from pteforge.tests.faulty_proxy import Proxy, run_proxy


@pytest.fixture
def files(tmp_path):
    return RemoteFiles(f"file://{tmp_path}/remote")


def test_files_are_written_and_listed(files):
    """A written file is read, listed and found; a listing has no other folder with the same prefix."""
    assert files.read("a/b") is None
    assert files.find("a/b") is None
    assert files.list("a") == []
    files.write("a/b", b"first")
    files.write("a/b", b"second")
    files.write("ab/c", b"")
    assert files.read("a/b") == b"second"
    assert files.names("a") == ["a/b"]
    assert files.find("a/b") == files.list("a")[0]
    assert files.find("a/b").size == 6
    with pytest.raises(StoreUnusable, match="cannot be written"):
        files.write("a/b/c", b"below a file")
    assert files.names("tmp") == []


def test_one_creator_wins(files):
    """If many threads create a file, one succeeds."""
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: files.create("lease", b"%d" % number), range(32)))
    assert created.count(True) == 1
    assert files.read("lease") == b"%d" % created.index(True)


def test_up_and_down(files, tmp_path):
    """Local files are uploaded and downloaded; missing ones are reported."""
    (tmp_path / "here").write_bytes(b"weights")
    files.upload(tmp_path / "here", "objects/x")
    assert files.download("objects/x", tmp_path / "back", 7)
    assert (tmp_path / "back").read_bytes() == b"weights"
    assert not files.download("objects/y", tmp_path / "nothing", 7)
    files.move("objects/x", "quarantine/x")
    assert files.names("objects") == []
    assert files.read("quarantine/x") == b"weights"
    files.delete("quarantine/x")
    files.delete("quarantine/x")
    assert files.names("quarantine") == []


def test_no_more_is_read_than_expected(files, tmp_path, monkeypatch):
    """A file that somebody has made larger is read to its expected size only, and then is not what was expected."""
    files.write("objects/x", b"w" * 1000)
    assert files.read("objects/x", 1000) == b"w" * 1000
    assert files.read("objects/x", 999) == b""
    assert files.download("objects/x", tmp_path / "copy", 10)
    assert (tmp_path / "copy").stat().st_size == 11
    monkeypatch.setattr(remote_files, "_BLOCK", 7)
    for size in (20, 21, 22, 999, 1000, 1001):
        assert files.download("objects/x", tmp_path / "copy", size)
        assert (tmp_path / "copy").stat().st_size == min(size + 1, 1000)


def test_notes_that_nobody_signed(files, caplog):
    """Where notes are signed, others count for nothing; each is reported once."""
    PublishingNotes(files).add([BlobRef("a" * 64, 1)])
    files.write("publishing/deep", b"[" * 100_000)
    notes = PublishingNotes(files, Seal("k" * 32))
    notes.add([BlobRef("b" * 64, 1)])
    for _ in range(2):
        assert notes.times().keys() == {"b" * 64}
    assert caplog.text.count("is not used") == 2


def test_notes_give_the_last_time(files):
    """An object counts as published when it was last noted; unreadable notes count for nothing."""
    notes = PublishingNotes(files)
    assert notes.times() == {}
    files.write("publishing/bad", b"{")
    files.write("publishing/worse", b"\xff")
    files.write("publishing/object", b"{}")
    assert notes.times() == {}
    notes.add([BlobRef("a" * 64, 1), BlobRef("b" * 64, 1)])
    first = notes.times()
    notes.add([BlobRef("a" * 64, 1)])
    second = notes.times()
    assert first.keys() == second.keys() == {"a" * 64, "b" * 64}
    assert second["a" * 64] >= first["a" * 64]
    assert second["b" * 64] == first["b" * 64]


def test_pipes_are_not_waited_for(files, tmp_path):
    """A pipe in the place of a file would be read without end: an error names it."""
    files.write("releases/one", b"1")
    (tmp_path / "remote" / "releases" / "one").unlink()
    os.mkfifo(tmp_path / "remote" / "releases" / "one")
    with pytest.raises(StoreUnusable, match=r"releases/one .*is a pipe"):
        files.read("releases/one")


def test_a_folder_in_the_place_of_a_new_file(files, tmp_path):
    """Nothing is created in its place, nor within it."""
    (tmp_path / "remote" / "leases" / "one").mkdir(parents=True)
    assert not files.create("leases/one", b"1")
    assert list((tmp_path / "remote").rglob("*")) == [tmp_path / "remote" / "leases", tmp_path / "remote/leases/one"]


def test_a_server_that_says_nothing(monkeypatch):
    """A write waits for no longer than the limit, three times; the client itself would wait without end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"endpoint_url": f"http://127.0.0.1:{server.getsockname()[1]}", "key": "a", "secret": "b"}
        monkeypatch.setenv(remote_files.OPTIONS_VARIABLE, json.dumps(options))
        monkeypatch.setattr(remote_files, "PATIENCE", 0.5)
        began = time.monotonic()
        with pytest.raises(StoreUnusable, match="cannot be written: FSTimeoutError"):
            RemoteFiles("s3://bucket/store").write("record", b"content")
        assert 1 < time.monotonic() - began < 30


@pytest.mark.slow
def test_an_outage_is_waited_for(s3_server, monkeypatch, caplog):
    """A store that has answered may be away, for as long as is set, and is told once; one that never has fails soon."""
    away = threading.Event()
    with run_proxy(Proxy(s3_server.endpoint, lambda *_: "unavailable" if away.is_set() else "")) as url:
        impatient_client = {"config_kwargs": {"retries": {"max_attempts": 1}}}  # botocore itself retries for 10 s
        options = s3_server.options | {"client_kwargs": {"endpoint_url": url}} | impatient_client
        monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(options))
        monkeypatch.setattr(remote_files, "QUIET_WAIT", 1.0)
        monkeypatch.setenv("PTEFORGE_STORE_OUTAGE", "60")
        files = RemoteFiles("s3://zoo/outage")
        assert files.create("record", b"content")
        away.set()
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(files.read, "record")
            while not caplog.records and not reading.done():
                time.sleep(0.1)
            away.clear()
            assert reading.result() == b"content"
        gone, returned = (record.message for record in caplog.records)
        assert gone.startswith(f"the store {files.url} does not answer, waiting up to 60 s: ")
        assert returned.startswith(f"the store {files.url} answers again after ")

        monkeypatch.setenv("PTEFORGE_STORE_OUTAGE", "0")
        impatient = RemoteFiles(files.url)
        assert impatient.read("record") == b"content"
        away.set()
        for store in (impatient, RemoteFiles(files.url)):
            with pytest.raises(StoreAway, match="cannot be read"):
                store.read("record")


def test_the_length_of_an_outage_is_a_number(tmp_path, monkeypatch):
    """What is no number of seconds is refused before the store is used."""
    monkeypatch.setenv("PTEFORGE_STORE_OUTAGE", "ten minutes")
    with pytest.raises(StoreUnusable, match=r"PTEFORGE_STORE_OUTAGE.*'ten minutes'"):
        RemoteFiles(f"file://{tmp_path}")
