"""Maintenance of a store: what to keep, garbage collection, a deep check, and statistics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from .digest import Digest
from .ledger import StageRecord
from .local_store import StoredObject
from .ref import ArtifactRef, BlobRef
from .runs import RunRecord, Runs, run_lease
from .store import Store

Progress = Callable[[int, int], None]
"""Called with the number of processed objects and of all objects."""


def seconds(time: str) -> float:
    """Seconds since the epoch of ISO 8601 text, UTC where it has no zone; 0 for any other text."""
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        return 0.0
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def keys_of(run: RunRecord) -> set[Digest]:
    """The stages that a run made or found."""
    return {stage.key for stages in run.models.values() for stage in stages if stage.key}


def lives(run: RunRecord, held: Container[str]) -> bool:
    """Whether a run goes on: it holds its lease. A killed run stays ``running`` in its record."""
    return run.status == "running" and run_lease(run.id) in held


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Which stages are not forgotten."""

    since: float  # everything used from then on is kept; seconds since the epoch
    why: str  # the reason for that
    keep_last: int  # runs of each zoo
    held: Container[str]  # current leases


def least_recently_used(
    records: Iterable[StageRecord], runs: Runs, bounds: _Bounds
) -> tuple[list[Digest], dict[Digest, str]]:
    """Keys of stages that may be forgotten, least recently used first, and the reasons why others stay.

    Stages stay that were used at or after `since`, by the newest `keep_last` whole runs of a zoo (see `_whole_runs`) or
    later ones, or by any run of a zoo that is being lowered now, which may be about to use them.
    """
    used = {record.key: seconds(record.finished) for record in records}
    kept: dict[Digest, str] = {}
    seen: Counter[str] = Counter()
    known = list(runs)  # the newest first
    whole = _whole_runs(known)
    under_way = {run.zoo: run for run in known if lives(run, bounds.held)}
    for run in known:
        keys = keys_of(run)
        if keys and seen[run.zoo] < bounds.keep_last:
            newest = "run" if bounds.keep_last == 1 else f"{bounds.keep_last} runs"
            kept |= dict.fromkeys(keys - kept.keys(), f"used by the newest {newest} of {run.zoo}")
        elif run.zoo in under_way:
            reason = f"used by earlier runs of {run.zoo}, which run {under_way[run.zoo].id} is lowering now"
            kept |= dict.fromkeys(keys - kept.keys(), reason)
        if run.id in whole:  # attempts of a run are one
            whole.remove(run.id)
            seen[run.zoo] += 1
        ended = seconds(run.started) + run.seconds
        used |= {key: max(used[key], ended) for key in keys & used.keys()}
    kept |= {key: f"used {bounds.why}" for key, last in used.items() if key not in kept and last >= bounds.since}
    free = sorted((key for key in used if key not in kept), key=lambda key: (used[key], key))
    return free, {key: reason for key, reason in kept.items() if key in used}


def _whole_runs(known: Sequence[RunRecord]) -> set[str]:
    """Ids of the runs (newest first) that made everything that runs of their zoo could make until then.

    Keeping only what other runs used could forget the last stages of some files. Those are runs that were killed, are
    part of a run that died, were asked for a selection, or failed to make what an earlier run had made.
    """
    made: dict[str, set[tuple[str, str]]] = defaultdict(set)
    whole: dict[str, bool] = {}  # a later attempt of a run takes the place of an earlier one
    for run in reversed(known):
        missing = made[run.zoo] & run.files_that(failed=True)
        if run.selective:
            missing = made[run.zoo] - run.files_that(failed=False)
        whole[run.id] = bool(run.ended and not run.part_of and keys_of(run) and not missing)
        made[run.zoo] |= run.files_that(failed=False)
    return {run for run, is_whole in whole.items() if is_whole}


def until_it_fits(
    candidates: Sequence[Digest], needs: Mapping[Digest, set[Digest]], sizes: Mapping[Digest, int], most: int
) -> Iterator[Digest]:
    """Yields candidates until the rest needs at most `most` bytes; `sizes` has the objects that would go."""
    users = Counter(digest for digests in needs.values() for digest in digests)
    total = sum(sizes.get(digest, 0) for digest in users)
    for key in candidates:
        if total <= most:
            return
        yield key
        users.subtract(needs[key])
        total -= sum(sizes.get(digest, 0) for digest in needs[key] if not users[digest])


@dataclass(frozen=True, slots=True)
class GcReport:
    """The result of a collection or, with `dry_run`, what it would have been."""

    dry_run: bool
    records_dropped: int
    objects_removed: int
    bytes_removed: int
    objects_kept: int
    bytes_kept: int
    leftovers_removed: int  # files of dead processes, quarantined objects, and what interrupted stages left
    kept: Mapping[str, Kept] = field(default_factory=dict)  # by reason; an object counts for one only
    reasons: Mapping[Digest, str] = field(default_factory=dict)  # of each object that is kept


@dataclass(frozen=True, slots=True)
class Kept:
    """Objects that are kept for one reason, and their bytes."""

    objects: int
    size: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a deep check."""

    objects: int
    size: int
    damaged: tuple[Digest, ...]  # objects with wrong bytes, which are in quarantine now
    incomplete: tuple[Digest, ...]  # stages that will run again: outputs are missing, damaged, or made from damage
    read_only: bool = False  # the store cannot be written, so everything stays as it is


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of stage records and objects, total bytes, and what artifacts and models take."""

    records: int
    objects: int
    size: int
    artifacts: dict[str, int]  # number of different artifacts by kind
    kinds: dict[str, Share]  # artifacts of each kind
    models: dict[str, Share]  # stages of each model that the recorded runs used


@dataclass(frozen=True, slots=True)
class Share:
    """What some stages take. Objects that several shares need count in each."""

    stages: int
    size: int  # bytes of the objects that they need
    oldest: str  # when the first of them finished, ISO 8601
    newest: str  # when the last of them finished


def collect(
    store: Store,
    *,
    keep_newer_than: timedelta = timedelta(days=1),
    older_than: timedelta | None = None,
    keep_last: int | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> GcReport:
    """Deletes objects that no ledger record refers to, after dropping some records.

    `older_than` drops older records. `keep_last` drops what the newest so many runs of each zoo did not use; with
    `max_bytes`, least recently used first, until the rest fits. These two drop nothing that was used within the grace
    period `keep_newer_than`, or by a zoo that is being lowered (by a run that holds its lease: killed runs do not).
    Objects published within the grace period, or since the oldest current lease, are kept: running jobs need them.
    """
    now = store.clock()
    held = store.leases.held(now)
    since, why = now - keep_newer_than.total_seconds(), "within the grace period (--keep-newer-than)"
    if held and min(held.values()) < since:
        since, why = min(held.values()), "since the oldest stage or run that is going on began"
    records = list(store.ledger)
    needs = {record.key: _objects(store, record) for record in records}
    objects = list(store.objects())
    drop: set[Digest] = set()
    stays: dict[Digest, str] = {}
    if older_than is not None:
        drop = {record.key for record in records if now - seconds(record.finished) > older_than.total_seconds()}
    if keep_last is not None or max_bytes is not None:
        left = [record for record in records if record.key not in drop]
        unused, stays = least_recently_used(left, store.runs, _Bounds(since, why, keep_last or 0, held))
        if max_bytes is not None:
            sizes = {stored.digest: stored.size for stored in objects if stored.changed < since}
            most = max_bytes - sum(stored.size for stored in objects if stored.digest not in sizes)
            free, unused = unused, list(until_it_fits(unused, {r.key: needs[r.key] for r in left}, sizes, most))
            stays |= dict.fromkeys(free, "in no such run, and fits into --max-bytes")
        drop |= set(unused)
    if not dry_run:
        store.ledger.forget(*drop)
    needed = _needed({key: digests for key, digests in needs.items() if key not in drop}, stays)
    for ref in {case.inputs for record in store.ledger.all_found() for case in record.found}:
        reason = "found by searches, which verification repeats"
        needed |= dict.fromkeys(store.known_objects(ref) - needed.keys(), reason)
    removed: list[StoredObject] = []
    kept: dict[str, list[StoredObject]] = defaultdict(list)  # by reason
    for stored in objects:
        reason = needed.get(stored.digest) or ("" if stored.changed < since else f"needed by no stage, written {why}")
        if not reason and not (dry_run or store.discard(stored.digest, since)):
            reason = "needed by no stage, and written while this ran"
        (kept[reason] if reason else removed).append(stored)
    leftovers = store.sweep_leftovers(since, dry_run=dry_run)
    stayed = [stored for group in kept.values() for stored in group]
    return GcReport(
        dry_run,
        len(drop),
        len(removed),
        _size(removed),
        len(stayed),
        _size(stayed),
        leftovers,
        {reason: Kept(len(group), _size(group)) for reason, group in sorted(kept.items())},
        {stored.digest: reason for reason, group in kept.items() for stored in group},
    )


def _needed(needs: Mapping[Digest, set[Digest]], stays: Mapping[Digest, str]) -> dict[Digest, str]:
    """Why each object is needed, by the objects that stages need and the reasons why some stages stay."""
    reasons: dict[Digest, str] = {}
    for key, digests in needs.items():
        reason = stays.get(key, "needed by finished stages that no option forgets")
        reasons |= dict.fromkeys(digests - reasons.keys(), reason)
    return reasons


def verify_store(store: Store, *, progress: Progress | None = None) -> VerifyReport:
    """Reads all objects and records of a store, and quarantines damaged objects unless the store is read-only."""
    objects = list(store.objects())
    damaged = []
    for done, stored in enumerate(objects, 1):
        if not store.check(BlobRef(stored.digest, stored.size)):
            damaged.append(stored.digest)
        if progress:
            progress(done, len(objects))
    incomplete = [record.key for record in store.ledger if not all(map(store.has, record.outputs.values()))]
    if store.writable and incomplete:
        store.ledger.forget()
    resting = store.forget_damaged() if store.writable else store.made_from({*damaged})
    incomplete += sorted(resting - {*incomplete})
    return VerifyReport(len(objects), _size(objects), tuple(damaged), tuple(incomplete), not store.writable)


def usage(store: Store) -> Usage:
    records = list(store.ledger)
    artifacts = {ref.root.digest: ref.kind for record in records for ref in record.outputs.values()}
    objects = list(store.objects())
    by_model: dict[str, set[Digest]] = defaultdict(set)
    for run in store.runs:
        for model, stages in run.models.items():
            by_model[model].update(stage.key for stage in stages if stage.key)
    sizes = {stored.digest: stored.size for stored in objects}
    known = {record.key: record for record in records}

    def share(parts: Iterable[tuple[StageRecord, Iterable[ArtifactRef]]]) -> Share:
        chosen = list(parts)
        digests = {digest for record, refs in chosen for ref in refs for digest in store.known_objects(ref)}
        finished = sorted(record.finished for record, _ in chosen)
        return Share(len(chosen), sum(sizes.get(digest, 0) for digest in digests), finished[0], finished[-1])

    counts = dict(sorted(Counter(artifacts.values()).items()))
    of_kind = {
        kind: [(r, refs) for r in records if (refs := [ref for ref in r.outputs.values() if ref.kind == kind])]
        for kind in counts
    }
    of_model = {
        model: [(known[key], known[key].outputs.values()) for key in keys & known.keys()]
        for model, keys in sorted(by_model.items())
    }
    kinds = {kind: share(parts) for kind, parts in of_kind.items()}
    models = {model: share(parts) for model, parts in of_model.items() if parts}
    return Usage(len(records), len(objects), _size(objects), counts, kinds, models)


def _objects(store: Store, record: StageRecord) -> set[Digest]:
    needed = {record.log.digest} if record.log else set()
    return needed.union(*(store.known_objects(ref) for ref in record.outputs.values()))


def _size(objects: Iterable[StoredObject]) -> int:
    return sum(stored.size for stored in objects)
