"""Upkeep of a store: drop what no record needs, check every object, count."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..errors import StoreError, StoreUnusable
from .digest import Digest
from .object_folder import StoredObject
from .records import StageRecord
from .ref import ArtifactRef, BlobRef
from .store import Store

Progress = Callable[[int, int], None]
"""Called with the number of objects done and of all objects."""

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection removed, or would remove.

    Attributes:
        dry_run: whether nothing was really removed.
        records_dropped: ledger records that were too old.
        objects_removed: objects that no record needs.
        bytes_removed: their size.
        objects_kept: all other objects.
        bytes_kept: their size.
        leftovers_removed: unfinished files of dead processes, and damaged objects that had been moved aside.
    """

    dry_run: bool
    records_dropped: int
    objects_removed: int
    bytes_removed: int
    objects_kept: int
    bytes_kept: int
    leftovers_removed: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a deep check found.

    Attributes:
        objects: how many were read.
        size: their bytes.
        damaged: objects whose bytes are wrong; they were moved aside.
        incomplete: keys of ledger records with outputs that are missing or damaged; those stages will run again.
    """

    objects: int
    size: int
    damaged: tuple[Digest, ...]
    incomplete: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a store is.

    Attributes:
        records: finished stages.
        objects: stored objects.
        size: their bytes.
        artifacts: how many different artifacts of each kind the records name.
    """

    records: int
    objects: int
    size: int
    artifacts: dict[str, int]


def collect(
    store: Store,
    *,
    keep_newer_than: timedelta = _DAY,
    older_than: timedelta | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> GcReport:
    """Deletes objects that no ledger record leads to.

    What a running job has published is safe: objects are kept for the grace period, and those that were published since
    the oldest lease that is held now are kept without regard to it.

    Args:
        store: what to clean up.
        keep_newer_than: grace period for objects that no record names (yet).
        older_than: drop records that were finished longer ago, before looking at objects.
        dry_run: only count.
        progress: told about each object.
    """
    now = store.clock()
    since = now - keep_newer_than.total_seconds()
    if (held := store.leases.oldest()) is not None:
        since = min(since, held)
    dropped = 0
    needed: set[Digest] = set()
    for record in store.ledger:
        if older_than is not None and _age(record, now) > older_than.total_seconds():
            dropped += 1
            if not dry_run:
                store.ledger.forget(record.key)
        else:
            needed.update(_objects(store, record))
    removed: list[StoredObject] = []
    kept: list[StoredObject] = []
    objects = list(store.objects())
    for done, stored in enumerate(objects, 1):
        unneeded = stored.digest not in needed and stored.changed < since
        gone = unneeded and (dry_run or store.discard(stored.digest, since))
        (removed if gone else kept).append(stored)
        if progress:
            progress(done, len(objects))
    leftovers = store.sweep_leftovers(since, dry_run=dry_run)
    return GcReport(dry_run, dropped, len(removed), _size(removed), len(kept), _size(kept), leftovers)


def verify_store(store: Store, *, progress: Progress | None = None) -> VerifyReport:
    """Reads every object again; damaged ones are moved aside, and the stages that made them will run again."""
    objects = list(store.objects())
    damaged = []
    for done, stored in enumerate(objects, 1):
        if not store.check(BlobRef(stored.digest, stored.size)):
            damaged.append(stored.digest)
        if progress:
            progress(done, len(objects))
    incomplete = tuple(
        record.key for record in store.ledger if not all(store.has(ref) for ref in record.outputs.values())
    )
    return VerifyReport(len(objects), _size(objects), tuple(damaged), incomplete)


def list_objects(store: Store) -> tuple[StoredObject, ...]:
    """All objects, by digest."""
    return tuple(sorted(store.objects(), key=lambda stored: stored.digest))


def usage(store: Store) -> Usage:
    """Counts records, objects, bytes and artifacts."""
    records = list(store.ledger)
    artifacts = {ref.root.digest: ref.kind for record in records for ref in record.outputs.values()}
    objects = list(store.objects())
    return Usage(len(records), len(objects), _size(objects), dict(sorted(Counter(artifacts.values()).items())))


def _objects(store: Store, record: StageRecord) -> set[Digest]:
    needed = {ref.root.digest for ref in record.outputs.values()}
    if record.log:
        needed.add(record.log.digest)
    for ref in record.outputs.values():
        needed.update(_children(store, ref))
    return needed


def _children(store: Store, ref: ArtifactRef) -> set[Digest]:
    """Objects that a manifest names; none where it is lost, since the record then is a miss."""
    try:
        return {blob.digest for blob in store.objects_of(ref)}
    except StoreUnusable:
        raise
    except StoreError:
        return set()


def _age(record: StageRecord, now: float) -> float:
    with contextlib.suppress(ValueError):
        return now - datetime.fromisoformat(record.finished).replace(tzinfo=UTC).timestamp()
    return float("inf")


def _size(objects: Iterable[StoredObject]) -> int:
    return sum(stored.size for stored in objects)
