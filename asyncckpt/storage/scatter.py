"""From what a request brings to where it was asked for: pieces of requests, and the buffers they fill."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from asyncckpt.model.checksums import Buffer
from asyncckpt.model.ranges import ByteRange, MergedRange


class Destinations:
    """The caller's buffers, each with the range that belongs there, and what is still missing in it.

    Every byte is to be placed once. All methods may be called from any thread.
    """

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None = None,
    ) -> None:
        self._ranges = ranges
        self._into = into
        self._filled = filled
        self._missing = [wanted.size for wanted in ranges]
        self._lock = threading.Lock()

    def pieces(self, requests: Sequence[MergedRange], limit_bytes: int) -> Iterator[Piece]:
        """The requests, cut so that none is larger than the limit."""
        for request in requests:
            for start in range(request.start, request.end, limit_bytes):
                end = min(start + limit_bytes, request.end)
                members = request.members
                if end - start < request.size:
                    members = tuple(
                        i for i in members if self._ranges[i].start < end and self._ranges[i].end > start
                    )
                yield Piece(self, start, end, members)

    def place(self, member: int, offset: int, data: memoryview) -> bool:
        """Copy what of `data`, which begins at `offset`, belongs to a buffer; whether it is complete now."""
        wanted = self._ranges[member]
        low, high = max(wanted.start, offset), min(wanted.end, offset + len(data))
        if low >= high:
            return False
        target = self._into[member].cast("B")
        target[low - wanted.start : high - wanted.start] = data[low - offset : high - offset]
        with self._lock:
            self._missing[member] -= high - low
            return self._missing[member] == 0

    def start_of(self, member: int) -> int:
        return self._ranges[member].start

    def end_of(self, member: int) -> int:
        return self._ranges[member].end

    def size_of(self, members: Sequence[int]) -> int:
        return sum(self._ranges[i].size for i in members)

    def report(self, members: Sequence[int]) -> None:
        """Tell the caller that these buffers are complete, in this thread."""
        if self._filled is not None:
            for member in members:
                self._filled(member)


class Piece:
    """A run of bytes [start, end) that one request brings, in order; `position` is the next one expected."""

    def __init__(self, destinations: Destinations, start: int, end: int, members: tuple[int, ...]) -> None:
        self.destinations = destinations
        self.position = start
        self.end = end
        self._members = members
        self._first = 0

    @property
    def missing(self) -> int:
        return self.end - self.position

    def feed(self, data: Buffer) -> list[int]:
        """Place the next bytes; what goes beyond the end is left out. Returns the buffers completed by them."""
        view = memoryview(data)[: self.missing]
        start, end = self.position, self.position + len(view)
        completed: list[int] = []
        for member in self._members[self._first :]:
            if self.destinations.start_of(member) >= end:
                break
            if self.destinations.place(member, start, view):
                completed.append(member)
        self.position = end
        self._skip_passed(end)
        return completed

    def _skip_passed(self, position: int) -> None:
        members, ends = self._members, self.destinations.end_of
        while self._first < len(members) and ends(members[self._first]) <= position:
            self._first += 1
