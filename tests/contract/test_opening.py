"""Opening stores, and the messages if they cannot be opened."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import closing

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.remote_files import RemoteFiles
from pteforge.artifacts.runs import RunRecord
from pteforge.artifacts.store import Store, cache_folder, open_store
from pteforge.errors import InputError, StoreUnusable
from pteforge.tests.contract.conftest import SIGNING_KEY

SECRET = "do-not-show-this"  # noqa: S105 - not a real one


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", "x" * 32)
    monkeypatch.delenv("PTEFORGE_STORE_OPTIONS", raising=False)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "home/.cache/pteforge"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/pteforge"),
        ({"PTEFORGE_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own"),
        ({"PTEFORGE_CACHE": "~/own"}, "home/own"),
        ({"PTEFORGE_CACHE": "", "XDG_CACHE_HOME": ""}, "home/.cache/pteforge"),
    ],
)
def test_default_store_is_in_the_cache(environment, folder, tmp_path, monkeypatch):
    """PTEFORGE_CACHE precedes XDG_CACHE_HOME and the home folder; relative paths start in the current folder."""
    for name in ("PTEFORGE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path / "home"), **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == tmp_path / folder
    assert open_store().url == str(tmp_path / folder / "store")
    assert open_store(cache=tmp_path / "given").url == str(tmp_path / "given/store")


def test_paths_and_file_urls_are_local(tmp_path, monkeypatch):
    """A path, relative or not, and a file URL open the same local store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("a store", "~/a store", str(tmp_path / "a store"), f"file://{tmp_path}/a%20store"):
        store = open_store(url)
        assert type(store) is Store
        assert store.local.root == tmp_path / "a store"


def test_another_layout(place):
    """A store of another layout version is an error, and stays unchanged."""
    with place.open() as store:
        files = store.ledger._files
        files.write("version", b"pteforge store 99\n")
        with pytest.raises(StoreUnusable, match="another layout"):
            place.open()
        assert files.read("version") == b"pteforge store 99\n"


@pytest.mark.parametrize("key", [None, "", "x" * 31])
def test_remote_store_needs_a_key(tmp_path, monkeypatch, key):
    """A shared store without a key of 32 characters is an error before any contact, with how to create a key."""
    monkeypatch.delenv("PTEFORGE_SIGNING_KEY")
    if key is not None:
        monkeypatch.setenv("PTEFORGE_SIGNING_KEY", key)
    with pytest.raises(StoreUnusable, match=r"secrets\.token_hex\(32\)") as caught:
        open_store("s3://zoo/prefix", cache=tmp_path)
    assert not key or key not in str(caught.value)
    if key is None:
        with open_store("memory://without-a-key", cache=tmp_path) as store:
            assert list(store.ledger) == []


KEY = digest_bytes(b"a stage")
OTHER_KEY = "another key for tests, longer than thirty-two characters"
signed = pytest.mark.parametrize("place", ["s3"], indirect=True)


@pytest.fixture
def filled(place):
    """Bytes of a signed store with a record of each kind, by name."""
    with place.open() as store:
        ref = store.local.put_artifact("report", b"all is well")
        store.publish(ref)
        store.ledger.commit(StageRecord(KEY, {"stage": "export"}, {"report": ref}, 1.0, 0, "2026-01-02"))
        store.ledger.remember("net/export", KEY, {"stage": "export"})
        store.ledger.watch("nets:linear", ["layers"])
        store.runs.write(RunRecord("id", "zoo", "2026-01-02T03:04:05+00:00", 1.0, {}))
    return contents(store)


def contents(store):
    files = store._files
    below = [name for folder in ("ledger", "runs", "objects") for name in files.names(folder)]
    return {name: files.read(name) for name in ("key", "version", *below)}


@signed
def test_key_that_does_not_fit(place, filled, monkeypatch):
    """Another key than the store's is an error that says what to do, before anything is read or written."""
    with place.open() as store:
        monkeypatch.setenv("PTEFORGE_SIGNING_KEY", OTHER_KEY)
        before = contents(store)
        with pytest.raises(StoreUnusable, match=r"signed with .*PTEFORGE_SIGNING_KEY.*store rekey") as caught:
            place.open()
        assert contents(store) == before
        for key in (OTHER_KEY, SIGNING_KEY):
            assert key not in str(caught.value)
        monkeypatch.setenv("PTEFORGE_SIGNING_KEY", SIGNING_KEY)
        with place.open():
            assert contents(store) == filled
        assert SIGNING_KEY.encode() not in filled["key"]


@signed
def test_run_whose_key_does_not_fit(place, filled, monkeypatch, run_here, tmp_path):
    """A run stops before any work."""
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", OTHER_KEY)
    (tmp_path / "net.py").write_text("def build():\n    raise SystemExit('the model must not be built')\n")
    (tmp_path / "zoo.yaml").write_text("version: 1\nmodels: {net: {source: 'net:build', recipes: [portable-fp32]}}\n")
    run_here(tmp_path, "export", "zoo.yaml", "--store", place.url).refused("is signed with the key", "store rekey")
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", SIGNING_KEY)
    with place.open() as store:
        assert contents(store) == filled


@signed
@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"pteforge key 2 x\n"])
def test_garbled_id_of_a_key(place, filled, content):
    """An id that cannot be read counts as absent."""
    with place.open() as store:
        store._files.write("key", content)
        with place.open():
            assert store._files.read("key") == filled["key"]


@signed
def test_rekey(place, filled, monkeypatch, run_here, tmp_path):
    """`store rekey` signs all records with another key, and then only that one fits."""
    with place.open() as store:
        files = store._files
    monkeypatch.setenv("PTEFORGE_NEW_SIGNING_KEY", OTHER_KEY)
    write, written = RemoteFiles.write, []

    def fail_in_the_middle(self, name, content):
        if len(written) == 3:
            raise StoreUnusable("the network is gone")
        written.append(name)
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFiles, "write", fail_in_the_middle)
        assert run_here(tmp_path, "store", "rekey", "--store", place.url).code == 2
    for key in (SIGNING_KEY, OTHER_KEY):
        monkeypatch.setenv("PTEFORGE_SIGNING_KEY", key)
        with pytest.raises(StoreUnusable, match="being changed"):
            place.open()
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", SIGNING_KEY)
    files.write("runs/20990101T000000.000000-forged.json", RunRecord("x", "x", "2026-01-02", 1.0, {}).encode())
    done = run_here(tmp_path, "store", "rekey", "--store", place.url, "--json").json
    assert done == {"records": 4, "dropped": 1}
    with pytest.raises(StoreUnusable):
        place.open()
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", OTHER_KEY)
    with place.open() as store:
        record = store.ledger.lookup(KEY)
        store.fetch(record.outputs["report"])
        assert store.ledger.last("net/export").key == KEY
        assert store.ledger.watched("nets:linear") == ("layers",)
        assert [run.id for run in store.runs] == ["id"]
        assert contents(store).keys() == filled.keys()


def test_rekey_of_a_store_without_a_key(tmp_path, run_here, monkeypatch):
    """Only stores that several machines share have a key; another one to change to must be given."""
    run_here(tmp_path, "store", "rekey", "--store", str(tmp_path)).refused("not signed")
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", SIGNING_KEY)
    run_here(tmp_path, "store", "rekey", "--store", "s3://zoo/x").refused("PTEFORGE_NEW_SIGNING_KEY is not set")


def test_missing_bucket(s3_server, tmp_path, monkeypatch):
    """The message for a missing bucket names it: the user has to create it."""
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(s3_server.options))
    with pytest.raises(StoreUnusable, match=r"s3://elsewhere/x.*bucket") as caught:
        open_store("s3://elsewhere/x", cache=tmp_path)
    assert isinstance(caught.value, InputError)


def test_bad_credentials(start_s3_server, tmp_path, monkeypatch):
    """If the server rejects our credentials, there is one message without them, and no retry."""
    with start_s3_server(INITIAL_NO_AUTH_ACTION_COUNT="1000") as server:
        server.check_credentials_from_now_on()
        monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(server.options | {"key": SECRET, "secret": SECRET}))
        with pytest.raises(StoreUnusable, match=r"s3://zoo/x.*PermissionError.*credentials") as caught:
            open_store("s3://zoo/x", cache=tmp_path)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_unreachable_server(tmp_path, monkeypatch):
    """An unreachable server is given up after a few tries."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    options = {"key": SECRET, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(options))
    with pytest.raises(StoreUnusable, match=r"s3://zoo/x.*endpoint") as caught:
        open_store("s3://zoo/x", cache=tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "options", ["not json", "[1]", '"text"', json.dumps({"client_kwargs": SECRET, "secret": SECRET})]
)
def test_wrong_options(tmp_path, monkeypatch, options):
    """Malformed or unsuitable options are an error that does not repeat them: they may contain secrets."""
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", options)
    with pytest.raises(StoreUnusable, match="s3://zoo/x" if SECRET in options else "PTEFORGE_STORE_OPTIONS") as caught:
        open_store("s3://zoo/x" if SECRET in options else "memory://options", cache=tmp_path)
    assert options not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_password_in_a_url_is_not_shown(tmp_path):
    """The error for an unknown protocol has the URL without its credentials."""
    with pytest.raises(StoreUnusable, match=r"nosuch://host/path.*nosuch") as caught:
        open_store(f"nosuch://user:{SECRET}@host/path?token={SECRET}", cache=tmp_path)
    assert SECRET not in str(caught.value)


def test_missing_package(start):
    """If s3fs is not installed, the message names the extra."""
    program = """
import sys
sys.modules["s3fs"] = None  # importing it then fails as if it were not installed
from pathlib import Path
from pteforge.artifacts.store import open_store
from pteforge.errors import StoreUnusable
try:
    open_store("s3://zoo/x", cache=Path("cache"))
except StoreUnusable as error:
    print(error)
"""
    assert "pteforge[s3]" in start(program).communicate()[0]


def test_nothing_heavy_is_imported(start):
    """A local store imports no large package, so that a run without work is fast."""
    program = """
import sys
before = set(sys.modules)
from pathlib import Path
from pteforge.artifacts import gc, ledger, store
store.open_store("here").close()
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    imported = set(start(program).communicate()[0].split())
    assert "pteforge" in imported
    assert not imported & {"torch", "executorch", "prefect", "fsspec", "s3fs", "tenacity", "numpy", "psutil"}


def test_transient_network_errors(s3_server, tmp_path, monkeypatch):
    """Broken connections are retried."""
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
    """Forwards bytes until one side closes."""
    with closing(source), closing(sink):
        try:
            while content := source.recv(65536):
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
