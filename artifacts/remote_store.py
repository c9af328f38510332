"""A store behind an fsspec URL, read through a local copy."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..errors import ObjectDamaged, ObjectMissing, StoreError, StoreUnusable
from .digest import Digest, digest_file, parse_digest
from .lease import LocalLeases
from .ledger import Ledger
from .local_root import LAYOUT
from .local_store import LocalStore
from .object_folder import StoredObject
from .publishing_notes import NOTES, PublishingNotes
from .redaction import public_url
from .ref import ArtifactRef, BlobRef
from .remote_files import RemoteFiles
from .remote_lease import LeaseTiming, RemoteLeases
from .runs import Runs
from .signing import Seal, signing_key
from .store import Store

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)

_PARALLEL = 8


class RemoteStore(Store):
    """Objects in a bucket, signed records, and a local copy of what was used here.

    Records of stores that others can write to are signed. Only ``memory://``, which is this process, needs no key.
    """

    def __init__(self, url: str, cache: Path, *, timing: LeaseTiming | None = None) -> None:
        """Opens the store at `url` with its local copies in the folder `cache`; raises StoreUnusable."""
        self.url = public_url(url)
        key = None if url.startswith("memory://") else signing_key(self.url)
        self._files = RemoteFiles(url)
        self._notes = PublishingNotes(self._files)
        self._check_layout()
        self.local = LocalStore.open(cache)
        self.ledger = Ledger(self._files, Seal(key))
        self.leases = RemoteLeases(self._files, LocalLeases(cache / "leases"), timing)
        self.runs = Runs(self._files)

    def publish(self, ref: ArtifactRef) -> None:
        """Uploads what is missing, the root last.

        What is there already may be about to be collected: a note says that it counts as published now. The note comes
        first, and gc reads notes before each deletion. (Between its reading and its deletion pass milliseconds in which
        an object that is older than the grace period can be lost. Its record is a miss then: the stage runs again.)
        """
        root, *children = self.local.objects_of(ref)
        self._notes.add([root, *children])
        _each(self._publish, children)
        self._publish(root)

    def fetch(self, ref: ArtifactRef) -> None:
        """Downloads what is missing here, and verifies it."""
        _each(self._download, self._absent(self.objects_of(ref)))

    def has(self, ref: ArtifactRef) -> bool:
        """Whether every object is here or there, by name and size."""
        try:
            return all(_each(self._is_there, self._absent(self.objects_of(ref))))
        except StoreUnusable:
            raise
        except StoreError:
            return False

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        """Every object of an artifact, the root first, which is fetched."""
        for blob in self._absent([ref.root]):
            self._download(blob)
        return self.local.objects_of(ref)

    def objects(self) -> Iterator[StoredObject]:
        """Lists all objects, there and here."""
        noted = self._notes.times()
        there = set()
        for file in self._files.list("objects"):
            try:
                digest = parse_digest(file.name.rsplit("/", 1)[1])
            except ValueError:
                continue
            there.add(digest)
            yield StoredObject(digest, file.size, max(file.modified, noted.get(digest, 0.0)))
        for stored in self.local.objects:
            if stored.digest not in there:
                yield stored

    def check(self, blob: BlobRef) -> bool:
        """Downloads and hashes an object, and hashes its copy here."""
        self.local.objects.distrust(blob.digest)
        here = self.local.contains(blob)
        try:
            self._receive(blob, lambda path: digest_file(path) == blob.digest)
        except ObjectMissing:
            return here
        except ObjectDamaged:
            return False
        return True

    def discard(self, digest: Digest, unless_since: float) -> bool:
        """Deletes an object, there and here, unless it was published since then; says whether it did."""
        here = self.local.objects.discard(digest, unless_since)
        file = self._files.find(_object(digest))
        if not file:
            return here
        if max(file.modified, self._notes.times().get(digest, 0.0)) >= unless_since:
            return False
        self._files.delete(file.name)
        return True

    def clock(self) -> float:
        """Now, as the server sees it."""
        name = f"tmp/{secrets.token_hex(16)}"
        self._files.write(name, b"")
        now = self._files.find(name)
        self._files.delete(name)
        return now.modified if now else time.time()

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        """Deletes unfinished files, dead leases, old notes and objects moved aside, there and here; says how many."""
        old = [
            file
            for folder in ("tmp", "quarantine", "leases", NOTES)
            for file in self._files.list(folder)
            if file.modified < since
        ]
        if not dry_run:
            for file in old:
                self._files.delete(file.name)
        return len(old) + self.local.sweep_leftovers(since, dry_run=dry_run)

    def _publish(self, blob: BlobRef) -> None:
        path = self.local.path(blob)
        file = self._files.find(_object(blob.digest))
        if not file or file.size != blob.size:
            self._files.upload(path, _object(blob.digest))

    def _absent(self, blobs: Sequence[BlobRef]) -> list[BlobRef]:
        """Those that have no good copy here."""
        return [blob for blob in blobs if not self.local.contains(blob)]

    def _is_there(self, blob: BlobRef) -> bool:
        file = self._files.find(_object(blob.digest))
        return file is not None and file.size == blob.size

    def _download(self, blob: BlobRef) -> None:
        """Brings an object here."""
        self._receive(blob, lambda path: self.local.put_file(path, move=True) == blob)

    def _receive(self, blob: BlobRef, accept: Callable[[Path], bool]) -> None:
        """Downloads an object for `accept` to check; one that is damaged twice is damaged there: it is moved aside."""
        name = _object(blob.digest)
        for _ in range(2):
            with self.local.scratch() as folder:
                if not self._files.download(name, folder / "object"):
                    raise ObjectMissing(blob.digest, self.url)
                if accept(folder / "object"):
                    return
        aside = f"quarantine/{blob.digest}.{len(self._files.names('quarantine'))}"
        self._files.move(name, aside)
        _log.warning("object %s in %s is damaged; moved to %s there", blob.digest, self.url, aside)
        raise ObjectDamaged(blob.digest, self.url, f"{self.url}/{aside}")

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


def _each(action: Callable[[BlobRef], _Answer], blobs: Sequence[BlobRef]) -> list[_Answer]:
    if len(blobs) < 2:
        return [action(blob) for blob in blobs]
    with ThreadPoolExecutor(_PARALLEL, "store") as pool:
        try:
            return list(pool.map(action, blobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _object(digest: Digest) -> str:
    return f"objects/{digest[:2]}/{digest}"
