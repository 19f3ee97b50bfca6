"""Shields: a coroutine that reaches its end whatever happens to its caller, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from asyncckpt._aio.unlisted import start_unlisted

T = TypeVar("T")

# How long a coroutine that overran its shield may take to clean up after its own cancel.
_CLEANUP_SECONDS = 5.0


class ShieldTimeoutError(TimeoutError):
    """A shielded coroutine overran its time; a TimeoutError of the coroutine itself is something else."""


class ShieldBrokenError(RuntimeError):
    """A shielded coroutine was cancelled by somebody else, so what it was about may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Shielded(Generic[T]):
    """How a shielded coroutine ended, and whether its caller was cancelled meanwhile."""

    value: T | None
    error: BaseException | None
    cancellation: asyncio.CancelledError | None

    @property
    def cancelled(self) -> bool:
        """Whether the caller was cancelled while it waited; the request is still counted by the task."""
        return self.cancellation is not None

    def result(self) -> T:
        """The coroutine's result, or its error raised (`TimeoutError` on overrun); never the caller's cancel."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # without an error there is a value

    def raise_if_cancelled(self) -> None:
        """Raise the caller's `CancelledError`, from the coroutine's error if there was one."""
        if self.cancellation is not None:
            raise self.cancellation from self.error


async def shield(coroutine: Coroutine[Any, Any, T], *, timeout: float) -> Shielded[T]:
    """Run the coroutine, as a task of its own, to its end, however often the caller is cancelled.

    Raises nothing: how it ended is in the `Shielded` that comes back. The task is in nobody's list, nor are those
    that it starts: when `asyncio.run` ends, or something else cancels `asyncio.all_tasks()`, the caller is
    cancelled and this is not.
    After `timeout` seconds it is cancelled and awaited for a few seconds more: the outcome is then a
    `ShieldTimeoutError`, unless it ended with a result after all. Where a task that it waits for was cancelled
    from outside, the outcome is a `ShieldBrokenError`. A cancel of the caller is kept in the outcome, first one
    first; the task's count of requests is left alone, so that `asyncio.timeout` and `CancelScope` around it
    still know theirs.
    """
    # It still ends before the loop does: its caller, which is listed, waits for it.
    task = start_unlisted(coroutine)
    cancellation = await _wait_uncancelled(task, timeout)
    if task.done():
        return _outcome_of(task, cancellation)
    task.cancel()
    again = await _wait_uncancelled(task, _CLEANUP_SECONDS)
    cancellation = cancellation or again
    if not task.done():
        still = ShieldTimeoutError(
            f"did not end within {timeout:g} s, nor {_CLEANUP_SECONDS:g} s after its cancel"
        )
        return Shielded(None, still, cancellation)
    outcome = _outcome_of(task, cancellation)
    if outcome.error is None:
        return outcome
    late = ShieldTimeoutError(f"did not end within {timeout:g} s")
    late.__cause__ = outcome.error
    return Shielded(None, late, cancellation)


async def run_shielded(coroutine: Coroutine[Any, Any, T], *, timeout: float) -> T:
    """Run the coroutine to its end like `shield`, then raise the caller's cancel, else its error.

    A `CancelledError` has the coroutine's error, if there was one, as its cause. Raises `ShieldTimeoutError` on
    overrun.
    """
    outcome = await shield(coroutine, timeout=timeout)
    outcome.raise_if_cancelled()
    return outcome.result()


async def _wait_uncancelled(task: asyncio.Future[Any], timeout: float) -> asyncio.CancelledError | None:
    """Wait for the task, at most so long, through any cancel of the caller; returns the first such cancel."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    first: asyncio.CancelledError | None = None
    while not task.done():
        try:
            # Waits at least one turn of the loop, so that a late start still is a start.
            await asyncio.wait([task], timeout=max(0.0, deadline - loop.time()))
        except asyncio.CancelledError as cancellation:
            first = first or cancellation
        if loop.time() >= deadline:
            break
    return first


def _outcome_of(task: asyncio.Future[T], cancellation: asyncio.CancelledError | None) -> Shielded[T]:
    if task.cancelled():
        broken = ShieldBrokenError("was cancelled from outside before it could say how it ended")
        return Shielded(None, broken, cancellation)
    error = task.exception()
    if error is not None:
        return Shielded(None, error, cancellation)
    return Shielded(task.result(), None, cancellation)
