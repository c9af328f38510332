"""What payloads have in common: equal bytes are stored once, as part of a run, and everything equal points there."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..pte.cuts import Range
from .contents import BYTE_ALIGNMENT
from .limits import MAX_ZEROS
from .stretches import Stretch, is_zero, shareable

WORTH = 64
"""A stretch is taken apart where that saves one part in so many of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes that are stored: those of a payload in a range, which is a stretch or lies within one."""

    payload: int
    range: Range
    stretch: Stretch


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a payload and where its bytes are.

    Attributes:
        payload: index of the payload.
        range: where it is in the payload.
        run: what holds its bytes; None for zeros.
        position: where they start in the run's payload; 0 for zeros.
    """

    payload: int
    range: Range
    run: Run | None
    position: int = 0

    @property
    def own(self) -> bool:
        """Whether these very bytes are the ones that are stored."""
        return self.run is not None and (self.run.payload, self.position) == (self.payload, self.range.offset)


Ban = tuple[int, Stretch]
"""A payload, and a stretch of another one that it must not point into."""


class Sharing:
    """Finds what is equal, from the largest stretch on, so that small ones become ranges of large ones."""

    def __init__(self, contents: Sequence[memoryview], stretches: Collection[Stretch]) -> None:
        """Takes the payloads' bytes, and all their stretches in any order."""
        self._contents = contents
        self._stretches = sorted(stretches, key=lambda each: (-each.range.size, each.payload, each.range))
        self._sizes = Counter(each.size for stretch in stretches for each in shareable(stretch))
        self._digests: dict[tuple[int, Range], bytes] = {}
        self._zeros_left: dict[int, int] = {}

    def parts(self, bans: Collection[Ban] = ()) -> list[Part]:
        """Every byte of every payload, in the order in which runs are to be stored."""
        known: defaultdict[bytes, list[Part]] = defaultdict(list)
        found: list[Part] = []
        self._zeros_left = dict.fromkeys(range(len(self._contents)), MAX_ZEROS)
        for stretch in self._stretches:
            parts = list(
                self._resolve(stretch, known, {target for payload, target in bans if payload == stretch.payload})
            )
            for part in parts:
                if part.own:
                    self._learn(part.range, stretch, part.run, known)
            found += parts
        return found

    def _resolve(self, stretch: Stretch, known: dict[bytes, list[Part]], banned: Collection[Stretch]) -> Iterator[Part]:
        """The parts of a stretch, by offset."""
        matches = [match for match in [self._match(stretch.payload, stretch.range, known, banned)] if match]
        if not matches:
            found = [self._match(stretch.payload, piece, known, banned) for piece in stretch.pieces]
            matches = [match for match in found if match]
            if sum(match.range.size for match in matches) * WORTH < stretch.range.size:
                matches = []
        position = stretch.range.offset
        for match in self._joined(matches):
            yield from self._rest(stretch, position, match.range.offset)
            yield match if match.run else self._zeros(stretch, match.range)
            position = match.range.end
        yield from self._rest(stretch, position, stretch.range.end)

    def _match(
        self, payload: int, each: Range, known: dict[bytes, list[Part]], banned: Collection[Stretch]
    ) -> Part | None:
        """Where the bytes of a range are stored already; None if they are not, or cannot be used there."""
        digest = self._digest(payload, each)
        if digest == _ALL_ZERO:
            return Part(payload, each, None)
        for there in known.get(digest, ()):
            aligned = (there.range.offset - each.offset) % BYTE_ALIGNMENT == 0
            if aligned and there.run is not None and there.run.stretch not in banned:
                return Part(payload, each, there.run, there.range.offset)
        return None

    def _learn(self, stored: Range, stretch: Stretch, run: Run | None, known: dict[bytes, list[Part]]) -> None:
        """Makes a run's contents known."""
        for each in shareable(stretch):
            if stored.offset <= each.offset and each.end <= stored.end:
                digest = self._digest(stretch.payload, each)
                if digest not in (_UNIQUE, _ALL_ZERO):
                    known[digest].append(Part(stretch.payload, each, run, each.offset))

    def _joined(self, matches: Sequence[Part]) -> Iterator[Part]:
        """Matches whose neighbours continue them where they are stored, as one with what is between."""
        last: Part | None = None
        for match in matches:
            joined = last and self._join(last, match)
            if last and not joined:
                yield last
            last = joined or match
        if last:
            yield last

    def _join(self, first: Part, second: Part) -> Part | None:
        gap = Range(first.range.end, second.range.offset - first.range.end)
        shift = second.range.offset - first.range.offset
        if first.run != second.run or (first.run and first.position + shift != second.position):
            return None
        here = self._bytes(first.payload, gap)
        if first.run is None:
            equal = is_zero(here)
        else:
            equal = here == self._bytes(first.run.payload, Range(first.position + first.range.size, gap.size))
        return (
            Part(first.payload, Range(first.range.offset, shift + second.range.size), first.run, first.position)
            if equal
            else None
        )

    def _rest(self, stretch: Stretch, start: int, end: int) -> Iterator[Part]:
        """What nobody else has: it is stored for this payload."""
        if start == end:
            return
        rest = Range(start, end - start)
        if is_zero(self._bytes(stretch.payload, rest)):
            yield self._zeros(stretch, rest)
        else:
            yield _stored(stretch, rest)

    def _zeros(self, stretch: Stretch, each: Range) -> Part:
        """Zeros; stored as other bytes are where the format lets the payload have no more of them."""
        if each.size > self._zeros_left[stretch.payload]:
            return _stored(stretch, each)
        self._zeros_left[stretch.payload] -= each.size
        return Part(stretch.payload, each, None)

    def _digest(self, payload: int, each: Range) -> bytes:
        """What equal ranges have in common; `_UNIQUE` where no other range can be equal."""
        digest = self._digests.get((payload, each))
        if digest is None:
            content = self._bytes(payload, each)
            if is_zero(content):
                digest = _ALL_ZERO
            else:
                digest = hashlib.sha256(content).digest() if self._sizes[each.size] > 1 else _UNIQUE
            self._digests[payload, each] = digest
        return digest

    def _bytes(self, payload: int, each: Range) -> memoryview:
        return self._contents[payload][each.offset : each.end]


def _stored(stretch: Stretch, each: Range) -> Part:
    return Part(stretch.payload, each, Run(stretch.payload, each, stretch), each.offset)


_UNIQUE = b"unique"
_ALL_ZERO = b"zeros"
