"""Stores: the one in a local folder, whose methods remote ones override, opening one by path or URL, and copies."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from ..errors import ObjectDamaged, ObjectMissing, StoreError, StoreUnusable
from .digest import Digest, digest_bytes
from .files import LocalFiles, staging_file, write_errors
from .known_files import KnownFiles
from .lease import Leases, LocalLeases
from .ledger import Ledger, StageRecord
from .local_store import LocalStore, StoredObject
from .records import Seal
from .ref import ArtifactRef, BlobRef
from .runs import Runs

_log = logging.getLogger(__name__)


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


def open_store(url: str | None = None, *, cache: Path | None = None) -> Store:
    """Opens the store at a path or fsspec URL, by default ``<cache>/store``; `cache` is for local copies."""
    cache = cache or cache_folder()
    if url is None:
        return Store(cache / "store")
    if "://" not in url:
        return Store(Path(url).expanduser().absolute())
    if (parts := urlsplit(url)).scheme in {"file", "local"}:
        return Store(Path(unquote(parts.netloc + parts.path)).absolute())
    from .remote_store import RemoteStore  # noqa: PLC0415 - imports fsspec and tenacity, which a local store does without

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
