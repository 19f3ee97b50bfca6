"""Progress events, and how often they fire.

A `ProgressReporter` belongs to one operation. Worker threads may report bytes and retries at any rate; the
callback is called on the event loop's thread only, at most once per interval, plus once for each new phase
and once at the end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

__all__ = ["Phase", "ProgressCallback", "ProgressEvent", "ProgressReporter"]

_logger = logging.getLogger("asyncckpt")


class Phase(StrEnum):
    """What an operation is doing. `DONE` and `FAILED` are the last: exactly one of them ends each operation."""

    CAPTURE = "capture"
    STAGE = "stage"
    PLAN = "plan"
    WRITE = "write"
    COMMIT = "commit"
    OPEN = "open"
    READ = "read"
    VERIFY = "verify"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Where an operation stands.

    `bytes_done` and `bytes_total` (None: not known) count from the last phase that announced a total.
    `tensor` and `shard` are the latest that moved, `reason` is that of the latest retry since the event
    before. `committed` is true once the checkpoint is visible, whatever happens to the call after that.
    """

    phase: Phase
    bytes_done: int = 0
    bytes_total: int | None = None
    retries: int = 0
    tensor: str | None = None
    shard: str | None = None
    reason: str | None = None
    committed: bool = False


ProgressCallback = Callable[[ProgressEvent], object]


@dataclass(frozen=True, slots=True)
class _Change:
    byte_count: int = 0
    tensor: str | None = None
    shard: str | None = None
    retry_reason: str | None = None
    is_retry: bool = False


class ProgressReporter:
    """Collects what an operation has done and tells its callback.

        with ProgressReporter(callback) as report:
            report.phase(Phase.WRITE, bytes_total=total)
            report.advance(len(part), tensor=name)

    Made in a coroutine; leaving the block delivers the last event. A callback that raises is logged once and
    not called again; the operation goes on. Raises `TypeError` for a callback that is a coroutine function.
    Without a callback everything here is free.
    """

    def __init__(
        self,
        callback: ProgressCallback | None,
        *,
        interval: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if callback is not None:
            _require_plain_function(callback)
            self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._interval = interval
        self._clock = clock
        self._thread_id = threading.get_ident()
        self._event = ProgressEvent(Phase.CAPTURE)
        # Appended to by any thread, emptied by the loop: a deque needs no lock that the loop could wait for.
        self._changes: deque[_Change] = deque()
        self._wake_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._delivered_at: float | None = None
        self._finished = False

    def advance(self, byte_count: int, *, tensor: str | None = None, shard: str | None = None) -> None:
        """Count bytes as done. From any thread."""
        self._add(_Change(byte_count, tensor, shard))

    def retry(self, reason: str) -> None:
        """Count one retry. From any thread."""
        self._add(_Change(retry_reason=reason, is_retry=True))

    def phase(self, phase: Phase | str, *, bytes_total: int | None = None) -> None:
        """Enter a phase and deliver that at once; a `bytes_total` starts the count of bytes anew."""
        if self._callback is None or self._finished:
            return
        self._apply_changes()
        self._event = replace(self._event, phase=Phase(phase))
        if bytes_total is not None:
            self._event = replace(self._event, bytes_done=0, bytes_total=bytes_total)
        self._deliver()

    @property
    def committed(self) -> bool:
        """Whether `mark_committed` was called."""
        return self._event.committed

    def mark_committed(self) -> None:
        """From here on events say `committed`."""
        self._event = replace(self._event, committed=True)

    def finish(self, *, failed: bool = False) -> None:
        """Deliver the last event. Idempotent; whatever is reported later is dropped."""
        if self._finished:
            return
        if self._callback is not None:
            self._apply_changes()
            self._event = replace(self._event, phase=Phase.FAILED if failed else Phase.DONE)
            self._deliver()
        self._finished = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        # A cancel that comes after the commit ends the call, but the save itself is done.
        self.finish(failed=exc_type is not None and not self._event.committed)

    def _add(self, change: _Change) -> None:
        if self._callback is None or self._finished:
            return
        self._changes.append(change)
        if self._wake_is_due:
            return
        self._wake_is_due = True
        if threading.get_ident() == self._thread_id:
            self._wake()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed and with it the operation; nobody is left to tell.
            return

    def _wake(self) -> None:
        """Deliver now, or when the interval is over. Until then no other change wakes the loop."""
        if self._finished or self._timer is not None or not self._changes:
            return
        since = self._interval if self._delivered_at is None else self._clock() - self._delivered_at
        if since >= self._interval:
            self._deliver_changes()
        else:
            self._timer = self._loop.call_later(self._interval - since, self._deliver_changes)

    def _deliver_changes(self) -> None:
        if not self._finished:
            self._apply_changes()
            self._deliver()

    def _apply_changes(self) -> None:
        # Before the queue is emptied: a thread that appends after this wakes the loop again.
        self._wake_is_due = False
        while self._changes:
            change = self._changes.popleft()
            event = self._event
            self._event = replace(
                event,
                bytes_done=event.bytes_done + change.byte_count,
                tensor=change.tensor or event.tensor,
                shard=change.shard or event.shard,
                retries=event.retries + change.is_retry,
                reason=change.retry_reason or event.reason,
            )

    def _deliver(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._delivered_at = self._clock()
        event, self._event = self._event, replace(self._event, reason=None)
        self._call(event)

    def _call(self, event: ProgressEvent) -> None:
        if self._callback is None:
            return
        try:
            answer = self._callback(event)
            if inspect.iscoroutine(answer):
                answer.close()
                raise TypeError("the progress callback returned a coroutine; give a plain function")
        except (Exception, asyncio.CancelledError):
            # Nothing is awaited in there, so even a CancelledError is the callback's own mistake.
            self._callback = None
            _logger.exception("the progress callback failed and will not be called again")


def _require_plain_function(callback: ProgressCallback) -> None:
    if not callable(callback):
        raise TypeError(f"the progress callback must be callable, got {type(callback).__name__}")
    if any(map(inspect.iscoroutinefunction, (callback, type(callback).__call__))):
        raise TypeError("the progress callback must be a plain function, not a coroutine function")
