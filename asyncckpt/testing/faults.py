"""Cancels at exact places: the k-th time that an operation suspends.

    async def check(k: int, outcome: Outcome[SaveResult]) -> None:
        assert not leftovers()

    await sweep(lambda token: save(state, url, cancellation=token), check, how="token")

The operation is driven send by send inside a task of its own; each time it suspends counts, those of its
child tasks do not. The cancel is requested in that very step, before the event loop can run anything else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from asyncckpt.cancellation import CancellationToken, CancellationTokenSource

__all__ = ["CancelBy", "MakeOperation", "Outcome", "run_cancelled_at", "sweep"]

T = TypeVar("T")
CancelBy = Literal["task", "token", "timeout"]
MakeOperation = Callable[[CancellationToken | None], Coroutine[Any, Any, T]]

_REASON = "injected by asyncckpt.testing.faults"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """How an operation ended that was to be cancelled at its k-th suspension.

    `injected` is false when it ended before it got there. It may have completed even so: a cancel that comes
    after the commit has begun can be ignored.
    """

    injected: bool
    completed: bool
    result: T | None
    error: BaseException | None
    suspensions: int


async def run_cancelled_at(
    make_operation: MakeOperation[T],
    k: int,
    *,
    how: CancelBy = "task",
    times: int = 1,
    timeout: float = 60.0,
) -> Outcome[T]:
    """Run `make_operation(token)` and cancel it at its k-th suspension, counted from 0.

    By "task" (`Task.cancel`), "token" (which is given to the operation; None otherwise) or "timeout" (an
    `asyncio.timeout` around it). With `times` > 1 the cancel is followed by a `Task.cancel` at each of the
    next suspensions, which hits the cleanup itself. Raises `AssertionError` when the operation has not ended
    after `timeout` seconds.
    """
    source = CancellationTokenSource()
    injector = _Injector(k, times)
    operation = _operation(make_operation, injector, how=how, source=source)
    task = asyncio.ensure_future(operation)
    try:
        await asyncio.wait([task], timeout=timeout)
    finally:
        ended = task.done()
        if not ended:
            task.cancel()
    if not ended:
        raise AssertionError(f"cancelled by {how} at suspension {k}: still running after {timeout:g} s")
    return _outcome(task, injector)


async def sweep(
    make_operation: MakeOperation[T],
    check: Callable[[int, Outcome[T]], Awaitable[None]],
    *,
    how: CancelBy = "task",
    times: int = 1,
    timeout: float = 60.0,
    rng: random.Random | None = None,
    exhaustive_up_to: int = 40,
    samples: int = 20,
) -> int:
    """Cancel at k = 0, 1, 2 … until the operation ends before suspension k; `check(k, outcome)` each time.

    With `rng`, for operations that are slow: every k below `exhaustive_up_to`, then `samples` of the rest, as
    many as an undisturbed run has; that run comes last. Returns the number of runs that were cancelled.
    """

    async def run(k: int) -> Outcome[T]:
        outcome = await run_cancelled_at(make_operation, k, how=how, times=times, timeout=timeout)
        await check(k, outcome)
        return outcome

    cancelled = 0
    while rng is None or cancelled < exhaustive_up_to:
        if not (await run(cancelled)).injected:
            return cancelled
        cancelled += 1
    total = await _count_suspensions(run)
    beyond = range(exhaustive_up_to, total)
    for k in sorted(rng.sample(beyond, min(samples, len(beyond)))):
        cancelled += (await run(k)).injected
    return cancelled


_NEVER = 1 << 62


async def _count_suspensions(run: Callable[[int], Awaitable[Outcome[Any]]]) -> int:
    return (await run(_NEVER)).suspensions


class _Injector:
    """Counts suspensions and cancels at the chosen ones."""

    def __init__(self, k: int, times: int) -> None:
        if k < 0 or times < 1:
            raise ValueError(f"needs k >= 0 and times >= 1, got k={k}, times={times}")
        self._first = k
        self._last = k + times - 1
        self.cancel: Callable[[], object] = _nothing
        self.suspensions = 0
        self.injected = False

    def suspended(self) -> None:
        count, self.suspensions = self.suspensions, self.suspensions + 1
        if count == self._first:
            self.injected = True
            self.cancel()
        elif self._first < count <= self._last:
            # Tokens and timeouts fire only once; whoever insists cancels the task.
            _current_task().cancel()


async def _operation(
    make_operation: MakeOperation[T], injector: _Injector, *, how: CancelBy, source: CancellationTokenSource
) -> T:
    if how == "task":
        injector.cancel = _current_task().cancel
        return await _Stepwise(make_operation(None), injector)
    if how == "token":
        injector.cancel = lambda: source.cancel(_REASON)
        return await _Stepwise(make_operation(source.token), injector)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as deadline:
        injector.cancel = lambda: deadline.reschedule(loop.time())
        return await _Stepwise(make_operation(None), injector)


class _Stepwise(Generic[T]):
    """Awaits a coroutine and tells the injector about each suspension, before the task hears of it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], injector: _Injector) -> None:
        self._coroutine = coroutine
        self._injector = injector

    def __await__(self) -> Generator[Any, Any, T]:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                awaited = self._coroutine.send(answer) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = error = None
            self._injector.suspended()
            try:
                answer = yield awaited
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as thrown:
                error = thrown


def _outcome(task: asyncio.Task[T], injector: _Injector) -> Outcome[T]:
    error: BaseException | None
    if task.cancelled():
        error = asyncio.CancelledError()
    else:
        error = task.exception()
    return Outcome(
        injected=injector.injected,
        completed=error is None,
        result=task.result() if error is None else None,
        error=error,
        suspensions=injector.suspensions,
    )


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "this runs inside a task"
    return task


def _nothing() -> None:
    return None
