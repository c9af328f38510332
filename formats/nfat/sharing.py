"""Which bytes payloads have in common, and how they are stored: small runs in the container, large ones as blobs."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ..pte.contents import MIN_SHAREABLE, Extent, PteFile, shareable_extents
from .contents import BYTE_ALIGNMENT, MatrixShape, is_zero
from .conversions import byte_sum, find_shape, halved, is_half
from .limits import MAX_EXPANSION, MAX_ZEROS

MIN_BLOB = 4096  # smaller runs are inline: mapping takes whole pages
_MIN_SAVING = 64  # a section is split only if that saves at least 1/64 of it
_START = 128  # bytes by which 16-bit numbers are looked up
_MAX_UNUSED = 16  # a payload that points into a blob uses all but 1/16 of it


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a payload that should stay contiguous: the program, a segment, or the bytes between them."""

    payload: int
    extent: Extent
    # extents in it that other payloads may also contain, by offset and without overlaps
    shareable: tuple[Extent, ...] = field(default=(), compare=False)
    # whether it may be stored as what another payload has, transposed or as numbers of twice as many bits
    convertible: bool = field(default=False, compare=False)

    @property
    def candidates(self) -> Sequence[Extent]:
        """The extents to look for in other payloads, from the largest."""
        whole = (self.extent,) if self.extent.size >= MIN_SHAREABLE else ()
        return (*whole, *self.shareable)


def sections(payload: int, pte: PteFile, *, convertible: bool = False) -> Iterator[Section]:
    """All bytes of a payload with the given index, by offset; its delegates' named data may be `convertible`."""
    shareable = shareable_extents(pte)
    named = {pte.segments[named.segment] for named in pte.named_data} if convertible else set()
    inner = pte.inner_segments
    outer = [extent for number, extent in enumerate(pte.segments) if extent.size and number not in inner]
    position = index = 0
    for extent in sorted([Extent(0, pte.program_size), *outer]):
        if extent.offset > position:
            yield Section(payload, Extent(position, extent.offset - position))
        while index < len(shareable) and shareable[index].offset < extent.offset:
            index += 1
        first = index
        while index < len(shareable) and shareable[index].end <= extent.end:
            index += 1
        inside = tuple(inner for inner in shareable[first:index] if inner != extent)
        yield Section(payload, extent, inside, convertible=extent in named)
        position = extent.end
    if position < pte.size:
        yield Section(payload, Extent(position, pte.size - position))


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Bytes that are stored: an extent of a payload, within a section."""

    payload: int
    extent: Extent
    section: Section


@dataclass(frozen=True, slots=True)
class StoredExtent:
    """An extent of a payload, and the bytes that are stored for it."""

    payload: int
    extent: Extent
    run: StoredRun | None  # contains its bytes; None for zeros
    position: int = 0  # of its bytes in the run's payload; 0 for zeros

    @property
    def original(self) -> bool:
        return self.run is not None and (self.run.payload, self.position) == (self.payload, self.extent.offset)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive bytes of a run that are stored together, inline or as a blob; `extent` is in the run's payload."""

    extent: Extent
    inline: bool


@dataclass(frozen=True, slots=True)
class Numbers:
    """32-bit numbers in a payload, of which another one has the nearest 16-bit ones."""

    payload: int
    extent: Extent


@dataclass(frozen=True, slots=True)
class StoredContent:
    """The bytes of a payload as they are stored: transposed sections have the bytes that they share."""

    content: memoryview
    transposed: list[tuple[Extent, memoryview]] = field(default_factory=list)  # by offset

    def of(self, extent: Extent) -> memoryview:
        """The bytes of an extent within a section."""
        index = bisect_right(self.transposed, extent.offset, key=lambda item: item[0].offset) - 1
        if index >= 0:
            section, shared = self.transposed[index]
            if extent.end <= section.end:
                return Extent(extent.offset - section.offset, extent.size).of(shared)
        return extent.of(self.content)


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """What is stored for each byte."""

    contents: Sequence[StoredContent]  # of the payloads
    stored_extents: tuple[StoredExtent, ...]  # of all payloads, in the order of storing
    blocks: dict[StoredRun, tuple[Block, ...]]
    transposes: Mapping[Section, MatrixShape]  # shapes of the bytes that transposed sections share
    # sections of 16-bit numbers, not stored, and the 32-bit numbers that they are rounded from
    halves: Mapping[Section, Numbers] = field(default_factory=dict)
    repetitive: frozenset[int] = frozenset()  # payloads that readers would refuse if repeated bytes were stored once

    def find(self, payload: int, extent: Extent) -> StoredExtent | None:
        """An extent of a payload as it is stored; None if no single one has all of it."""
        for stored in self.stored_extents:
            shift = extent.offset - stored.extent.offset
            if stored.payload == payload and stored.run and shift >= 0 and extent.end <= stored.extent.end:
                return StoredExtent(payload, extent, stored.run, stored.position + shift)
        return None

    def blocks_of(self, stored: StoredExtent) -> Iterator[tuple[Block, Extent]]:
        """The blocks with the bytes, and the extent of them in each, by offset; none for zeros."""
        if stored.run is None:
            return
        blocks, start = self.blocks[stored.run], stored.position
        end = start + stored.extent.size
        first = bisect_right(blocks, start, key=lambda block: block.extent.offset) - 1
        last = bisect_right(blocks, end - 1, key=lambda block: block.extent.offset)
        for block in blocks[first:last]:
            offset = max(block.extent.offset, start)
            yield block, Extent(offset, min(block.extent.end, end) - offset)


def plan_storage(contents: Sequence[memoryview], sections: Collection[Section]) -> StoragePlan:
    """Decides which bytes are shared and how they are stored; the sections cover all contents, in any order."""
    halves = _find_halves(contents, sections)
    while True:
        plan = _plan_without(halves, contents, sections)
        lost = {section for section, numbers in halves.items() if not _is_stored(plan, section, numbers)}
        if not lost:
            return replace(plan, halves=halves)
        halves = {section: numbers for section, numbers in halves.items() if section not in lost}


def _plan_without(
    halves: Collection[Section], contents: Sequence[memoryview], sections: Collection[Section]
) -> StoragePlan:
    rest = [section for section in sections if section not in halves]
    twins = _find_twins(contents, rest)
    while True:
        plan = _plan_storage(
            _as_stored(contents, twins), rest, {section: twin.shape for section, twin in twins.items()}
        )
        unshared = twins.keys() - _shared(plan)
        if not unshared:
            return plan
        twins = {section: twin for section, twin in twins.items() if section not in unshared}


def _is_stored(plan: StoragePlan, section: Section, numbers: Numbers) -> bool:
    """Whether numbers are stored in one piece, as aligned as the section that is rounded from them."""
    stored = plan.find(numbers.payload, numbers.extent)
    if stored is None or len(list(plan.blocks_of(stored))) != 1:
        return False
    return (stored.position - section.extent.offset) % BYTE_ALIGNMENT == 0


def _find_halves(contents: Sequence[memoryview], sections: Collection[Section]) -> dict[Section, Numbers]:
    """Convertible sections that are 16-bit numbers of what payloads without convertible sections have in 32 bits."""
    convertible = [section for section in sections if section.convertible]
    free, sizes = {section.payload for section in convertible}, {section.extent.size for section in convertible}
    known: defaultdict[tuple[int, bytes], list[Numbers]] = defaultdict(list)  # by size and start of the 16-bit numbers
    present: defaultdict[int, list[memoryview]] = defaultdict(list)  # by size
    for section in sorted(sections, key=lambda section: (section.payload, section.extent)):
        for extent in section.candidates if section.payload not in free else ():
            content = extent.of(contents[section.payload])
            if extent.size in sizes:
                present[extent.size].append(content)
            if extent.size % 4 == 0 and extent.size // 2 in sizes:
                start = b"".join(halved(content[: 2 * _START]))
                known[extent.size // 2, start].append(Numbers(section.payload, extent))
    found: dict[Section, Numbers] = {}
    for section in convertible:
        content = section.extent.of(contents[section.payload])
        candidates = known[len(content), bytes(content[:_START])]
        exact = (numbers for numbers in candidates if is_half(numbers.extent.of(contents[numbers.payload]), content))
        if (numbers := next(exact, None)) and not is_zero(content) and not _among(content, present[len(content)]):
            found[section] = numbers
    return found


def _plan_storage(
    contents: Sequence[StoredContent], sections: Collection[Section], transposes: Mapping[Section, MatrixShape]
) -> StoragePlan:
    deduplicator = _Deduplicator(contents, sections)
    bans: set[_Ban] = set()
    repetitive: set[int] = set()
    while True:
        stored_extents = deduplicator.lay_out(bans)
        uses = _uses(stored_extents)
        new_bans = {ban for run, by_payload in uses.items() for ban in _unprofitable(run, by_payload)}
        repetitions = _repetitions(stored_extents)
        repetitive |= {payload for payload, _ in repetitions}
        new_bans |= repetitions
        if new_bans <= bans:
            break
        bans |= new_bans
    runs = [stored.run for stored in stored_extents if stored.original and stored.run]
    blocks = {run: _blocks(run, _partial_uses(run, uses[run])) for run in runs}
    return StoragePlan(contents, tuple(stored_extents), blocks, transposes, repetitive=frozenset(repetitive))


@dataclass(frozen=True, slots=True)
class _Twin:
    """Bytes of a payload, and the shape by which a section of another payload is their transpose."""

    content: memoryview
    shape: MatrixShape


_Known = defaultdict[tuple[int, int], list[memoryview]]
"""Bytes of which sections may be transposes, by what transposing does not change: number and sum."""


def _find_twins(contents: Sequence[memoryview], sections: Collection[Section]) -> dict[Section, _Twin]:
    """The convertible sections whose bytes other payloads have only transposed.

    Payloads without convertible sections, such as the last one, keep their layouts; of the others, the first.
    """
    free = {section.payload for section in sections if section.convertible}
    sizes = {section.extent.size for section in sections if section.convertible}
    by_payload: defaultdict[int, list[Section]] = defaultdict(list)
    for section in sorted(sections, key=lambda section: section.extent):
        by_payload[section.payload].append(section)
    known: _Known = defaultdict(list)
    twins: dict[Section, _Twin] = {}
    for payload in sorted(by_payload, key=lambda payload: (payload in free, payload)) if free else ():
        originals: _Known = defaultdict(list)
        for section in by_payload[payload]:
            for extent in (extent for extent in section.candidates if extent.size in sizes):
                content = extent.of(contents[payload])
                key = extent.size, byte_sum(content)
                twin = _twin(content, known[key]) if section.convertible and extent == section.extent else None
                if twin:
                    twins[section] = twin
                else:
                    originals[key].append(content)
        for key, found in originals.items():
            known[key] += [content for content in found if not _among(content, known[key])]
    return twins


def _twin(content: memoryview, others: Sequence[memoryview]) -> _Twin | None:
    if is_zero(content) or _among(content, others):
        return None
    shapes = ((other, find_shape(other, content)) for other in others)
    return next((_Twin(other, shape) for other, shape in shapes if shape), None)


_COMPARED_AT_ONCE = 1 << 20


def _among(content: memoryview, others: Iterable[memoryview]) -> bool:
    return any(_equal(content, other) for other in others)


def _equal(one: memoryview, other: memoryview) -> bool:
    parts = (slice(start, start + _COMPARED_AT_ONCE) for start in range(0, len(one), _COMPARED_AT_ONCE))
    return len(one) == len(other) and all(bytes(one[part]) == bytes(other[part]) for part in parts)


def _as_stored(contents: Sequence[memoryview], twins: Mapping[Section, _Twin]) -> Sequence[StoredContent]:
    stored = [StoredContent(content) for content in contents]
    for section, twin in sorted(twins.items(), key=lambda item: item[0].extent):
        stored[section.payload].transposed.append((section.extent, twin.content))
    return stored


def _shared(plan: StoragePlan) -> set[Section]:
    """The transposed sections that are stored in one piece, which another payload uses, too."""
    by_run: defaultdict[StoredRun | None, list[StoredExtent]] = defaultdict(list)
    for stored in plan.stored_extents:
        by_run[stored.run].append(stored)
    by_extent = {(stored.payload, stored.extent): stored for stored in plan.stored_extents}
    own = ((section, by_extent.get((section.payload, section.extent))) for section in plan.transposes)
    return {
        section
        for section, stored in own
        if stored and len(list(plan.blocks_of(stored))) == 1
        if any(_covers(other, stored) for other in by_run[stored.run] if other.payload != section.payload)
    }


def _covers(other: StoredExtent, stored: StoredExtent) -> bool:
    """Whether one extent, in the same run, has all the bytes of another."""
    end = stored.position + stored.extent.size
    return other.position <= stored.position and end <= other.position + other.extent.size


_Ban = tuple[int, Section]  # a payload, and a section that it must not point into

_UNIQUE = b"unique"
_ALL_ZERO = b"zeros"


class _Deduplicator:
    """Finds equal bytes, starting with the largest section, so that small ones become extents of large ones."""

    def __init__(self, contents: Sequence[StoredContent], sections: Collection[Section]) -> None:
        self._contents = contents
        self._sections = sorted(sections, key=lambda section: (-section.extent.size, section.payload, section.extent))
        self._sizes = Counter(extent.size for section in sections for extent in section.candidates)
        self._digests: dict[tuple[int, Extent], bytes] = {}
        self._zeros_left: dict[int, int] = {}

    def lay_out(self, bans: Collection[_Ban] = ()) -> list[StoredExtent]:
        known: defaultdict[bytes, list[StoredExtent]] = defaultdict(list)
        found: list[StoredExtent] = []
        self._zeros_left = dict.fromkeys(range(len(self._contents)), MAX_ZEROS)
        for section in self._sections:
            banned = {target for payload, target in bans if payload == section.payload}
            stored_extents = list(self._lay_out_section(section, known, banned))
            for stored in stored_extents:
                if stored.original:
                    self._learn(stored, section, known)
            found += stored_extents
        return found

    def _lay_out_section(
        self, section: Section, known: dict[bytes, list[StoredExtent]], banned: Collection[Section]
    ) -> Iterator[StoredExtent]:
        if whole := self._match(section.payload, section.extent, known, banned):
            matches = [whole]
        else:
            found = (self._match(section.payload, extent, known, banned) for extent in section.shareable)
            matches = [match for match in found if match]
            if sum(match.extent.size for match in matches) * _MIN_SAVING < section.extent.size:
                matches = []
        position = section.extent.offset
        for match in self._joined(matches):
            yield from self._rest(section, position, match.extent.offset)
            yield match if match.run else self._zeros(section, match.extent)
            position = match.extent.end
        yield from self._rest(section, position, section.extent.end)

    def _match(
        self, payload: int, extent: Extent, known: dict[bytes, list[StoredExtent]], banned: Collection[Section]
    ) -> StoredExtent | None:
        """The extent, stored already as equal bytes; None if there are none that can be used here."""
        digest = self._digest(payload, extent)
        if digest == _ALL_ZERO:
            return StoredExtent(payload, extent, None)
        for there in known.get(digest, ()):
            aligned = (there.extent.offset - extent.offset) % BYTE_ALIGNMENT == 0
            if aligned and there.run is not None and there.run.section not in banned:
                return StoredExtent(payload, extent, there.run, there.extent.offset)
        return None

    def _learn(self, stored: StoredExtent, section: Section, known: dict[bytes, list[StoredExtent]]) -> None:
        for extent in section.candidates:
            if stored.extent.offset <= extent.offset and extent.end <= stored.extent.end:
                digest = self._digest(section.payload, extent)
                if digest not in (_UNIQUE, _ALL_ZERO):
                    known[digest].append(StoredExtent(section.payload, extent, stored.run, extent.offset))

    def _joined(self, matches: Sequence[StoredExtent]) -> Iterator[StoredExtent]:
        """Joins matches that are neighbours where they are stored, with equal bytes between them."""
        last: StoredExtent | None = None
        for match in matches:
            joined = last and self._join(last, match)
            if last and not joined:
                yield last
            last = joined or match
        if last:
            yield last

    def _join(self, first: StoredExtent, second: StoredExtent) -> StoredExtent | None:
        gap = Extent(first.extent.end, second.extent.offset - first.extent.end)
        shift = second.extent.offset - first.extent.offset
        if first.run != second.run or (first.run and first.position + shift != second.position):
            return None
        here = self._bytes(first.payload, gap)
        if first.run is None:
            equal = is_zero(here)
        else:
            equal = here == self._bytes(first.run.payload, Extent(first.position + first.extent.size, gap.size))
        if not equal:
            return None
        both = Extent(first.extent.offset, shift + second.extent.size)
        return StoredExtent(first.payload, both, first.run, first.position)

    def _rest(self, section: Section, start: int, end: int) -> Iterator[StoredExtent]:
        """Bytes that no other payload has; they are stored for this one."""
        if start == end:
            return
        rest = Extent(start, end - start)
        yield self._zeros(section, rest) if is_zero(self._bytes(section.payload, rest)) else _stored(section, rest)

    def _zeros(self, section: Section, extent: Extent) -> StoredExtent:
        """Zeros, which are stored like other bytes once the payload has as many as the format allows."""
        if extent.size > self._zeros_left[section.payload]:
            return _stored(section, extent)
        self._zeros_left[section.payload] -= extent.size
        return StoredExtent(section.payload, extent, None)

    def _digest(self, payload: int, extent: Extent) -> bytes:
        """Equal for equal bytes; `_UNIQUE` if no other candidate can be equal."""
        digest = self._digests.get((payload, extent))
        if digest is None:
            content = self._bytes(payload, extent)
            if is_zero(content):
                digest = _ALL_ZERO
            else:
                digest = hashlib.sha256(content).digest() if self._sizes[extent.size] > 1 else _UNIQUE
            self._digests[payload, extent] = digest
        return digest

    def _bytes(self, payload: int, extent: Extent) -> memoryview:
        return self._contents[payload].of(extent)


def _stored(section: Section, extent: Extent) -> StoredExtent:
    return StoredExtent(section.payload, extent, StoredRun(section.payload, extent, section), extent.offset)


_Uses = dict[int, list[Extent]]
"""The extents of a run that other payloads use, by payload; in the run's payload."""


def _uses(stored_extents: Iterable[StoredExtent]) -> defaultdict[StoredRun, _Uses]:
    found: defaultdict[StoredRun, _Uses] = defaultdict(dict)
    for stored in stored_extents:
        if stored.run and stored.payload != stored.run.payload:
            used = Extent(stored.position, stored.extent.size)
            found[stored.run].setdefault(stored.payload, []).append(used)
    return found


def _partial_uses(run: StoredRun, uses: _Uses) -> _Uses:
    """The uses of payloads that would map much of the run without using it."""
    if run.extent.size < MIN_BLOB:
        return {}
    enough = run.extent.size - run.extent.size // _MAX_UNUSED
    return {payload: extents for payload, extents in uses.items() if _covered(extents) < enough}


def _unprofitable(run: StoredRun, uses: _Uses) -> Iterable[_Ban]:
    """Bans the payloads that use so little of a run that it should stay in one piece."""
    partial = _partial_uses(run, uses)
    shared = _covered([extent for extents in partial.values() for extent in extents])
    return [(payload, run.section) for payload in partial] if shared * _MIN_SAVING < run.extent.size else []


def _repetitions(stored_extents: Iterable[StoredExtent]) -> set[_Ban]:
    """Bans payloads that repeat the same bytes more often than readers take, from the sections that they repeat."""
    by_payload: defaultdict[int, defaultdict[Section, list[Extent]]] = defaultdict(lambda: defaultdict(list))
    for stored in stored_extents:
        if stored.run:
            used = Extent(stored.position, stored.extent.size)
            by_payload[stored.payload][stored.run.section].append(used)
    bans: set[_Ban] = set()
    for payload, by_section in by_payload.items():
        covered = {section: _covered(extents) for section, extents in by_section.items()}
        total = {section: sum(extent.size for extent in extents) for section, extents in by_section.items()}
        if sum(total.values()) > MAX_EXPANSION * sum(covered.values()):
            bans |= {(payload, section) for section in by_section if total[section] > covered[section]}
    return bans


def _covered(extents: Iterable[Extent]) -> int:
    covered = end = 0
    for extent in sorted(extents):
        covered += max(extent.end - max(end, extent.offset), 0)
        end = max(end, extent.end)
    return covered


def _blocks(run: StoredRun, partial: _Uses) -> tuple[Block, ...]:
    """The blocks of a run: its unaligned start, and blobs that begin and end where payloads' uses do."""
    start, end = run.extent.offset, run.extent.end
    aligned = min(start + -start % BYTE_ALIGNMENT, end)
    if end - aligned < MIN_BLOB:
        return (Block(run.extent, inline=True),)
    head = [Block(Extent(start, aligned - start), inline=True)] if aligned > start else []
    used = [extent for extents in partial.values() for extent in extents]
    inner = {extent.offset - extent.offset % BYTE_ALIGNMENT for extent in used}
    inner |= {extent.end + -extent.end % BYTE_ALIGNMENT for extent in used}
    borders = [aligned]
    for border in sorted(inner):
        if borders[-1] + MIN_BLOB <= border <= end - MIN_BLOB:
            borders.append(border)
    return (*head, *(Block(Extent(first, second - first), inline=False) for first, second in pairwise([*borders, end])))
