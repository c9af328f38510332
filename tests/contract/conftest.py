"""The places a store can be in: a folder, this process's memory, and a bucket of a real S3 server on loopback."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pteforge.artifacts.digest import Digest
from pteforge.artifacts.store import Store, open_store

SIGNING_KEY = "a key for tests, longer than thirty-two characters"


@dataclass(frozen=True)
class Bucket:
    """An S3 server with one bucket, as the environment has to describe it."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """What fsspec needs to know."""
        return {"key": "tests", "secret": "tests-secret", "client_kwargs": {"endpoint_url": self.endpoint}}

    def check_credentials_from_now_on(self) -> None:
        """Until now the server took everybody for everybody."""
        connection = HTTPConnection(self.endpoint.removeprefix("http://"))
        connection.request("POST", "/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        assert connection.getresponse().status == 200
        connection.close()


@contextmanager
def run_s3_server(**environment: str) -> Iterator[Bucket]:
    """A moto server in its own process, on a port that the kernel chooses, with the bucket `zoo`."""
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as server:
        try:
            endpoint = next(line.split()[-1] for line in server.stderr if "Running on http" in line)
            reader = threading.Thread(target=server.stderr.read)  # or its log would fill the pipe
            reader.start()
            bucket = Bucket(endpoint)
            fsspec.filesystem("s3", **bucket.options).mkdir("zoo")
            yield bucket
        finally:
            server.kill()
            reader.join()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """One server for all tests; each takes a prefix of its own."""
    with run_s3_server() as bucket:
        yield bucket


@pytest.fixture
def start_s3_server() -> Callable[..., Any]:
    """For tests that need a server of their own."""
    return run_s3_server


@dataclass(frozen=True)
class Place:
    """Where a store is, and how to get at its stored bytes behind its back."""

    url: str
    folder: Path

    @property
    def is_local(self) -> bool:
        """Whether it is a folder."""
        return "://" not in self.url

    def open(self, host: str = "host") -> Store:
        """The store as a host with this name sees it: with its own local copies."""
        return open_store(self.url, cache=self.folder / host)

    def stored(self, store: Store, digest: Digest) -> bytes | None:
        """An object's bytes where they are authoritative."""
        if self.is_local:
            path = _local_object(store, digest)
            return path.read_bytes() if path.exists() else None
        return store._files.read(f"objects/{digest[:2]}/{digest}")

    def plant(self, store: Store, digest: Digest, content: bytes | None) -> None:
        """Puts other bytes in an object's place, or none."""
        if self.is_local:
            _overwrite(_local_object(store, digest), content)
        elif content is None:
            store._files.delete(f"objects/{digest[:2]}/{digest}")
        else:
            store._files.write(f"objects/{digest[:2]}/{digest}", content)

    def plant_copy(self, store: Store, digest: Digest, content: bytes | None) -> None:
        """The same for the copy on this machine."""
        _overwrite(_local_object(store, digest), content)

    def quarantined(self, store: Store) -> list[bytes]:
        """Bytes of all objects that were moved aside."""
        if self.is_local:
            return [path.read_bytes() for path in sorted((store.local.root / "quarantine").glob("*"))]
        return [store._files.read(name) for name in store._files.names("quarantine")]


def _local_object(store: Store, digest: Digest) -> Path:
    return store.local.root / "objects" / digest[:2] / digest


def _overwrite(path: Path, content: bytes | None) -> None:
    path.chmod(0o644)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Every kind of place."""
    return _make_place(request, tmp_path, monkeypatch)


@pytest.fixture(params=["local", "s3"])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place that several processes can open; memory belongs to one."""
    return _make_place(request, tmp_path, monkeypatch)


def _make_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("PTEFORGE_SIGNING_KEY", SIGNING_KEY)
    monkeypatch.delenv("PTEFORGE_STORE_OPTIONS", raising=False)
    if request.param == "local":
        return Place(str(tmp_path / "store"), tmp_path)
    if request.param == "memory":
        return Place(f"memory://{secrets.token_hex(8)}", tmp_path)
    bucket: Bucket = request.getfixturevalue("s3_server")
    monkeypatch.setenv("PTEFORGE_STORE_OPTIONS", json.dumps(bucket.options))
    return Place(f"s3://zoo/{secrets.token_hex(8)}", tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python programs as processes of their own; whatever is left of them is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
