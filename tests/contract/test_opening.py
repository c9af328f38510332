"""How stores open, and what they say when they cannot."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import closing

import pytest
from pteforge.artifacts.store import LocalOnlyStore, open_store
from pteforge.errors import InputError, StoreUnusable

SECRET = "do-not-show-this"  # noqa: S105 - stands for one


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", "x" * 32)
    monkeypatch.delenv("PTEFORGE_STORE_OPTIONS", raising=False)


def test_default_store_is_in_the_cache(tmp_path, monkeypatch):
    """Without a URL the store is in PTEFORGE_CACHE, then in XDG_CACHE_HOME, then in ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PTEFORGE_CACHE", raising=False)
    assert open_store(None).url == str(tmp_path / "home/.cache/pteforge/store")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_store(None).url == str(tmp_path / "xdg/pteforge/store")
    monkeypatch.setenv("PTEFORGE_CACHE", str(tmp_path / "own"))
    assert open_store(None).url == str(tmp_path / "own/store")
    assert open_store(None, cache=tmp_path / "given").url == str(tmp_path / "given/store")


def test_paths_and_file_urls_are_local(tmp_path, monkeypatch):
    """A path, relative or not, and a file URL open the same local store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("a store", "~/a store", str(tmp_path / "a store"), f"file://{tmp_path}/a%20store"):
        store = open_store(url)
        assert isinstance(store, LocalOnlyStore)
        assert store.local.root == tmp_path / "a store"


def test_store_reopens(place):
    """A store that is opened again is the same store."""
    with place.open("a") as store:
        ref = store.local.put_artifact("report", b"all is well")
        store.publish(ref)
    with place.open("b") as store:
        assert store.has(ref)


def test_other_layout_is_refused(place):
    """A store of another layout version is not touched."""
    with place.open() as store:
        files = store.ledger._files
        files.write("version", b"pteforge store 99\n")
        with pytest.raises(StoreUnusable, match="another layout"):
            place.open()
        assert files.read("version") == b"pteforge store 99\n"


@pytest.mark.parametrize("key", [None, "", "x" * 31])
def test_remote_store_needs_a_key(tmp_path, monkeypatch, key):
    """Without a key of 32 characters a shared store is refused, before it is reached, with the way to make a key."""
    monkeypatch.delenv("PTEFORGE_SIGNING_KEY")
    if key is not None:
        monkeypatch.setenv("PTEFORGE_SIGNING_KEY", key)
    with pytest.raises(StoreUnusable, match=r"secrets\.token_hex\(32\)") as caught:
        open_store("s3://zoo/prefix", cache=tmp_path)
    assert not key or key not in str(caught.value)


def test_memory_store_needs_no_key(tmp_path, monkeypatch):
    """This process's own memory is trusted."""
    monkeypatch.delenv("PTEFORGE_SIGNING_KEY")
    with open_store("memory://without-a-key", cache=tmp_path) as store:
        assert list(store.ledger) == []


def test_unknown_protocol(tmp_path):
    """A URL that fsspec knows nothing about is named in the message."""
    with pytest.raises(StoreUnusable, match=r"nosuch://zoo.*nosuch"):
        open_store("nosuch://zoo", cache=tmp_path)


def test_missing_bucket(s3_server, tmp_path, monkeypatch):
    """A bucket that does not exist is the user's to make."""
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(s3_server.options))
    with pytest.raises(StoreUnusable, match=r"s3://elsewhere/x.*bucket") as caught:
        open_store("s3://elsewhere/x", cache=tmp_path)
    assert isinstance(caught.value, InputError)


def test_bad_credentials(start_s3_server, tmp_path, monkeypatch):
    """A server that checks credentials and refuses ours: one message, without them, and no second try."""
    with start_s3_server(INITIAL_NO_AUTH_ACTION_COUNT="1000") as server:
        server.check_credentials_from_now_on()
        monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(server.options | {"key": SECRET, "secret": SECRET}))
        with pytest.raises(StoreUnusable, match=r"s3://zoo/x.*PermissionError.*credentials") as caught:
            open_store("s3://zoo/x", cache=tmp_path)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_unreachable_server(tmp_path, monkeypatch):
    """A server that nobody runs is given up on after some tries."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    options = {"key": SECRET, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(options))
    with pytest.raises(StoreUnusable, match=r"s3://zoo/x.*endpoint") as caught:
        open_store("s3://zoo/x", cache=tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("options", ["not json", "[1]", '"text"'])
def test_malformed_options(tmp_path, monkeypatch, options):
    """Options that are no JSON object are refused by name, and not repeated: they may hold secrets."""
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", options)
    with pytest.raises(StoreUnusable, match="PTEFORGE_STORE_OPTIONS") as caught:
        open_store("memory://options", cache=tmp_path)
    assert options not in str(caught.value)


def test_unsuitable_options(tmp_path, monkeypatch):
    """Options that the backend does not take: one message, without secrets."""
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps({"client_kwargs": SECRET, "secret": SECRET}))
    with pytest.raises(StoreUnusable) as caught:
        open_store("s3://zoo/x", cache=tmp_path)
    assert SECRET not in str(caught.value)


def test_password_in_a_url_is_not_shown(tmp_path):
    """Neither the store's name nor a message holds what a URL says about who we are."""
    with pytest.raises(StoreUnusable) as caught:
        open_store(f"nosuch://user:{SECRET}@host/path?token={SECRET}", cache=tmp_path)
    assert SECRET not in str(caught.value)
    assert "nosuch://host/path" in str(caught.value)


def test_missing_package(start):
    """Where s3fs is not installed, the message says which extra brings it."""
    program = """
import sys
sys.modules["s3fs"] = None  # what an import then does is what it does where it is not installed
from pathlib import Path
from pteforge.artifacts.store import open_store
from pteforge.errors import StoreUnusable
try:
    open_store("s3://zoo/x", cache=Path("cache"))
except StoreUnusable as error:
    print(error)
"""
    process = start(program)
    assert "pteforge[s3]" in process.communicate()[0]


def test_nothing_heavy_is_imported(start):
    """A local store needs none of the big packages, so that a run without work is fast."""
    program = """
import sys
before = set(sys.modules)
from pathlib import Path
from pteforge.artifacts import gc, ledger, store
store.open_store("here").close()
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    process = start(program)
    imported = set(process.communicate()[0].split())
    assert "pteforge" in imported
    assert not imported & {"torch", "executorch", "prefect", "fsspec", "s3fs", "tenacity", "numpy", "psutil"}


def test_passing_network_trouble_is_survived(s3_server, tmp_path, monkeypatch):
    """Connections that break now and then cost a retry, not the run."""
    host, port = s3_server.endpoint.removeprefix("http://").split(":")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        broken = 0

        def serve() -> None:
            nonlocal broken
            for number in range(1000):
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                if number % 3 == 0:
                    broken += 1
                    client.close()
                    continue
                server = socket.create_connection((host, int(port)))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv(
            "PTEFORGE_STORE_OPTIONS", json.dumps(s3_server.options | {"client_kwargs": {"endpoint_url": endpoint}})
        )
        with open_store("s3://zoo/trouble", cache=tmp_path / "a") as here:
            refs = [here.local.put_artifact("report", bytes([number])) for number in range(5)]
            for ref in refs:
                here.publish(ref)
        with open_store("s3://zoo/trouble", cache=tmp_path / "b") as there:
            for ref in refs:
                there.fetch(ref)
        listener.shutdown(socket.SHUT_RDWR)
    assert broken > 0


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Passes bytes on until one side ends."""
    with closing(source), closing(sink):
        try:
            while content := source.recv(65536):
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
