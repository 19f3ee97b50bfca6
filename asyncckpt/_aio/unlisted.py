"""Tasks that `asyncio.all_tasks()` does not show, so that only those who started them can cancel them.

When `asyncio.run` ends it cancels every task that is listed, and other code does the same. Work that has to reach
its end must not be hit by that; nor must the tasks that drivers start for each request: cancelled behind its back,
aiohttp sends half a body and waits for an answer, or never resolves a host again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from asyncckpt._aio.stepwise import Stepwise

T = TypeVar("T")


def start_unlisted(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that is not listed, nor are those that it starts. Whoever starts it waits for its end."""
    task = asyncio.ensure_future(StartingUnlisted(coroutine))
    asyncio.tasks._unregister_task(task)
    return task


class StartingUnlisted(Stepwise[T]):
    """The coroutine; the tasks that it starts are not listed, and neither are theirs.

    A step is synchronous, so nobody else meets the loop's task factory while it is ours.
    """

    def step(self, advance: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        usual = loop.get_task_factory()
        loop.set_task_factory(partial(_make_unlisted, usual))
        try:
            return advance(*args)
        finally:
            loop.set_task_factory(usual)


def _make_unlisted(usual: Any, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    unlisted = StartingUnlisted(coroutine)
    task = asyncio.Task(unlisted, loop=loop, **options) if usual is None else usual(loop, unlisted, **options)
    asyncio.tasks._unregister_task(task)
    return task
