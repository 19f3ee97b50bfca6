"""`save`, `load` and `verify` for synchronous code: each call runs an event loop of its own until it is done.

Not for use inside a running loop, where the coroutines themselves are at hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from asyncckpt.operations.load import load as _load
from asyncckpt.operations.location import Location
from asyncckpt.operations.save import SaveResult
from asyncckpt.operations.save import save as _save
from asyncckpt.operations.verify import VerifyReport
from asyncckpt.operations.verify import verify as _verify

__all__ = ["load", "save", "verify"]

T = TypeVar("T")


def save(state: Any, location: Location, **options: Any) -> SaveResult:
    """As `asyncckpt.save`. Raises RuntimeError inside a running event loop."""
    return _run(_save(state, location, **options))


def load(location: Location, **options: Any) -> Any:
    """As `asyncckpt.load`. Raises RuntimeError inside a running event loop."""
    return _run(_load(location, **options))


def verify(location: Location, **options: Any) -> VerifyReport:
    """As `asyncckpt.verify`. Raises RuntimeError inside a running event loop."""
    return _run(_verify(location, **options))


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise RuntimeError(
        "an event loop is running here: await asyncckpt's own functions instead of blocking ones"
    )
