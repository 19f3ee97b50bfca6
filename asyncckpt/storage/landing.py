"""Where the bytes of ranges go: straight into the caller's buffers, counted; gaps into a scratch buffer.

A driver that fills memory asks a `Landing` for `views`; one that brings bytes of its own gives them to `feed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asyncckpt.model.buffers import Buffer, as_bytes, copy_bytes
from asyncckpt.model.ranges import ByteRange, MergedRange

LANDING_BYTES = 8 * 1024 * 1024
"""Larger requests are cut where bytes are fetched before they land: each then holds a copy of this size at most."""
_SLICE_BYTES = 1024 * 1024
_SCRATCH_BYTES = 64 * 1024


class Buffers:
    """The caller's buffers and how much of each is still missing. Threads may share it."""

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None = None,
    ) -> None:
        self.ranges = ranges
        self._into = into
        self._filled = filled
        self._missing: dict[int, int] = {}
        self._lock = threading.Lock()

    def landings(
        self, requests: Sequence[MergedRange], limit_bytes: int = LANDING_BYTES
    ) -> Iterator[Landing]:
        """The requests, cut so that none is larger than the limit."""
        for request in requests:
            for start in range(request.start, request.end, limit_bytes):
                yield Landing(self, start, min(start + limit_bytes, request.end), request.members)

    def part(self, member: int, start: int, end: int) -> memoryview:
        """What of a buffer belongs to bytes [start, end) of the object."""
        origin = self.ranges[member].start
        return as_bytes(self._into[member])[start - origin : end - origin]

    def arrived(self, member: int, size: int) -> bool:
        """Count bytes, each of them once; whether the buffer is complete now."""
        whole = self.ranges[member].size
        if size == whole:
            return True
        with self._lock:
            left = self._missing[member] = self._missing.get(member, whole) - size
        return not left

    def size_of(self, members: Sequence[int]) -> int:
        return sum(self.ranges[member].size for member in members)

    def report(self, members: Sequence[int]) -> None:
        """Tell the caller, in this thread, that these buffers are complete."""
        if self._filled is not None:
            for member in members:
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
        self.buffers = buffers
        self.position = start
        self.end = end
        self._members = members
        self._waiting: Iterator[_Run] | None = None
        self._run = _Run(start, start, ())
        self._scratch = memoryview(b"")

    @property
    def missing(self) -> int:
        """How many bytes have not arrived yet."""
        return self.end - self.position

    def views(self) -> Iterator[memoryview]:
        """The views to fill, from `position` on; asking for the next means that the last one is full.

        Buffers that are complete then are reported at once, in this thread.
        """
        while self.missing:
            view = self._next_view()
            yield view
            self.buffers.report(self._advance(view.nbytes))

    def feed(self, data: Buffer) -> list[int]:
        """Place the next bytes; what goes beyond the end is left out. Returns the buffers that they complete,
        which the caller reports."""
        source = as_bytes(data)[: self.missing]
        completed: list[int] = []
        while source:
            run = self._current_run()
            size = min(run.end - self.position, source.nbytes)
            if run.members:
                target = self.buffers.part(run.members[0], self.position, self.position + size)
                copy_bytes(target, source[:size])
            completed += self._advance(size)
            source = source[size:]
        return completed

    def land(self, data: Buffer) -> None:
        """Place the next bytes and report the buffers that they complete, in this thread."""
        self.buffers.report(self.feed(data))

    def _next_view(self) -> memoryview:
        run = self._current_run()
        left = run.end - self.position
        if run.members:
            stop = self.position + min(left, _SLICE_BYTES)
            return self.buffers.part(run.members[0], self.position, stop)
        if not self._scratch:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        return self._scratch[: min(left, _SCRATCH_BYTES)]

    def _current_run(self) -> _Run:
        if self._waiting is None:
            self._waiting = _runs(self.buffers.ranges, self.position, self.end, self._members)
        if self.position == self._run.end:
            self._run = next(self._waiting)
        return self._run

    def _advance(self, size: int) -> list[int]:
        """Bytes have been placed; returns the buffers that they complete."""
        self.position += size
        run = self._run
        if self.position < run.end:
            return []
        for member in run.members[1:]:
            # Ranges that overlap want the same bytes: read once, copied to the others.
            source = self.buffers.part(run.members[0], run.start, run.end)
            self.buffers.part(member, run.start, run.end)[:] = source
        return [member for member in run.members if self.buffers.arrived(member, run.end - run.start)]


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
