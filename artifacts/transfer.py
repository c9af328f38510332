"""Copies between two stores: what one has and the other lacks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ObjectDamaged, ObjectMissing
from .ledger import Ledger, StageRecord
from .ref import ArtifactRef
from .store import Store


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a transfer did.

    Attributes:
        stages: records that were copied, with everything that they need.
        present: records that the other side had already.
        lost: records with outputs that are gone or damaged; they were not copied, and those stages will run again.
    """

    stages: int
    present: int
    lost: int


def transfer(source: Store, target: Store, progress: Callable[[int, int], None] | None = None) -> Transferred:
    """Copies finished stages that `target` lacks: their objects first, then the record. What is there stays.

    Both sides can be in use. Watch lists and the last keys of slots are copied too where the target has none, since the
    keys of the next run depend on the former.
    """
    records = list(source.ledger)
    copied = present = lost = 0
    for done, record in enumerate(records, 1):
        known = target.ledger.lookup(record.key)
        if known and all(map(target.has, known.outputs.values())):
            present += 1
        elif _copy_record(source, target, record):
            copied += 1
        else:
            lost += 1
        if progress:
            progress(done, len(records))
    _copy_lists(source.ledger, target.ledger)
    return Transferred(copied, present, lost)


def _copy_record(source: Store, target: Store, record: StageRecord) -> bool:
    """Whether everything that a record needs was there to copy."""
    try:
        log = [ArtifactRef("log", record.log, record.log.digest)] if record.log else []
        for ref in (*record.outputs.values(), *log):
            _copy(source, target, ref)
    except (ObjectMissing, ObjectDamaged):
        return False
    target.ledger.commit(record)
    return True


def _copy_lists(source: Ledger, target: Ledger) -> None:
    for listed in source.watch_lists():
        if not target.watched(listed.source):  # a longer list would change the keys of what is there
            target.watch(listed.source, listed.modules)
    for slot in source.slots():
        if target.last(slot.slot) is None:
            target.remember(slot.slot, slot.key, slot.fields)


def _copy(source: Store, target: Store, ref: ArtifactRef) -> None:
    source.fetch(ref)
    for blob in source.objects_of(ref):
        if not target.local.objects.refresh(blob):
            with target.local.scratch() as folder:
                shutil.copyfile(source.local.path(blob), folder / "object")
                target.local.put_scratch(folder / "object")
    target.publish(ref)
