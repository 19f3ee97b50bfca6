"""Which parts of an object have been written, and whether they make a whole."""

from __future__ import annotations

from asyncckpt.errors import RangeError

PART_BYTES = 16 * 1024 * 1024
"""Of the parts of an object whose size does not ask for larger ones."""


class PartLedger:
    """The sizes of an object's parts: all of `part_bytes` except the last one."""

    def __init__(self, key: str, part_bytes: int) -> None:
        if part_bytes < 1:
            raise RangeError(f"a part of {key!r} needs at least 1 byte, got {part_bytes}")
        self._key = key
        self._part_bytes = part_bytes
        self._sizes: dict[int, int] = {}

    def offset(self, index: int, size: int) -> int:
        """Where the part begins. Raises RangeError when there can be no such part."""
        if index < 0 or not 0 <= size <= self._part_bytes:
            raise RangeError(
                f"part {index} of {self._key!r} has {size} bytes, a part has at most {self._part_bytes}"
            )
        return index * self._part_bytes

    def add(self, index: int, size: int) -> None:
        """Note that the part has been written; a part written again counts once."""
        self._sizes[index] = size

    def total(self) -> int:
        """The size of the whole object. Raises RangeError when a part is missing or short."""
        last = max(self._sizes, default=-1)
        for index in range(last):
            size = self._sizes.get(index)
            if size != self._part_bytes:
                found = "was never written" if size is None else f"has {size} of {self._part_bytes} bytes"
                raise RangeError(f"part {index} of {self._key!r} {found}, and part {last} follows")
        return last * self._part_bytes + self._sizes[last] if self._sizes else 0
