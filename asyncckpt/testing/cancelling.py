"""Cancels at exact places: the k-th time that an operation suspends.

    async def check(k: int, outcome: Outcome[SaveResult]) -> None:
        assert not leftovers()

    await sweep(lambda token: save(state, url, cancellation=token), check, how="token")

The operation is driven send by send inside a task of its own; each time it suspends counts, those of its
child tasks do not (but for "all_tasks"). The cancel is requested in that very step, before the event loop can run
anything else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from asyncckpt._aio.stepwise import Stepwise
from asyncckpt.cancellation import CancellationToken, CancellationTokenSource
from asyncckpt.errors import OperationCancelledError

__all__ = ["WAYS", "CancelBy", "MakeOperation", "Outcome", "assert_cancelled", "run_cancelled_at", "sweep"]

T = TypeVar("T")
CancelBy = Literal["task", "token", "timeout", "every_turn", "anyio", "all_tasks"]
MakeOperation = Callable[[CancellationToken | None], Coroutine[Any, Any, T]]

WAYS: tuple[tuple[CancelBy, int], ...] = (
    ("task", 1),
    ("token", 1),
    ("timeout", 1),
    # Twice in a row, and again and again while it cleans up.
    ("task", 2),
    ("token", 3),
    ("timeout", 8),
    ("every_turn", 1),
    ("anyio", 1),
    ("all_tasks", 1),
)
"""How an operation can be cancelled, and how often in a row: what a contract tries."""
_ERRORS: dict[CancelBy, type[BaseException]] = {
    "task": asyncio.CancelledError,
    "token": OperationCancelledError,
    "timeout": TimeoutError,
    "every_turn": asyncio.CancelledError,
    "anyio": asyncio.CancelledError,
    "all_tasks": asyncio.CancelledError,
}
_REASON = "injected by asyncckpt.testing.cancelling"
_injector: ContextVar[_Injector | None] = ContextVar("asyncckpt_injector", default=None)


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

    By "task" (`Task.cancel`), "token" (which is given to the operation; None otherwise), "timeout" (an
    `asyncio.timeout` around it), "every_turn" (`Task.cancel`, and again on every turn of the loop until it has
    ended), "anyio" (a cancel scope of anyio, which has to be installed) or "all_tasks" (every task that was
    begun since, as `asyncio.run` does at its end; here the suspensions of all of them count). With `times` > 1
    the cancel is followed by a `Task.cancel` at each of the next suspensions, which hits the cleanup itself.
    Raises `AssertionError` when the operation has not ended after `timeout` seconds.
    """
    injector = _Injector(k, times)
    with _counting_every_task(injector, on=how == "all_tasks"):
        task = asyncio.ensure_future(_operation(make_operation, injector, how=how))
        try:
            await asyncio.wait([task], timeout=timeout)
        finally:
            ended = task.done()
            injector.cancel = _nothing
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


async def _operation(make_operation: MakeOperation[T], injector: _Injector, *, how: CancelBy) -> T:
    if how == "token":
        source = CancellationTokenSource()
        injector.cancel = lambda: source.cancel(_REASON)
        return await _Counted(make_operation(source.token), injector)
    if how == "timeout":
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as deadline:
            injector.cancel = lambda: deadline.reschedule(loop.time())
            return await _Counted(make_operation(None), injector)
    if how == "anyio":
        return await _in_anyio_scope(make_operation, injector)
    if how == "all_tasks":
        # It is counted by the task that runs it, as every task is.
        return await make_operation(None)
    task = _current_task()
    injector.cancel = task.cancel if how == "task" else lambda: _cancel_every_turn(task)
    return await _Counted(make_operation(None), injector)


def _cancel_every_turn(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        task.get_loop().call_soon(_cancel_every_turn, task)


async def _in_anyio_scope(make_operation: MakeOperation[T], injector: _Injector) -> T:
    from anyio import CancelScope

    with CancelScope() as scope:
        injector.cancel = scope.cancel
        return await _Counted(make_operation(None), injector)
    raise asyncio.CancelledError("the scope of anyio ended it")


@contextmanager
def _counting_every_task(injector: _Injector, *, on: bool) -> Iterator[None]:
    """Tasks that are begun from inside the block tell the injector of their suspensions, and are cancelled by it.

    Those of a server on the same loop, which was started before, are not.
    """
    if not on:
        yield
        return
    loop = asyncio.get_running_loop()
    usual = loop.get_task_factory()
    begun: set[asyncio.Task[Any]] = set()

    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if _injector.get() is not injector:
            return asyncio.Task(coroutine, loop=loop, **options)
        task: asyncio.Task[Any] = asyncio.Task(_Counted(coroutine, injector), loop=loop, **options)
        begun.add(task)
        return task

    def cancel_all() -> None:
        for task in asyncio.all_tasks() & begun:
            task.cancel()

    entered = _injector.set(injector)
    loop.set_task_factory(make_task)
    injector.cancel = cancel_all
    try:
        yield
    finally:
        loop.set_task_factory(usual)
        _injector.reset(entered)


class _Counted(Stepwise[T]):
    """Tells the injector about each suspension, before its task hears of it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], injector: _Injector) -> None:
        super().__init__(coroutine)
        self._injector = injector

    def step(self, advance: Callable[..., Any], *args: Any) -> Any:
        awaited = advance(*args)
        self._injector.suspended()
        return awaited


def assert_cancelled(outcome: Outcome[Any], *, how: CancelBy, times: int = 1) -> None:
    """The operation completed, or ended as one does that was cancelled in this way."""
    if outcome.completed:
        return
    # A second cancel, by the task itself, wins where it comes in time.
    allowed = (_ERRORS[how],) if times == 1 else (_ERRORS[how], asyncio.CancelledError)
    assert isinstance(outcome.error, allowed), f"cancelled by {how} × {times}, ended in {outcome.error!r}"


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
