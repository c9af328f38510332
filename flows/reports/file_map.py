"""Maps of a produced file, without torch: which calls go to delegates, and what its bytes are.

Layouts of drawings are here, too; templates turn them into SVG.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import FileFormatError
from ...formats.describe import describe
from ...formats.nfat.container import Container, is_fat, open_fat, payload_program
from ...formats.nfat.contents import Payload
from ...formats.pte.contents import PteFile
from ...formats.pte.reader import naming, open_pte


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a whole: its kind, such as ``constants``, what it is, and its bytes."""

    kind: str
    label: str
    size: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Where a block is drawn."""

    block: Block
    x: float
    y: float
    width: float
    height: float


def treemap(blocks: Sequence[Block], width: float, height: float) -> tuple[Tile, ...]:
    """Fills a rectangle with tiles, largest first, whose areas are in proportion to the blocks' sizes.

    Squarified (Bruls, Huizing and van Wijk, 2000): a row takes another block as long as its tiles get more square.
    """
    rest = sorted((block for block in blocks if block.size > 0), key=lambda block: -block.size)
    left = sum(block.size for block in rest)
    x = y = 0.0
    tiles: list[Tile] = []
    while rest:
        side, scale = min(width, height), width * height / left
        count = 1
        while count < len(rest) and _worst(rest[: count + 1], side, scale) <= _worst(rest[:count], side, scale):
            count += 1
        row, rest = rest[:count], rest[count:]
        total = sum(block.size for block in row)
        left -= total
        depth, along = total * scale / side, 0.0
        for block in row:
            length = side * block.size / total
            if width >= height:
                tiles.append(Tile(block, x, y + along, depth, length))
            else:
                tiles.append(Tile(block, x + along, y, length, depth))
            along += length
        if width >= height:
            x, width = x + depth, width - depth
        else:
            y, height = y + depth, height - depth
    return tuple(tiles)


def _worst(row: Sequence[Block], side: float, scale: float) -> float:
    """The largest ratio of sides of a row's tiles; 1 is a square. The row is sorted, largest first."""
    depth = sum(block.size for block in row) * scale / side
    lengths = row[0].size * scale / depth, row[-1].size * scale / depth
    return max(max(length / depth, depth / length) for length in lengths)


def sparkline(values: Sequence[float], width: float, height: float) -> tuple[tuple[float, float], ...]:
    """Points of a line through values, from left to right; the largest value is on top."""
    low, high = min(values), max(values)
    step = width / max(len(values) - 1, 1)
    return tuple(
        (round(index * step, 1), round(height * ((high - value) / (high - low) if high > low else 0.5), 1))
        for index, value in enumerate(values)
    )


_BLOCKS = 40  # blocks of a file that are drawn one by one


@dataclass(frozen=True, slots=True)
class PayloadMap:
    """The methods of a payload; its name is empty in a plain file.

    Attributes:
        methods: those that compute something, as `formats.describe.describe` says.
        problem: why the methods are not known.
    """

    name: str
    methods: tuple[dict[str, Any], ...]
    problem: str = ""

    @classmethod
    def of(cls, name: str, pte: PteFile) -> PayloadMap:
        return cls(name, tuple(method for method in describe(pte)["methods"] if not method["constant"]))

    @property
    def delegated(self) -> float | None:
        """The share of calls that go to delegates; None where nothing is called."""
        calls = [method["instructions"] for method in self.methods]
        delegated = sum(each["delegate_calls"] for each in calls)
        total = delegated + sum(each["kernel_calls"] for each in calls)
        return delegated / total if total else None


@dataclass(frozen=True, slots=True)
class FileMap:
    """A `.pte` and its `.ptd`: the payloads, best first, and all bytes by what they hold."""

    payloads: tuple[PayloadMap, ...]
    blocks: tuple[Block, ...]


def map_of(path: Path, data: Sequence[Path], *, verified: bool = False) -> FileMap:
    """Maps a file and its `.ptd`; reads only what describes it, or else all of its payloads, to verify them.

    Raises InputError if a file cannot be read, as FileFormatError if it is damaged or, with `verified`, a payload is.
    """
    pte = open_pte(path)
    blocks = _merged([*_blocks(pte), *(Block("external", file.name, file.stat().st_size) for file in data)])
    if not is_fat(pte):
        return FileMap((PayloadMap.of("", pte),), blocks)
    container = open_fat(path, data).container
    if verified:
        with naming(path):
            for payload in container.payloads:
                container.verify(payload)
                payload_program(container, payload)
    return FileMap(tuple(_payload(container, payload) for payload in container.payloads), blocks)


def _payload(container: Container, payload: Payload) -> PayloadMap:
    try:
        return PayloadMap.of(payload.name, payload_program(container, payload))
    except FileFormatError as error:
        return PayloadMap(payload.name, (), str(error))


def _blocks(pte: PteFile) -> Iterator[Block]:
    """The program and each segment that is not inside of another; bytes between them are padding."""
    described, inner = describe(pte), pte.inner_segments
    names = {named["segment"]: named["key"] for named in described["named_data"]}
    yield Block("program", "program", pte.program_size)
    outer = [(index, segment) for index, segment in enumerate(described["segments"]) if index not in inner]
    for index, segment in outer:
        held = segment["holds"]
        kind = held[0] if len(held) == 1 else "several" if held else "unused"
        yield Block(kind, names.get(index, " and ".join(held).replace("_", " ") or "unused"), segment["size"])
    rest = pte.size - pte.program_size - sum(segment["size"] for _, segment in outer)
    if rest > 0:
        yield Block("padding", "padding", rest)


def _merged(blocks: list[Block]) -> tuple[Block, ...]:
    """The largest blocks, and one for the rest of each kind."""
    ordered = sorted(blocks, key=lambda block: -block.size)
    rest: dict[str, list[int]] = {}
    for block in ordered[_BLOCKS:]:
        rest.setdefault(block.kind, []).append(block.size)
    others = (Block(kind, f"{len(sizes)} smaller ones", sum(sizes)) for kind, sizes in rest.items())
    return (*ordered[:_BLOCKS], *others)
