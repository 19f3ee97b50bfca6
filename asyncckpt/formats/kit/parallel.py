"""One step of making a file, in threads of its own: several pieces are worked on at a time, and come out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Made = TypeVar("Made")


def map_in_order(
    work: Callable[[T], Made], pieces: Iterable[T], *, threads: int, name: str
) -> Generator[Made, None, None]:
    """`work` of each piece, in order. Pieces are taken only a little ahead of what is asked for.

    The threads end with the generator, also when it is closed or an error comes out of it.
    """
    waiting: deque[Future[Made]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
