"""Tokens, and the sources that fire them.

Firing is one loop in the thread that fires, through all linked tokens, depth first and each in the order of
registration: no number of callbacks and no length of a chain changes what one of them costs. A callback that raises
stops no other: its error is logged, and `cancel` returns. What is no `Exception` (a Ctrl-C that arrived in there) is
raised by `cancel` once all have run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Self, TypeAlias, cast

from asyncckpt.errors import OperationCancelledError

if TYPE_CHECKING:
    from asyncckpt.cancellation.scopes import CancelScope

_logger = logging.getLogger("asyncckpt")
_Callback: TypeAlias = Callable[[str | None], None]


class CancellationToken:
    """The reading end of a cancellation: fires at most once and stays fired.

    Tokens come from a `CancellationTokenSource`, or from `none()`. All methods may be called from any thread.
    """

    __slots__ = ("_callbacks", "_can_fire", "_fired", "_lock", "_reason", "_scopes")

    def __init__(self, *, _can_fire: bool = False) -> None:
        self._can_fire = _can_fire
        self._fired = False
        self._reason: str | None = None
        # Re-entrant, because a signal handler may call cancel() while this thread holds the lock.
        self._lock = threading.RLock()
        # Ordered, because taking the first key out of a dict costs a look at every one that was taken before it.
        self._callbacks: OrderedDict[object, _Callback] = OrderedDict()
        self._scopes: dict[asyncio.Task[object], CancelScope] = {}

    @staticmethod
    def none() -> CancellationToken:
        """The token that never fires; always the same object."""
        return _NEVER

    @property
    def is_cancelled(self) -> bool:
        """Whether the token has fired."""
        return self._fired

    @property
    def reason(self) -> str | None:
        """The reason given to the first `cancel`, or None."""
        return self._reason

    def raise_if_cancelled(self) -> None:
        """Raise `OperationCancelledError` with the reason if the token has fired."""
        if self._fired:
            raise OperationCancelledError(self._reason)

    def scope(self) -> CancelScope:
        """A context manager (`with` or `async with`) that cancels its body when the token fires."""
        from asyncckpt.cancellation.scopes import CancelScope

        return CancelScope(self)

    def add_callback(self, callback: _Callback) -> Callable[[], None]:
        """Call `callback(reason)` once, when the token fires (at once if it has); returns the way to unregister.

        The callback runs in the thread that fires the token and must not block. If it raises, the error is logged
        and the other callbacks run all the same.
        """
        if not self._can_fire:
            return nothing
        key = object()
        with self._lock:
            self._callbacks[key] = callback
        # Insert first and look afterwards: a token that fires in between finds the callback or is seen here.
        if self._fired and self._take(key) is not None:
            _Firing(self._reason).run(callback)
        return lambda: self._remove_callback(key)

    def _remove_callback(self, key: object) -> None:
        self._take(key)

    def _take(self, key: object) -> _Callback | None:
        """Take a callback out, if it is still there: whoever does is the one to run it."""
        with self._lock:
            return self._callbacks.pop(key, None)

    def _take_first(self) -> _Callback | None:
        with self._lock:
            return self._callbacks.popitem(last=False)[1] if self._callbacks else None

    def _mark(self, reason: str | None) -> bool:
        """Fired from here on; False if it was before."""
        with self._lock:
            if self._fired:
                return False
            self._reason = reason
            self._fired = True
            return True

    def __repr__(self) -> str:
        if not self._can_fire:
            return "CancellationToken.none()"
        return (
            f"<CancellationToken cancelled, reason={self._reason!r}>"
            if self._fired
            else "<CancellationToken>"
        )


class CancellationTokenSource:
    """The writing end of a cancellation; `close` (or the end of its `with` block) drops timer and links."""

    def __init__(self) -> None:
        self._token = CancellationToken(_can_fire=True)
        self._unlink: list[Callable[[], None]] = []
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._closed = False

    @classmethod
    def linked(cls, *tokens: CancellationToken) -> Self:
        """A source that fires when any of the tokens fires, with that token's reason."""
        source = cls()
        source._unlink = [token.add_callback(source.cancel) for token in tokens]
        return source

    @property
    def token(self) -> CancellationToken:
        """The token that this source fires."""
        return self._token

    def cancel(self, reason: str | None = None) -> None:
        """Fire the token. Thread-safe and idempotent: the first reason stays.

        Callbacks and linked tokens have run when it returns, those excepted that another thread is running. None
        of their errors comes out here: they are logged.
        """
        firing = _Firing(reason)
        firing.enter(self)
        firing.drain()

    def cancel_after(self, seconds: float, reason: str | None = None) -> None:
        """Fire the token after so many seconds of the running loop; replaces an earlier `cancel_after`.

        Raises `ValueError` for a negative or infinite delay, `RuntimeError` without a running loop or after
        `close`.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"cancel_after needs a finite number of seconds >= 0, got {seconds}")
        if self._closed:
            raise RuntimeError("this cancellation token source is closed")
        loop = asyncio.get_running_loop()
        self._stop_timer()
        if not self._token.is_cancelled:
            self._timer = (loop, loop.call_later(seconds, self.cancel, reason))

    def close(self) -> None:
        """Drop the timer and the links; the token keeps its state and `cancel` still works. Idempotent."""
        self._closed = True
        self._stop_timer()
        unlink, self._unlink = self._unlink, []
        for remove in unlink:
            remove()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is None:
            return
        loop, handle = timer
        if asyncio._get_running_loop() is loop:
            handle.cancel()
        else:
            call_on_loop(loop, handle.cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Firing:
    """One pass over the callbacks of a token that fires and of all tokens linked to it, with one reason.

    The tokens that are under way stand in a list and not on Python's stack, which a long chain would overflow.
    """

    def __init__(self, reason: str | None) -> None:
        self._reason = reason
        self._tokens: list[CancellationToken] = []
        self._interrupt: BaseException | None = None

    def run(self, callback: _Callback) -> None:
        """One callback, and whatever it leads to."""
        self._call(callback)
        self.drain()

    def enter(self, source: CancellationTokenSource) -> None:
        """Fire the source's token; its callbacks are the next to run."""
        if source._token._mark(self._reason):
            self._tokens.append(source._token)
        source._stop_timer()

    def drain(self) -> None:
        while self._tokens:
            callback = self._tokens[-1]._take_first()
            if callback is None:
                self._tokens.pop()
            else:
                self._call(callback)
        if self._interrupt is not None:
            raise self._interrupt

    def _call(self, callback: _Callback) -> None:
        linked = _source_of(callback)
        try:
            if linked is None:
                callback(self._reason)
            else:
                self.enter(linked)
        except (Exception, asyncio.CancelledError):
            # Nothing is awaited in there, so even a CancelledError is the callback's own mistake.
            _logger.exception("a cancellation callback failed; the others run all the same")
        except BaseException as error:
            if self._interrupt is None:
                self._interrupt = error


def _source_of(callback: _Callback) -> CancellationTokenSource | None:
    """The source whose own `cancel` the callback is, which is how tokens are linked."""
    if isinstance(callback, MethodType) and callback.__func__ is CancellationTokenSource.cancel:
        return cast("CancellationTokenSource", callback.__self__)
    return None


def call_on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        # The loop is closed, so the task it would have cancelled is over.
        return


def nothing() -> None:
    return None


_NEVER = CancellationToken()
