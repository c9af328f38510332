"""What each payload of a fat file takes, alone and beside the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...artifacts.nfat.contents import Manifest, Source

_Place = tuple[Source, int]


@dataclass(frozen=True, slots=True)
class PayloadSizes:
    """Bytes of a payload.

    Attributes:
        alone: of the plain file.
        adds: stored for it only: the fat file is so much smaller without it.
        shared: stored for it and for others.
    """

    alone: int
    adds: int
    shared: int


def payload_sizes(manifest: Manifest) -> tuple[PayloadSizes, ...]:
    """Sizes of all payloads, in their order. Zeros take no space; a stretch that a payload uses twice counts once."""
    count = len(manifest.payloads)
    adds, shared = [0] * count, [0] * count
    for size, users in _stretches(manifest):
        for user in users:
            if len(users) == 1:
                adds[user] += size
            else:
                shared[user] += size
    return tuple(
        PayloadSizes(payload.size, adds[index], shared[index]) for index, payload in enumerate(manifest.payloads)
    )


def _stretches(manifest: Manifest) -> Iterator[tuple[int, set[int]]]:
    """Size and users of each stretch of stored bytes that has the same users throughout."""
    ends: dict[_Place, list[tuple[int, int, int]]] = {}
    for index, payload in enumerate(manifest.payloads):
        for extent in payload.extents:
            if extent.source is not Source.ZEROS:
                place = ends.setdefault((extent.source, extent.blob), [])
                place += [(extent.offset, 1, index), (extent.offset + extent.size, -1, index)]
    for place in ends.values():
        yield from _sweep(sorted(place), len(manifest.payloads))


def _sweep(ends: Sequence[tuple[int, int, int]], count: int) -> Iterator[tuple[int, set[int]]]:
    open_extents = [0] * count
    before = 0
    for position, change, index in ends:
        users = {user for user, number in enumerate(open_extents) if number}
        if users and position > before:
            yield position - before, users
        open_extents[index] += change
        before = position
