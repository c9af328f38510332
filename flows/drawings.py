"""Layouts of drawings on a page: a treemap of sizes, and a line of values over runs. Templates turn them into SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
