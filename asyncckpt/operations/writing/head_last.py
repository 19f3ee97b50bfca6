"""Parts of a file whose first bytes are known last.

Where a storage takes parts in any order, those that hold the head are kept back; one that takes them in order only gets
everything from a spool, which is in memory while it is small, then an anonymous temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from asyncckpt.model.buffers import Buffer

PART_BYTES = 16 * 1024 * 1024
"""The size of a part where the size of the file is not known."""
PIECE_BYTES = 1024 * 1024
"""No more is copied in one step: what is large is never copied whole."""
_SPOOLED_IN_MEMORY = 4 * 1024 * 1024


def new_spool() -> IO[bytes]:
    """Bytes that wait. Close it in the end."""
    return tempfile.SpooledTemporaryFile(max_size=_SPOOLED_IN_MEMORY)


class HeadLast:
    """Cuts bytes into parts, with their numbers; used by one worker thread at a time.

    What is added first are `head_bytes` bytes that stand for the head, and that it replaces in the end.
    """

    def __init__(self, part_bytes: int, head_bytes: int, *, in_order: bool) -> None:
        self._part_bytes = part_bytes
        self._held_parts = -(-head_bytes // part_bytes)
        self._held: list[tuple[int, bytearray]] = []
        self._part = bytearray()
        self._next = 0
        self._spool = new_spool() if in_order and head_bytes else None

    def close(self) -> None:
        """Let go of the spool. Idempotent."""
        if self._spool is not None:
            self._spool.close()

    def add(self, data: Buffer) -> Iterator[tuple[int, Buffer]]:
        """Append bytes; yields the parts that became full."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            if self._spool is not None:
                self._spool.write(piece)
                continue
            self._part += piece
            while len(self._part) >= self._part_bytes:
                yield from self._full(self._part[: self._part_bytes])
                del self._part[: self._part_bytes]

    def end(self, head: bytes) -> Iterator[tuple[int, Buffer]]:
        """The parts that are left, the ones with the head last."""
        if self._spool is not None:
            yield from self._spooled(self._spool, head)
            return
        if self._part:
            yield from self._full(self._part)
        for index, part in self._held:
            start = index * self._part_bytes
            piece = head[start : start + len(part)]
            part[: len(piece)] = piece
            yield index, part

    def _full(self, part: bytearray) -> Iterator[tuple[int, Buffer]]:
        index, self._next = self._next, self._next + 1
        if index < self._held_parts:
            self._held.append((index, part))
        else:
            yield index, part

    def _spooled(self, spool: IO[bytes], head: bytes) -> Iterator[tuple[int, Buffer]]:
        spool.seek(0)
        spool.write(head)
        spool.seek(0)
        while part := spool.read(self._part_bytes):
            yield self._next, part
            self._next += 1
