"""The memory of one staged copy, and how it is given back without holding up the event loop.

Whoever drops the last reference to a gigabyte pays for its pages: a millisecond where the kernel had huge pages for
it, a tenth of a second where it had none, with the GIL held, in a worker thread too. So the pages are given back
first, by a call that does not hold the GIL; what is left to be freed is an empty range of addresses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any

import numpy as np

from asyncckpt._aio import WorkerThreads, run_shielded
from asyncckpt.storage.base import CLEANUP_TIMEOUT

_PAGE_BYTES = 2 * 1024 * 1024
"""The largest pages; the ragged ends of a pool are left to the allocator."""
_SLICE_BYTES = 64 * 1024 * 1024
_MADV_DONTNEED = 4


class StagingPool:
    """Memory for views that one save reads, and nobody after it."""

    def __init__(self) -> None:
        self._memory: np.ndarray | None = None
        self._views: list[memoryview] = []

    def allocate(self, size: int) -> None:
        """Get so many bytes; they are not cleared."""
        self._memory = np.empty(size, np.uint8)

    def view(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the memory, until it is released."""
        assert self._memory is not None, "allocated first"
        view = self._memory[start:end].data
        self._views.append(view)
        return view

    def read_only(self, views: Sequence[memoryview]) -> list[memoryview]:
        """The views, which may be of other memory too, so that nobody can write through them."""
        made = [view.toreadonly() for view in views]
        self._views += made
        return made

    def release(self) -> None:
        """Give the memory back. Blocks.

        The views can't be read any more. What a straggler still has of one keeps the whole memory as it is.
        """
        for view in self._views:
            with suppress(BufferError):  # it is being read
                view.release()
        self._views.clear()
        memory, self._memory = self._memory, None
        # Two: the variable and the argument. Whatever is in use of it counts as one more.
        if memory is not None and sys.getrefcount(memory) <= 2:
            _give_back_pages(memory.ctypes.data, memory.nbytes)


@asynccontextmanager
async def staging_pool(threads: WorkerThreads) -> AsyncIterator[StagingPool]:
    """A pool that is given back, in a thread, however the block ends."""
    pool = StagingPool()
    try:
        yield pool
    finally:
        await run_shielded(threads.run(pool.release), timeout=CLEANUP_TIMEOUT)


def _give_back_pages(address: int, size: int) -> None:
    """Drop the contents of whole pages of private memory. Nothing depends on it: where it fails, the allocator does
    it later."""
    advise = _madvise()
    if advise is None:
        return
    start, end = -(-address // _PAGE_BYTES) * _PAGE_BYTES, (address + size) // _PAGE_BYTES * _PAGE_BYTES
    for position in range(start, end, _SLICE_BYTES):
        if advise(position, min(_SLICE_BYTES, end - position), _MADV_DONTNEED) != 0:
            return


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """The C library's function, called without the GIL; None where it means something else than on Linux."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function
