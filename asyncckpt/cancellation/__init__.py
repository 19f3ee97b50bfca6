"""Cancellation tokens, and how they become asyncio cancellation.

A token enters at a public call, becomes one cancel request of the calling task, and is translated back once:

    source = CancellationTokenSource()
    async with source.token.scope():      # source.cancel("shutting down"), from any thread
        await work()                      # ends in OperationCancelledError("shutting down")

The scope keeps the same books as `asyncio.timeout`: it withdraws its own request with `Task.uncancel` and
compares what is left with the count at entry, so timeouts, task groups and real cancels around or inside it
keep their meaning. A real `task.cancel()` stays a `CancelledError`, also when the token fired as well.
"""

from asyncckpt.cancellation.scopes import CancelScope, cancel_scope
from asyncckpt.cancellation.tokens import CancellationToken, CancellationTokenSource

__all__ = ["CancelScope", "CancellationToken", "CancellationTokenSource", "cancel_scope"]
