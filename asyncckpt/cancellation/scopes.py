"""Scopes: where a token becomes one cancel request of the calling task, and is translated back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from asyncckpt.cancellation.tokens import CancellationToken, call_on_loop, nothing
from asyncckpt.errors import OperationCancelledError


class CancelScope:
    """Cancels its body when a token fires. Made by `CancellationToken.scope`, used once, by one task.

    - A token that has fired before entry raises `OperationCancelledError` on entry.
    - A token that fires later cancels the task through its loop (never from within the body, so that no
      request can be pending when the block ends) and leaves the block as `OperationCancelledError`, from the
      `CancelledError`.
    - Another cancel of the task, before or after, wins: the `CancelledError` passes.
    - When the body ends first, a request not yet delivered is dropped.
    - A scope of the same token inside this one, in the same task, delivers and translates nothing of its own.
    """

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._task: asyncio.Task[object] | None = None
        self._outer: CancelScope | None = None
        self._unregister: Callable[[], None] = nothing
        self._cancelling_at_entry = 0
        self._entered = False
        self._armed = False
        self._delivered = False
        self._committed = False
        self._ignored_by = 0

    @property
    def token(self) -> CancellationToken:
        """The token of this scope."""
        return self._token

    @property
    def owns_cancellation(self) -> bool:
        """Whether the token cancelled the task, and nobody else has since entry.

        Tells code that absorbed a `CancelledError` (see `shield`) whose it was; to be asked before `commit`,
        which withdraws the request.
        """
        scope = self._outer or self
        if scope._task is None or not scope._delivered:
            return False
        return scope._task.cancelling() - 1 <= scope._cancelling_at_entry

    def commit(self) -> bool:
        """From here to the end of this scope the token is ignored: the point of no return.

        A request that the token has delivered and nobody has acted on is withdrawn; returns True in that
        case. Never raises for a fired token. To be called by the task that entered the scope (`RuntimeError`
        otherwise), just before the shielded commit, without an await in between. An enclosing scope of the
        same token ignores it too until this one ends, and delivers then.
        """
        if self._task is None or asyncio.current_task() is not self._task:
            raise RuntimeError("commit() is for the task that entered the cancel scope, while it is open")
        if self._committed:
            return False
        self._committed = True
        return (self._outer or self)._begin_ignoring()

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a cancel scope needs a running task")
        if self._entered:
            raise RuntimeError("a cancel scope can be entered only once")
        self._entered = True
        self._outer = self._token._scopes.get(task)
        if self._outer is None or not self._outer._ignored_by:
            self._token.raise_if_cancelled()
        self._task = task
        if self._outer is None and self._token._can_fire:
            self._arm(task)
        return self

    def _arm(self, task: asyncio.Task[object]) -> None:
        loop = asyncio.get_running_loop()
        self._cancelling_at_entry = task.cancelling()
        self._armed = True
        self._token._scopes[task] = self
        self._unregister = self._token.add_callback(lambda _: call_on_loop(loop, self._deliver))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, outer = self._task, self._outer
        assert task is not None, "exit without entry"
        self._task = None
        if outer is not None:
            if self._committed:
                outer._end_ignoring()
            return
        self._disarm(task)
        if self._withdraw(task) and isinstance(exc, asyncio.CancelledError):
            raise OperationCancelledError(self._token.reason) from exc

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(exc_type, exc, traceback)

    def _disarm(self, task: asyncio.Task[object]) -> None:
        if self._armed:
            self._armed = False
            self._unregister()
            self._token._scopes.pop(task, None)

    def _deliver(self) -> None:
        if self._task is not None and self._armed and not self._delivered and not self._ignored_by:
            self._delivered = True
            self._task.cancel()

    def _withdraw(self, task: asyncio.Task[object]) -> bool:
        """Take a delivered request back; whether it was there and the only one since entry."""
        if not self._delivered:
            return False
        self._delivered = False
        return task.uncancel() <= self._cancelling_at_entry

    def _begin_ignoring(self) -> bool:
        self._ignored_by += 1
        delivered = self._delivered
        if self._task is not None:
            self._withdraw(self._task)
        return delivered

    def _end_ignoring(self) -> None:
        self._ignored_by -= 1
        if self._token.is_cancelled and self._task is not None:
            call_on_loop(self._task.get_loop(), self._deliver)


def cancel_scope(token: CancellationToken | None) -> CancelScope:
    """The scope that a public call runs in: `async with cancel_scope(cancellation) as scope`. None: no token."""
    return CancelScope(token or CancellationToken.none())
