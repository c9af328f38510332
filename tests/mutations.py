"""Damaged files: random changes of bytes, and one changed byte where it hits a payload of a container."""

import random
import struct
from dataclasses import replace

from hypothesis import strategies as st
from pteforge.formats.nfat.contents import Source
from pteforge.formats.nfat.pack import PackedContainer

_EXTREMES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 63, 64, 65, 0x7F, 0x80, 0xFF, 4096, 0x7FFF, 0xFFFF)
_EXTREMES += (2**31 - 1, 2**31, 2**32 - 16, 2**32 - 1, 2**48, 2**63, 2**64 - 16, 2**64 - 1)


def mutate(content: bytes, chance: random.Random, end: int | None = None) -> bytes:
    """One to four changes: of bits, bytes and whole numbers, cuts, repetitions and stretches from elsewhere.

    They begin before `end`, except that a stretch may come from anywhere.
    """
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(min(end or len(changed), len(changed)) or 1)
        kind = chance.randrange(10)
        if not changed or kind == 0:
            changed[at:at] = chance.randbytes(chance.randrange(1, 20))
        elif kind == 1:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            changed[at] = chance.randrange(256)
        elif kind < 7:
            layout, width = chance.choice((("<H", 2), ("<I", 4), ("<Q", 8)))
            at = max(min(at - at % width, len(changed) - width), 0)
            near = int.from_bytes(changed[at : at + width], "little") + chance.choice((-4, -2, -1, 1, 2, 4))
            number = chance.choice((near, chance.choice(_EXTREMES), chance.randrange(len(content) + 64)))
            changed[at : at + width] = struct.pack(layout, number % 256**width)
        elif kind == 7:
            del changed[at : at + chance.randrange(1, 40)]
        elif kind == 8:
            other = chance.randrange(len(changed))
            size = chance.randrange(1, 64)
            changed[at : at + size] = changed[other : other + size]
        else:
            del changed[at:]
    return bytes(changed)


@st.composite
def spliced(draw: st.DrawFn, content: bytes, end: int) -> bytes:
    """Content of which stretches before `end` were cut, repeated, replaced and swapped, and numbers set."""
    for _ in range(draw(st.integers(1, 3))):
        start, stop = sorted((draw(st.integers(0, end)), draw(st.integers(0, end))))
        numbers = st.builds(struct.pack, st.sampled_from(["<I", "<Q"]), st.integers(0, 2**32 - 1))
        patch = draw(st.one_of(st.binary(max_size=64), numbers, st.just(content[start:stop] * 2)))
        content = content[:start] + patch + content[draw(st.sampled_from((start + len(patch), stop))) :]
    return content


def damage_inline(packed: PackedContainer, name: str) -> PackedContainer:
    """The container with another last byte in a payload's first inline extent."""
    container = packed.open()
    extent = next(each for each in container.payload(name).extents if each.source is Source.INLINE)
    content = bytearray(packed.container)
    content[len(content) - len(container.inline) + extent.offset + extent.size - 1] ^= 1
    return replace(packed, container=bytes(content))
