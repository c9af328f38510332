"""Payloads taken apart: into what ExecuTorch loads at once, and into what may be shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..pte.contents import PteFile
from ..pte.cuts import SMALLEST, Range, cut

_PAGE = 1 << 14
_ZEROS = bytes(_PAGE)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of a payload that should stay in one piece: the program, a segment, what is between them.

    Attributes:
        payload: index of the payload.
        range: where it is.
        pieces: ranges in it that other payloads may have, too, by offset and apart from each other.
    """

    payload: int
    range: Range
    pieces: tuple[Range, ...] = field(default=(), compare=False)


def stretches(payload: int, pte: PteFile) -> Iterator[Stretch]:
    """All bytes of a payload, by offset.

    Args:
        payload: its index.
        pte: what the file holds.
    """
    pieces = cut(pte)
    position = 0
    at = 0
    whole = [Range(0, pte.program_size), *(Range(each.offset, each.size) for each in pte.segments if each.size)]
    for each in sorted(whole):
        if each.offset > position:
            yield Stretch(payload, Range(position, each.offset - position))
        while at < len(pieces) and pieces[at].offset < each.offset:
            at += 1
        first = at
        while at < len(pieces) and pieces[at].end <= each.end:
            at += 1
        yield Stretch(payload, each, tuple(piece for piece in pieces[first:at] if piece != each))
        position = each.end
    if position < pte.size:
        yield Stretch(payload, Range(position, pte.size - position))


def shareable(stretch: Stretch) -> Sequence[Range]:
    """The ranges of a stretch that are worth comparing with others, itself first."""
    whole = (stretch.range,) if stretch.range.size >= SMALLEST else ()
    return (*whole, *stretch.pieces)


def is_zero(content: memoryview) -> bool:
    """Whether all bytes are zero; stops at the first page with another."""
    # As bytes: memoryviews are compared item by item.
    pages = (bytes(content[start : start + _PAGE]) for start in range(0, len(content), _PAGE))
    return all(page == _ZEROS[: len(page)] for page in pages)
