"""A store behind an fsspec URL, read through a local copy."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..errors import ObjectDamaged, ObjectMissing, StoreUnusable
from .digest import Digest, canonical_json, digest_file, is_digest
from .files import write_errors
from .lease import LeaseTiming, LocalLeases, RemoteLeases
from .ledger import Ledger
from .local_store import LAYOUT, LocalStore
from .object_folder import StoredObject
from .records import RecordFiles, Seal, signing_key
from .ref import ArtifactRef, BlobRef
from .remote_files import RemoteFiles, public_url
from .runs import Runs
from .store import Store
from .store_key import check_key

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

_PARALLEL = 8

_NOTES = "publishing"
"""Folder of `PublishingNotes`; gc deletes old ones."""

_DAMAGED = "damaged"
"""Folder of empty files named by the objects that were found damaged and are not settled yet."""


class RemoteStore(Store):
    """Objects in a bucket, signed records, and a local copy of the objects that were used here.

    Records of stores that others can write to are signed. Only ``memory://``, which is this process, needs no key.
    """

    def __init__(self, url: str, cache: Path, *, timing: LeaseTiming | None = None) -> None:
        self.url = public_url(url)
        key = None if url.startswith("memory://") else signing_key(self.url)
        self._files = RemoteFiles(url)
        seal = None if key is None else Seal(key)
        self._notes = PublishingNotes(self._files, seal)
        self._check_layout()
        if key is not None:
            check_key(self._files, key)
        self.local = LocalStore.open(cache)
        self.ledger = Ledger(self._files, Seal(key))
        self.leases = RemoteLeases(self._files, LocalLeases(cache / "leases"), timing, seal)
        self.runs = Runs(self._files, seal)
        self._may_be_damaged = True  # another host may have found something and ended

    def publish(self, ref: ArtifactRef) -> None:
        """Uploads missing objects, the root last.

        Objects that exist already may be about to be collected, so a note first declares them published now, and gc
        reads the notes before each deletion. (In the milliseconds between the two, an object older than the grace
        period can be lost. Its record is then a miss, and the stage runs again.)
        """
        root, *children = self.local.objects_of(ref)
        self._notes.add([root, *children])
        _in_parallel(self._upload, children)
        self._upload(root)

    def fetch(self, ref: ArtifactRef) -> None:
        _in_parallel(self._download, self._absent(self.objects_of(ref)))

    def has_all(self, blobs: Sequence[BlobRef]) -> bool:
        return all(_in_parallel(self._is_remote, self._absent(blobs)))

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        for blob in self._absent([ref.root]):
            self._download(blob)
        return self.local.objects_of(ref)

    def objects(self) -> Iterator[StoredObject]:
        noted = self._notes.times()
        remote = set()
        for file in self._files.list("objects"):
            if is_digest(name := file.name.rsplit("/", 1)[1]):
                digest = Digest(name)
                remote.add(digest)
                yield StoredObject(digest, file.size, max(file.modified, noted.get(digest, 0.0)))
        for stored in self.local.objects:
            if stored.digest not in remote:
                yield stored

    def check(self, blob: BlobRef) -> bool:
        good_copy = False
        with contextlib.suppress(ObjectMissing, ObjectDamaged):
            good_copy = bool(self.local.path(blob))
        try:
            self._receive(blob, lambda path: digest_file(path) == blob.digest)
        except ObjectMissing:
            return good_copy
        except ObjectDamaged:
            return False
        return True

    def discard(self, digest: Digest, unless_since: float) -> bool:
        discarded = self.local.objects.discard(digest, unless_since)
        file = self._files.find(_object_name(digest))
        if not file:
            return discarded
        if max(file.modified, self._notes.times().get(digest, 0.0)) >= unless_since:
            return False
        self._files.delete(file.name)
        return True

    def clock(self) -> float:
        name = f"tmp/{secrets.token_hex(16)}"
        self._files.write(name, b"")
        now = self._files.find(name)
        self._files.delete(name)
        return now.modified if now else time.time()

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        old = [
            file
            for folder in ("tmp", "quarantine", "leases", _NOTES)
            for file in self._files.list(folder)
            if file.modified < since
        ]
        if not dry_run:
            for file in old:
                self._files.delete(file.name)
        return len(old) + self.local.sweep_leftovers(since, dry_run=dry_run)

    def _damaged(self) -> set[Digest]:
        """Objects that were damaged in the store itself: a damaged copy is only downloaded again.

        Every host that finds one notes it in the store before it moves it away, so that another one can settle it.
        """
        for digest in self.local.objects.damaged():
            self.local.objects.settle(digest)
        if not self._may_be_damaged:
            return set()
        self._may_be_damaged = False
        names = [name.rpartition("/")[2] for name in self._files.names(_DAMAGED)]
        digests = {Digest(name) for name in names if is_digest(name)}
        self._may_be_damaged |= bool(digests)  # until all of them are settled, for other threads, too
        return digests

    def _settle(self, damaged: Iterable[Digest]) -> None:
        for digest in damaged:
            self._files.delete(f"{_DAMAGED}/{digest}")

    def _upload(self, blob: BlobRef) -> None:
        if self._is_remote(blob):
            self.local.objects.require(blob)
        else:
            self._files.upload(self.local.path(blob), _object_name(blob.digest))

    def _absent(self, blobs: Sequence[BlobRef]) -> list[BlobRef]:
        """The objects without a good local copy."""
        return [blob for blob in blobs if not self.local.contains(blob)]

    def _is_remote(self, blob: BlobRef) -> bool:
        file = self._files.find(_object_name(blob.digest))
        return file is not None and file.size == blob.size

    def _download(self, blob: BlobRef) -> None:
        self._receive(blob, lambda path: self.local.put_scratch(path) == blob)

    def _receive(self, blob: BlobRef, accept: Callable[[Path], bool]) -> None:
        """Downloads an object for `accept` to check; quarantines the remote object if it is damaged twice."""
        name = _object_name(blob.digest)
        for _ in range(2):
            with self.local.scratch() as folder, write_errors(self.local.root):
                if not self._files.download(name, folder / "object", blob.size):
                    raise ObjectMissing(blob.digest, self.url)
                if accept(folder / "object"):
                    return
        self._files.write(f"{_DAMAGED}/{blob.digest}", b"")
        self._may_be_damaged = True
        quarantine = f"quarantine/{blob.digest}.{len(self._files.names('quarantine'))}"
        self._files.move(name, quarantine)
        _log.warning("object %s in %s is damaged; moved to %s there", blob.digest, self.url, quarantine)
        raise ObjectDamaged(blob.digest, self.url, f"{self.url}/{quarantine}")

    def _check_layout(self) -> None:
        marker = self._files.read("version")
        if marker is None:
            self._files.create("version", LAYOUT)
            marker = self._files.read("version")
        if marker != LAYOUT:
            raise StoreUnusable(
                f"the store {self.url} has another layout ({(marker or b'')[:40]!r}, this pteforge reads {LAYOUT!r}); "
                "use another prefix"
            )


class PublishingNotes:
    """Small files, each a JSON list of digests. They renew objects, as a bucket's objects cannot be touched."""

    def __init__(self, files: RemoteFiles, seal: Seal | None = None) -> None:
        """Keeps notes in `files`, wrapped by `seal` if others can write them."""
        self._files = files
        self._records = RecordFiles(files, seal)
        self._read: dict[str, list[Digest]] = {}

    def add(self, blobs: Sequence[BlobRef]) -> None:
        name = f"{_NOTES}/{secrets.token_hex(16)}"
        self._records.write(name, name, canonical_json([blob.digest for blob in blobs]))

    def times(self) -> dict[Digest, float]:
        """When each noted object was last published, in seconds since the epoch on the server's clock."""
        times: dict[Digest, float] = {}
        for file in self._files.list(_NOTES):
            if file.name not in self._read:
                self._read[file.name] = self._records.read(file.name, file.name, list[Digest]) or []
            for digest in self._read[file.name]:
                times[digest] = max(file.modified, times.get(digest, 0.0))
        return times


def _in_parallel(action: Callable[[BlobRef], _Result], blobs: Sequence[BlobRef]) -> list[_Result]:
    if len(blobs) < 2:
        return [action(blob) for blob in blobs]
    with ThreadPoolExecutor(_PARALLEL, "store") as pool:
        try:
            return list(pool.map(action, blobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _object_name(digest: Digest) -> str:
    return f"objects/{digest[:2]}/{digest}"
