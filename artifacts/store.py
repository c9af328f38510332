"""Stores: the one in a local folder, the one behind an fsspec URL, opening one, and copies from one to another."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import unquote, urlsplit

from ..errors import ObjectDamaged, ObjectMissing, StoreError, StoreUnusable
from .digest import Digest, canonical_json, digest_bytes, digest_file, is_digest
from .files import LocalFiles, NamedFiles, staging_file, write_errors
from .known_files import KnownFiles
from .lease import Leases, LeaseTiming, LocalLeases, RemoteLeases
from .ledger import Ledger, StageRecord
from .local_store import LAYOUT, LocalStore, StoredObject
from .records import KEY_VARIABLE, NEW_KEY_VARIABLE, RecordFiles, Seal, SealError, key_id, signing_key
from .ref import ArtifactRef, BlobRef
from .runs import Runs

if TYPE_CHECKING:
    from .remote_files import RemoteFiles

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

_PARALLEL = 8

_NOTES = "publishing"  # folder of `PublishingNotes`; gc deletes old ones

_KEY_FILE = "key"
_KEY_LINE = re.compile(rb"pteforge key 1 ([0-9a-f]{32})(?: ([0-9a-f]{32}))?\n")
"""Content of `_KEY_FILE`: the id of the key and, while the key is changed, that of the new one."""

_KEY_LIMIT = 1024  # bytes

_DAMAGED = "damaged"
"""Folder of empty files named by the objects that were found damaged and are not settled yet."""


class Store:
    """Artifacts by ref, and the records about them, in a folder of this machine; can be used from several threads.

    Stages read and write `local`. The caller fetches inputs, publishes outputs, and commits only what was published.
    """

    url: str  # the location, without credentials
    local: LocalStore  # the objects on this machine's disk
    ledger: Ledger
    leases: Leases
    runs: Runs

    def __init__(self, root: Path) -> None:
        """Opens the store in a folder. It is trusted, because it belongs to the user."""
        self.local = LocalStore.open(root)
        self.url = str(root)
        files = LocalFiles(root)
        self.ledger = Ledger(files, Seal(None))
        self.leases = LocalLeases(root / "leases")
        self.runs = Runs(files)

    @cached_property
    def inputs(self) -> KnownFiles:
        """What this machine knows of the files that users' code reads."""
        return KnownFiles(self.local.root, "inputs")

    def publish(self, ref: ArtifactRef) -> None:
        """Makes every object of a local artifact durable; raises ObjectMissing, ObjectDamaged or StoreUnusable."""
        self.fetch(ref)

    def fetch(self, ref: ArtifactRef) -> None:
        """Makes all objects of an artifact available in `local`, verified; quarantines damaged ones and raises."""
        for blob in self.local.objects_of(ref):
            self.local.require(blob)  # not verified again where it is marked: whoever reads an object digests it

    def has(self, ref: ArtifactRef) -> bool:
        """Whether every object of an artifact exists; reads only the manifest."""
        try:
            return self.has_all(self.objects_of(ref))
        except StoreUnusable:
            raise
        except StoreError:
            return False

    def has_all(self, blobs: Sequence[BlobRef]) -> bool:
        return all(map(self.local.contains, blobs))

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        """Every object of an artifact, the root first; raises ObjectMissing or ObjectDamaged for its manifest."""
        return self.local.objects_of(ref)

    def known_objects(self, ref: ArtifactRef) -> set[Digest]:
        """Digests of the objects of an artifact; of one whose manifest is lost, the root's alone."""
        try:
            return {blob.digest for blob in self.objects_of(ref)}
        except StoreUnusable:
            raise
        except StoreError:
            return {ref.root.digest}

    def objects(self) -> Iterator[StoredObject]:
        """All objects, in no order."""
        return iter(self.local)

    def check(self, blob: BlobRef) -> bool:
        """Reads an object again and returns whether it is good; a damaged one goes into quarantine."""
        return self.local.check(blob)

    @property
    def writable(self) -> bool:
        return os.access(self.local.root, os.W_OK)

    def forget_damaged(self) -> set[Digest]:
        """Drops the records of all stages made from objects found damaged since the last call; returns their keys.

        Their outputs may come from the wrong bytes, so these stages run again: those that read such an object, and
        those that read what only such stages have made. If nothing was damaged, this only lists one folder.
        """
        dropped: set[Digest] = set()
        settled: set[Digest] = set()
        while damaged := self._damaged() - settled:  # looking at the artifacts may find more
            keys = self.made_from(damaged)
            self.ledger.forget(*keys)
            if keys:
                _log.warning("%d stages were made from damaged objects, and will run again", len(keys))
            self._settle(damaged)
            settled |= damaged
            dropped |= keys
        return dropped

    def made_from(self, damaged: AbstractSet[Digest]) -> set[Digest]:
        """Keys of the records that rest on damaged objects.

        A stage made the outputs that it did not read. An object that another, good stage has made, too, is good.
        """
        records = list(self.ledger)
        made = {
            record.key: set().union(*map(self.known_objects, record.outputs.values())).difference(record.reads)
            for record in records
        }
        keys: set[Digest] = set()
        while True:
            good = set().union(*(digests for key, digests in made.items() if key not in keys))
            bad = (set().union(*(made[key] for key in keys)) - good) | damaged
            new = {record.key for record in records if not bad.isdisjoint(record.reads)} - keys
            if not new:
                return keys
            keys |= new

    def _damaged(self) -> set[Digest]:
        """Objects of the store that were found damaged, and still have to be settled."""
        return set(self.local.damaged())

    def _settle(self, damaged: Iterable[Digest]) -> None:
        for digest in damaged:
            self.local.settle(digest)

    def discard(self, digest: Digest, unless_since: float) -> bool:
        """Deletes an object unless it was published since then, in seconds since the epoch; returns whether it did."""
        return self.local.discard(digest, unless_since)

    def clock(self) -> float:
        """The store's time in seconds since the epoch: the modification time of a file that is written now."""
        with write_errors(self.local.root), staging_file(self.local.root / "tmp") as (_, file):
            return os.fstat(file.fileno()).st_ctime

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        """Deletes leftovers of dead processes, and older quarantined or unfinished ones; returns how many."""
        return self.local.sweep_leftovers(since, dry_run=dry_run)

    def close(self) -> None:
        """Closes connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RemoteStore(Store):
    """Objects in a bucket, signed records, and a local copy of the objects that were used here.

    Records of stores that others can write to are signed. Only ``memory://``, which is this process, needs no key.
    """

    def __init__(self, url: str, cache: Path, *, timing: LeaseTiming | None = None) -> None:
        from .remote_files import RemoteFiles, public_url  # noqa: PLC0415 - they import fsspec

        self.url = public_url(url)
        key = None if url.startswith("memory://") else signing_key(self.url)
        self._files = RemoteFiles(url)
        seal = None if key is None else Seal(key)
        self._notes = PublishingNotes(self._files, seal)
        self._check_layout()
        if key is not None:
            _check_key(self._files, key)
        self.local = LocalStore.open(cache)
        self.ledger = Ledger(self._files, Seal(key))
        self.leases = RemoteLeases(self._files, LocalLeases(cache / "leases"), timing, seal)
        self.runs = Runs(self._files, seal)
        self._may_be_damaged = True  # another host may have found something and ended

    def publish(self, ref: ArtifactRef) -> None:
        """Uploads missing objects, the root last.

        Existing objects may be about to be collected, so a note first declares them published now, and gc reads the
        notes before each deletion. (In the milliseconds between the two, an object older than the grace period can be
        lost. Its record is then a miss, and the stage runs again.)
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
        for stored in self.local:
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

    @property
    def writable(self) -> bool:
        """Whether this user may write to the bucket is not known before it is tried."""
        return True

    def discard(self, digest: Digest, unless_since: float) -> bool:
        discarded = self.local.discard(digest, unless_since)
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
        for digest in self.local.damaged():
            self.local.settle(digest)
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
            self.local.require(blob)
        else:
            with self.local.file(blob) as file:
                self._files.upload(file, _object_name(blob.digest))

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
        """Time of each noted object's last publication, in seconds since the epoch on the server's clock."""
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


def open_store(url: str | None = None, *, cache: Path | None = None) -> Store:
    """Opens the store at a path or fsspec URL, by default ``<cache>/store``; `cache` is for local copies."""
    cache = cache or cache_folder()
    if url is None:
        return Store(cache / "store")
    if "://" not in url:
        return Store(Path(url).expanduser().absolute())
    if (parts := urlsplit(url)).scheme in {"file", "local"}:
        return Store(Path(unquote(parts.netloc + parts.path)).absolute())
    return RemoteStore(url, cache / "remotes" / digest_bytes(url.encode())[:16])


def cache_folder() -> Path:
    """``$PTEFORGE_CACHE``, ``$XDG_CACHE_HOME/pteforge`` or ``~/.cache/pteforge``; it may not exist yet."""
    if folder := os.environ.get("PTEFORGE_CACHE"):
        return Path(folder).expanduser().absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).absolute() / "pteforge"
    return Path.home() / ".cache" / "pteforge"


@dataclass(frozen=True, slots=True)
class Transferred:
    """Numbers of records that a transfer found."""

    stages: int  # copied, with everything that they need
    present: int  # already on the other side
    lost: int  # not copied because outputs are gone or damaged; those stages will run again


def transfer(source: Store, target: Store, progress: Callable[[int, int], None] | None = None) -> Transferred:
    """Copies finished stages that `target` lacks: their objects first, then the record. What is there stays.

    Both sides can be in use. Also copied are inputs that searches have found and, where the target has none, watch
    lists, on which the keys of the next run depend, and the last keys of slots.
    """
    records = list(source.ledger)
    copied = present = lost = 0
    for done, record in enumerate(records, 1):
        there = target.ledger.lookup(record.key)
        if there and all(map(target.has, there.outputs.values())):
            present += 1
        elif _copy_record(source, target, record):
            copied += 1
        else:
            lost += 1
        if progress:
            progress(done, len(records))
    _copy_lists(source.ledger, target.ledger)
    for found in source.ledger.all_found():
        for case in found.found:
            if case not in target.ledger.found_inputs(found.name) and source.has(case.inputs):
                _copy(source, target, case.inputs)
                target.ledger.keep_found(found.name, case)
    return Transferred(copied, present, lost)


def _copy_record(source: Store, target: Store, record: StageRecord) -> bool:
    """Returns whether everything that the record needs could be copied."""
    try:
        log = [ArtifactRef("log", record.log, record.log.digest)] if record.log else []
        for ref in (*record.outputs.values(), *log):
            _copy(source, target, ref)
    except (ObjectMissing, ObjectDamaged):
        return False
    target.ledger.commit(record)
    return True


def _copy_lists(source: Ledger, target: Ledger) -> None:
    for record in source.watch_lists():
        if not target.watched(record.source):  # a longer list would change the keys of what is there
            target.watch(record.source, record.modules)
    for slot in source.slots():
        if target.last(slot.slot) is None:
            target.remember(slot.slot, slot.key, slot.fields)


def _copy(source: Store, target: Store, ref: ArtifactRef) -> None:
    source.fetch(ref)
    for blob in source.objects_of(ref):
        if not target.local.refresh(blob):
            with target.local.scratch() as folder, source.local.file(blob) as file:
                shutil.copyfile(file, folder / "object")
                target.local.put_scratch(folder / "object")
    target.publish(ref)


def _check_key(files: RemoteFiles, key: str) -> None:
    """Raises StoreUnusable, with what to do, unless a store is signed with this key. A new store gets it."""
    own, known = key_id(key), _key_ids(files)
    if known is None:
        with contextlib.suppress(StoreUnusable):  # it may be read-only
            if not files.create(_KEY_FILE, _key_line(own)) and _key_ids(files) is None:
                files.write(_KEY_FILE, _key_line(own))  # what was there is no id
        known = _key_ids(files) or (own,)
    if known != (own,):
        other = f"the key {known[0]}" if len(known) == 1 else "a key that is being changed"
        raise StoreUnusable(
            f"the store {files.url} is signed with {other}, and {KEY_VARIABLE} is the key {own}. Set it to the store's "
            "key, shared by all users of this store. `pteforge store rekey` changes the key of a store, and finishes a "
            "change that was interrupted. If the key is lost, use another prefix: everything can be computed again"
        )


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The result of `rekey`."""

    records: int  # signed with the new key now
    dropped: int  # records that the old key had not signed, or that can be made again from others


def rekey(files: RemoteFiles, old: str, new: str) -> Rekeyed:
    """Signs a store's records with another key. If it is interrupted, call it again: until then, no key fits.

    Raises StoreUnusable if the store is not signed with the old key, or is being given yet another one.
    """
    if files.read("version", _KEY_LIMIT) is None:
        raise StoreUnusable(f"there is no store at {files.url}")
    ids, known = (key_id(old), key_id(new)), _key_ids(files)
    if ids[0] == ids[1]:
        raise StoreUnusable(f"{NEW_KEY_VARIABLE} is the key that the store {files.url} has; set it to another one")
    if known not in (ids, (ids[1],)):
        _check_key(files, old)
    files.write(_KEY_FILE, _key_line(*ids))
    before, after = Seal(old), Seal(new)
    purposes = {**Ledger(files, before).purposes(), **Runs(files, before).purposes()}

    def sign_again(name: str) -> bool:
        content = files.read(name) or b""
        for seal in (after, before):
            with contextlib.suppress(SealError):
                opened = seal.open(purposes[name], content)
                if seal is before:
                    files.write(name, after.close(purposes[name], opened))
                return True
        files.delete(name)
        return False

    others = set(itertools.chain(files.names("ledger"), files.names("runs"))) - purposes.keys()
    with ThreadPoolExecutor(_PARALLEL, "rekey") as pool:
        signed = list(pool.map(sign_again, purposes))
        list(pool.map(files.delete, others))
    files.write(_KEY_FILE, _key_line(ids[1]))
    return Rekeyed(sum(signed), len(others) + signed.count(False))


def _key_ids(files: NamedFiles) -> tuple[str, ...] | None:
    match = _KEY_LINE.fullmatch(files.read(_KEY_FILE, _KEY_LIMIT) or b"")
    return tuple(part.decode() for part in match.groups() if part) if match else None


def _key_line(*ids: str) -> bytes:
    return f"pteforge key 1 {' '.join(ids)}\n".encode()
