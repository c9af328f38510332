"""Locations of stores: a folder, this process's memory, and a bucket of a real S3 server on loopback."""

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
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pteforge.artifacts.digest import Digest, digest_json
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.artifacts.store import Store, open_store
from pteforge.tests.conftest import run_process

SIGNING_KEY = "a key for tests, longer than thirty-two characters"


@dataclass(frozen=True)
class Bucket:
    """An S3 server with one bucket."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        return {"key": "tests", "secret": "tests-secret", "client_kwargs": {"endpoint_url": self.endpoint}}

    def check_credentials_from_now_on(self) -> None:
        """Ends the server's initial phase of accepting any credentials."""
        connection = HTTPConnection(self.endpoint.removeprefix("http://"))
        connection.request("POST", "/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        assert connection.getresponse().status == 200
        connection.close()


@contextmanager
def run_s3_server(**environment: str) -> Iterator[Bucket]:
    """Runs a moto server in its own process, on a free port, with the bucket `zoo`."""
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as server:
        try:
            endpoint = next(line.split()[-1] for line in server.stderr if "Running on http" in line)
            reader = threading.Thread(target=server.stderr.read)  # so that its log does not fill the pipe
            reader.start()
            bucket = Bucket(endpoint)
            fsspec.filesystem("s3", **bucket.options).mkdir("zoo")
            yield bucket
        finally:
            server.kill()
            reader.join()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """One server for all tests; each uses its own prefix."""
    with run_s3_server() as bucket:
        yield bucket


@pytest.fixture
def start_s3_server() -> Callable[..., Any]:
    """Starts a server for one test."""
    return run_s3_server


@dataclass(frozen=True)
class Place:
    """The location of a store, and direct access to its bytes."""

    url: str
    folder: Path

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    def open(self, host: str = "host") -> Store:
        """Opens the store as a host of that name would, with local copies of its own."""
        return open_store(self.url, cache=self.folder / host)

    def stored(self, store: Store, digest: Digest) -> bytes | None:
        """Bytes of an object in the store itself."""
        if self.is_local:
            path = _local_object(store, digest)
            return path.read_bytes() if path.exists() else None
        return store._files.read(f"objects/{digest[:2]}/{digest}")

    def plant(self, store: Store, digest: Digest, content: bytes | None) -> None:
        """Replaces an object in the store itself; None deletes it."""
        if self.is_local:
            _overwrite(_local_object(store, digest), content)
        elif content is None:
            store._files.delete(f"objects/{digest[:2]}/{digest}")
        else:
            store._files.write(f"objects/{digest[:2]}/{digest}", content)

    def plant_copy(self, store: Store, digest: Digest, content: bytes | None) -> None:
        """Replaces the local copy."""
        _overwrite(_local_object(store, digest), content)

    def quarantined(self, store: Store) -> list[bytes]:
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
    return _make_place(request, tmp_path, monkeypatch)


@pytest.fixture(params=["local", "s3"])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place that several processes can open."""
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


def commit(store: Store, number: int, *, finished: datetime | None = None) -> StageRecord:
    """Records a stage with a log and a composite output of two objects, one of which all stages share."""
    blobs = (store.local.put_bytes(b"shared weights"), store.local.put_bytes(f"weights {number}".encode()))
    ref = store.local.put_manifest(ArtifactManifest("program/aten", blobs, number))
    log = store.local.put_artifact("log", f"log {number}".encode())
    store.publish(ref)
    store.publish(log)
    fields = {"number": number}
    record = StageRecord(
        digest_json(fields), fields, {"program": ref}, 1.0, 0, (finished or datetime.now(UTC)).isoformat(), log.root
    )
    store.ledger.commit(record)
    return record


@pytest.fixture(scope="session")
def run_python() -> Callable[..., Any]:
    """Runs Python with the zoo of models in its path; returns the last line of its output, as JSON."""

    def run(*arguments: Any, **environment: str) -> Any:
        path = os.pathsep.join([str(Path(__file__).parents[1] / "zoo"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": path} | environment
        finished = run_process(sys.executable, *arguments, env=environment, timeout=420)
        assert finished.returncode == 0, finished.stderr[-4000:]
        return json.loads(finished.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def lower_for_targets(tmp_path_factory: pytest.TempPathFactory, run_python: Callable[..., Any]) -> Callable[..., Any]:
    """Runs tasks of lower_for_targets.py for targets, each with a hash seed of its own; returns results by target."""
    script = Path(__file__).with_name("lower_for_targets.py")
    return lambda names, *tasks: [
        run_python(script, task, tmp_path_factory.mktemp(task), *names, PYTHONHASHSEED=str(seed))
        for seed, task in enumerate(tasks, 1)
    ]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python programs, and kills those still running at the end."""
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
