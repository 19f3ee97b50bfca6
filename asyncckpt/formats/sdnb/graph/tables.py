"""FlatBuffers tables, vectors and strings, read without trusting any offset. Little-endian.

Everything is checked against the bytes that there are, and what is decoded in all is bounded by them.

============ =================================================================================================
part         content
============ =================================================================================================
table        i32 distance back to its vtable, then its fields, whose slots the vtable places
vtable       u16 its own bytes, u16 the table's, then for each slot the field's u16 offset in the table, 0: absent
vector       u32 number of items, items; a string is a vector of UTF-8
reference    u32 distance to a table, a vector or a string, always forwards
============ =================================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError
from asyncckpt.formats.kit.binary import LE_I32, LE_U16, LE_U32, decode_utf8


class Table(NamedTuple):
    """A table at `position`; `offsets[slot]` is 0 where a field is absent."""

    position: int
    size: int
    offsets: tuple[int, ...]

    def at(self, slot: int, width: int) -> int:
        """Where the field lies, 0 where it is absent. Raises LayoutError when it leaves the table."""
        offset = self.offsets[slot] if slot < len(self.offsets) else 0
        if offset == 0:
            return 0
        if offset < 4 or offset + width > self.size:
            raise LayoutError(f"slot {slot} of the table at {self.position} lies outside of it")
        return self.position + offset


class FlatReader:
    """FlatBuffers over bytes that can't be trusted. Positions count from the window's start.

    Several offsets may lead to the same string, so the text that is decoded in all is limited by a budget.
    """

    def __init__(self, window: memoryview) -> None:
        self.window = window
        self.size = len(window)
        self._vtables: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._budget = 4096 + 2 * self.size

    def number(self, layout: struct.Struct, position: int) -> int:
        if position < 0 or position + layout.size > self.size:
            raise TruncatedError(f"the graph needs {layout.size} bytes at {position}, it has {self.size}")
        value: int = layout.unpack_from(self.window, position)[0]
        return value

    def table(self, position: int, what: str) -> Table:
        vtable = position - self.number(LE_I32, position)
        known = self._vtables.get(vtable)
        if known is None:
            known = self._vtables[vtable] = self._vtable(vtable, what)
        size, offsets = known
        if position + size > self.size:
            raise TruncatedError(f"{what} at {position} has {size} bytes, the graph ends at {self.size}")
        return Table(position, size, offsets)

    def _vtable(self, position: int, what: str) -> tuple[int, tuple[int, ...]]:
        length = self.number(LE_U16, position)
        size = self.number(LE_U16, position + 2)
        if length < 4 or length % 2 or size < 4:
            raise LayoutError(f"the vtable of {what} at {position} has {length} bytes for a table of {size}")
        if position + length > self.size:
            raise TruncatedError(f"the vtable of {what} at {position} leaves the graph")
        return size, struct.unpack_from(f"<{length // 2 - 2}H", self.window, position + 4)

    def follow(self, position: int) -> int:
        return position + self.number(LE_U32, position)

    def vector(self, position: int, item_bytes: int, what: str) -> tuple[int, int]:
        """The start and the count of the vector that the field at `position` points to."""
        start = self.follow(position) + 4
        count = self.number(LE_U32, start - 4)
        if count * item_bytes > self.size - start:
            raise TruncatedError(f"{what} has {count} items of {item_bytes} bytes, the graph ends before")
        return start, count

    def text(self, position: int, what: str) -> str:
        """The string that the field at `position` points to."""
        start, count = self.vector(position, 1, what)
        self._budget -= count
        if self._budget < 0:
            raise LimitExceededError(f"the graph's strings are longer than the graph itself, at {what}")
        return decode_utf8(self.window[start : start + count], what)

    def numbers(self, position: int, what: str, *, limit: int) -> tuple[int, ...]:
        start, count = self.vector(position, 8, what)
        if count > limit:
            raise LimitExceededError(f"{what} has {count} numbers, at most {limit} are read")
        return struct.unpack_from(f"<{count}q", self.window, start)

    def tables(self, table: Table, slot: int, what: str) -> Iterator[Table]:
        position = table.at(slot, 4)
        if position:
            start, count = self.vector(position, 4, what)
            for number in range(count):
                yield self.table(self.follow(start + 4 * number), what)

    def texts(self, table: Table, slot: int, what: str, *, limit: int | None = None) -> Iterator[str]:
        position = table.at(slot, 4)
        if position:
            start, count = self.vector(position, 4, what)
            for number in range(count if limit is None else min(count, limit)):
                yield self.text(start + 4 * number, what)

    def count(self, table: Table, slot: int, what: str) -> int:
        position = table.at(slot, 4)
        return self.vector(position, 4, what)[1] if position else 0

    def optional_text(self, table: Table, slot: int, what: str) -> str | None:
        position = table.at(slot, 4)
        return self.text(position, what) if position else None

    def byte(self, table: Table, slot: int) -> int:
        position = table.at(slot, 1)
        return self.window[position] if position else 0
