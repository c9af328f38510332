"""Flatbuffer tables read with every offset checked: `flatbuffers.table.Table` itself trusts its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from flatbuffers import number_types  # type: ignore[import-untyped]  # ships neither stubs nor py.typed
from flatbuffers.table import Table  # type: ignore[import-untyped]  # ships neither stubs nor py.typed

from ...errors import FileFormatError
from .contents import Extent

U8 = number_types.Uint8Flags
U16 = number_types.Uint16Flags
U32 = number_types.Uint32Flags
U64 = number_types.Uint64Flags
I8 = number_types.Int8Flags
I32 = number_types.Int32Flags
I64 = number_types.Int64Flags
F64 = number_types.Float64Flags
BOOL = number_types.BoolFlags

MAX_SIZE = 2**31 - 1  # largest flatbuffer in bytes: offsets are signed 32-bit numbers

_BUDGET_PER_BYTE = 8
_BUDGET_ALWAYS = 1 << 16

_T = TypeVar("_T")


class Flatbuffer:
    """A flatbuffer's bytes, and how many of them may still be read.

    Many parents may point to one child, so a small file can describe a huge tree. Reads are therefore charged to a
    budget of a few times the flatbuffer's size; ExecuTorch's writer shares almost nothing.
    """

    def __init__(self, content: memoryview) -> None:
        if len(content) > MAX_SIZE:
            raise FileFormatError(f"the program's flatbuffer has {len(content)} bytes; at most {MAX_SIZE} are possible")
        self.content = content
        self._budget = _BUDGET_PER_BYTE * len(content) + _BUDGET_ALWAYS

    def root(self) -> TableView:
        return TableView(self, self.number(U32, 0))

    def number(self, flags: Any, position: int) -> int:
        self.charge(position, flags.bytewidth)
        value: int = flags.packer_type.unpack_from(self.content, position)[0]
        return value

    def charge(self, position: int, size: int) -> None:
        """Charges one more read of `size` bytes at `position`, after checking that they exist."""
        if position < 0 or size < 0 or position + size > len(self.content):
            raise FileFormatError(
                f"damaged program: {size} bytes at {position} are needed, its flatbuffer has {len(self.content)} bytes"
            )
        self._budget -= size
        if self._budget < 0:
            raise FileFormatError("damaged program: its tables refer to the same bytes over and over")


class TableView:
    """One table of a flatbuffer; absent fields have defaults. All methods raise FileFormatError for wrong bytes."""

    __slots__ = ("_flatbuffer", "_size", "_table")

    def __init__(self, flatbuffer: Flatbuffer, position: int) -> None:
        vtable = position - flatbuffer.number(I32, position)
        vtable_size = flatbuffer.number(U16, vtable)
        if vtable_size < 4 or vtable_size % 2:
            raise FileFormatError(f"damaged program: the table at {position} has a vtable of {vtable_size} bytes")
        flatbuffer.charge(vtable, vtable_size)
        self._size = flatbuffer.number(U16, vtable + 2)
        flatbuffer.charge(position, self._size)
        self._flatbuffer = flatbuffer
        self._table = Table(flatbuffer.content, position)

    def number(self, slot: IntEnum, flags: Any, default: Any = 0) -> Any:
        """The scalar in a slot; `flags` is its type, one of the constants of this module."""
        position = self._field(slot, flags.bytewidth)
        return default if position is None else self._table.Get(flags, position)

    def text(self, slot: IntEnum) -> str:
        start, size = self._vector(slot, 1)
        try:
            return str(self._flatbuffer.content[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"damaged program: {slot.name.lower()} at {start} is not UTF-8: {error}") from error

    def child(self, slot: IntEnum) -> TableView | None:
        position = self._field(slot, 4)
        return None if position is None else TableView(self._flatbuffer, self._table.Indirect(position))

    def children(self, slot: IntEnum) -> Iterator[TableView]:
        start, count = self._vector(slot, 4)
        for position in range(start, start + 4 * count, 4):
            yield TableView(self._flatbuffer, self._table.Indirect(position))

    def numbers(self, slot: IntEnum, flags: Any) -> tuple[int, ...]:
        start, count = self._vector(slot, flags.bytewidth)
        content = self._flatbuffer.content[start : start + count * flags.bytewidth]
        return tuple(value for (value,) in flags.packer_type.iter_unpack(content))

    def extent(self, slot: IntEnum) -> Extent:
        """A vector of bytes, which are not read; (0, 0) if it is absent. For other vectors, `size` counts items."""
        return Extent(*self._vector(slot, 1))

    def _field(self, slot: IntEnum, size: int) -> int | None:
        """Position of a field of `size` bytes; None if it is absent."""
        offset: int = self._table.Offset(4 + 2 * slot)
        if offset == 0:
            return None
        if offset < 4:
            raise FileFormatError(f"damaged program: {slot.name.lower()} lies before its table at {self._table.Pos}")
        position: int = self._table.Pos + offset
        # Some versions of flatbuffers for Python write too small a table size, which their own readers ignore.
        if offset + size > self._size:
            self._flatbuffer.charge(position, size)
        return position

    def _vector(self, slot: IntEnum, width: int) -> tuple[int, int]:
        """Position of the first item, and number of items of `width` bytes; (0, 0) if the vector is absent."""
        position = self._field(slot, 4)
        if position is None:
            return 0, 0
        start: int = self._table.Indirect(position)
        count = self._flatbuffer.number(U32, start)
        self._flatbuffer.charge(start + 4, count * width)
        return start + 4, count


def pick(items: Sequence[_T], index: int, what: str) -> _T:
    """`items[index]`; raises FileFormatError, naming `what`, if there is none."""
    if not 0 <= index < len(items):
        raise FileFormatError(f"damaged program: {what} {index} is named and there are {len(items)}")
    return items[index]
