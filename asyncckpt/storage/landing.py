"""Where the bytes of one range go: straight into the caller's buffers, gaps into a scratch buffer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asyncckpt.model.ranges import ByteRange

_SLICE_BYTES = 1024 * 1024
_SCRATCH_BYTES = 64 * 1024


class Buffers:
    """The caller's buffers and how much of each is still missing. Threads may share it."""

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        self.ranges = ranges
        self._into = into
        self._filled = filled
        self._missing: dict[int, int] = {}
        self._lock = threading.Lock()

    def part(self, member: int, start: int, end: int) -> memoryview:
        """What of a buffer belongs to bytes [start, end) of the object."""
        origin = self.ranges[member].start
        return self._into[member].cast("B")[start - origin : end - origin]

    def arrived(self, member: int, size: int) -> None:
        """Count bytes, each of them once; the caller hears of a buffer that is complete, in this thread."""
        whole = self.ranges[member].size
        if size < whole:
            with self._lock:
                left = self._missing[member] = self._missing.get(member, whole) - size
            if left:
                return
        if self._filled is not None:
            self._filled(member)


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes [start, end) that lie one after another in one place; `members` want them, none is a gap."""

    start: int
    end: int
    members: tuple[int, ...]


class Landing:
    """Bytes [start, end) of an object on their way in. `position` is where a new attempt goes on.

    Used by one thread at a time.
    """

    def __init__(self, buffers: Buffers, start: int, end: int, members: Sequence[int]) -> None:
        self._buffers = buffers
        self.position = start
        self.end = end
        self._members = members
        self._runs: list[_Run] | None = None
        self._next_run = 0

    def views(self) -> Iterator[memoryview]:
        """The views to fill, from `position` on; asking for the next means that the last one is full."""
        if self._runs is None:
            self._runs = list(_runs(self._buffers.ranges, self.position, self.end, self._members))
        while self._next_run < len(self._runs):
            run = self._runs[self._next_run]
            yield from self._slices(run)
            self._spread(run)
            self._next_run += 1
            for member in run.members:
                self._buffers.arrived(member, run.end - run.start)

    def _slices(self, run: _Run) -> Iterator[memoryview]:
        scratch = None if run.members else memoryview(bytearray(min(_SCRATCH_BYTES, run.end - run.start)))
        while self.position < run.end:
            stop = min(run.end, self.position + (_SLICE_BYTES if scratch is None else _SCRATCH_BYTES))
            if scratch is None:
                yield self._buffers.part(run.members[0], self.position, stop)
            else:
                yield scratch[: stop - self.position]
            self.position = stop

    def _spread(self, run: _Run) -> None:
        """Ranges that overlap want the same bytes: read once, copied to the others."""
        for member in run.members[1:]:
            source = self._buffers.part(run.members[0], run.start, run.end)
            self._buffers.part(member, run.start, run.end)[:] = source


def _runs(ranges: Sequence[ByteRange], start: int, end: int, members: Sequence[int]) -> Iterator[_Run]:
    """Cut [start, end) wherever a range begins or ends. `members` are ordered by their ranges' starts."""
    waiting = iter(i for i in members if ranges[i].start < end and ranges[i].end > start)
    upcoming = next(waiting, None)
    active: list[int] = []
    position = start
    while position < end:
        while upcoming is not None and ranges[upcoming].start <= position:
            active.append(upcoming)
            upcoming = next(waiting, None)
        stop = min(
            end,
            min((ranges[i].end for i in active), default=end),
            end if upcoming is None else ranges[upcoming].start,
        )
        yield _Run(position, stop, tuple(active))
        position = stop
        active = [i for i in active if ranges[i].end > position]
