"""What to keep of a store: the stages that recent runs used, and as many others as fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from .digest import Digest
from .ledger import StageRecord
from .runs import RunRecord, Runs

_DAY = 24 * 3600.0
"""Seconds after which a run that never ended is taken for dead."""


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


def least_recently_used(
    records: Iterable[StageRecord], runs: Runs, *, keep_last: int, since: float, now: float
) -> list[Digest]:
    """Keys of the stages that may be forgotten, the one that was not used for the longest time first.

    Never those that were used at or after `since`, by the newest `keep_last` runs of any zoo, or by any run of a zoo
    that is being lowered now: what such a run has found so far is known at its end only.
    """
    used = {record.key: seconds(record.finished) for record in records}
    kept: set[Digest] = set()
    seen: Counter[str] = Counter()
    known = list(runs)  # the newest first
    under_way = {run.zoo for run in known if run.status == "running" and now - seconds(run.started) < _DAY}
    for run in known:
        keys = keys_of(run)
        if keys and (seen[run.zoo] < keep_last or run.zoo in under_way):
            kept |= keys
        seen[run.zoo] += bool(keys)
        ended = seconds(run.started) + run.seconds
        used |= {key: max(used[key], ended) for key in keys & used.keys()}
    return sorted((key for key in used if key not in kept and used[key] < since), key=lambda key: (used[key], key))


def until_it_fits(
    candidates: Sequence[Digest], needs: Mapping[Digest, set[Digest]], sizes: Mapping[Digest, int], most: int
) -> Iterator[Digest]:
    """The first candidates, as many as have to go for the rest to need at most so many bytes.

    Args:
        candidates: stage keys.
        needs: stage key to the objects that it needs.
        sizes: bytes of each object that would go with the last stage that needs it. Others stay, and count nothing.
        most: bytes.
    """
    users = Counter(digest for digests in needs.values() for digest in digests)
    total = sum(sizes.get(digest, 0) for digest in users)
    for key in candidates:
        if total <= most:
            return
        yield key
        users.subtract(needs[key])
        total -= sum(sizes.get(digest, 0) for digest in needs[key] if not users[digest])
