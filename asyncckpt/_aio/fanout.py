"""Bounded fan-out: many coroutines, a few at a time, the first failure by itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

# How long items that never suspend may run before the loop gets its turn.
_SLICE_SECONDS = 0.002


async def fan_out(
    function: Callable[[Item], Coroutine[Any, Any, T]], items: Iterable[Item], *, limit: int
) -> list[T]:
    """Await `function(item)` for every item, at most `limit` at a time; results in the order of the items.

    The items are taken one by one as there is room. On the first failure no further item is taken, the
    siblings are cancelled and awaited, and that failure is raised by itself, not in a group. A cancel of the
    caller does the same and wins.
    """
    if limit < 1:
        raise ValueError(f"fan_out needs a limit of at least 1, got {limit}")
    run = _FanOut(function, iter(items))
    lanes = {asyncio.ensure_future(run.lane()) for _ in range(limit) if run.take()}
    try:
        await _run_lanes(run, lanes)
        if run.failure is not None:
            raise run.failure
        return [run.results[index] for index in range(run.taken)]
    finally:
        # Its traceback refers to this frame: without this the two would keep each other alive.
        run.failure = None


class _FanOut(Generic[Item, T]):
    """What the lanes of one fan-out share."""

    def __init__(self, function: Callable[[Item], Coroutine[Any, Any, T]], items: Iterator[Item]) -> None:
        self._function = function
        self._items = items
        self._taken_items: deque[tuple[int, Item]] = deque()
        self.taken = 0
        self.results: dict[int, T] = {}
        self.failure: BaseException | None = None
        self.stopping = False

    def take(self) -> bool:
        """Take the next item, for the lane that calls or is about to start; False when there is none."""
        if self.stopping:
            return False
        try:
            item = next(self._items)
        except StopIteration:
            return False
        except Exception as error:
            self.fail(error)
            return False
        self._taken_items.append((self.taken, item))
        self.taken += 1
        return True

    def fail(self, error: BaseException) -> None:
        """Note the first failure; what follows from stopping the siblings is not news."""
        if not self.stopping:
            self.failure = error
            self.stopping = True

    async def lane(self) -> None:
        """Work through items until there are no more; failures are noted, not raised."""
        try:
            await self._work_through_items()
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)

    async def _work_through_items(self) -> None:
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + _SLICE_SECONDS
        more = True
        while more:
            index, item = self._taken_items.popleft()
            self.results[index] = await self._function(item)
            del item
            if loop.time() >= slice_end:
                await asyncio.sleep(0)
                slice_end = loop.time() + _SLICE_SECONDS
            more = self.take()


async def _run_lanes(run: _FanOut[Any, Any], lanes: set[asyncio.Task[None]]) -> None:
    """Wait for the end of all lanes; a failure or the caller's cancel cancels them, the latter is raised."""
    cancellation: asyncio.CancelledError | None = None
    cancelled_lanes = False
    while lanes:
        if run.stopping and not cancelled_lanes:
            cancelled_lanes = True
            for lane in lanes:
                lane.cancel()
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as request:
            # As in a task group only the first request is passed on: a second must not break the siblings'
            # cleanup.
            cancellation = cancellation or request
            run.stopping = True
        # Looked at after a cancel too: whoever cancels on every turn of the loop, as anyio does, would else keep
        # `wait` from ever telling that the lanes are done.
        done = {lane for lane in lanes if lane.done()}
        lanes -= done
        if any(lane.cancelled() for lane in done):
            run.fail(asyncio.CancelledError())
    if cancellation is not None:
        raise cancellation from run.failure
