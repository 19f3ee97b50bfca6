"""The memory of one staged copy, and how it is given back without holding up the event loop.

Whoever drops the last reference to a gigabyte pays for its pages: a millisecond where the kernel had huge pages for
it, a tenth of a second where it had none, with the GIL held, in a worker thread too. So the pages are given back
first, by a call that does not hold the GIL; what is left to be freed is an empty range of addresses.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

_PAGE_BYTES = 2 * 1024 * 1024
"""The largest pages; the ragged ends of a pool are left to the allocator."""
_SLICE_BYTES = 64 * 1024 * 1024
_MADV_DONTNEED = 4


class StagingPool:
    """Memory for the staged copy of one save: written through `memory`, read through `view`, and then released."""

    def __init__(self, array: np.ndarray) -> None:
        self._array: np.ndarray | None = array
        self.memory = array.data
        """All of it, as bytes. They are not cleared."""
        self.view = self.memory.toreadonly()
        """The same, so that nobody can write through it."""

    @classmethod
    def of(cls, size: int) -> StagingPool:
        """New memory, whose pages come one by one, as they are first touched."""
        return cls(np.empty(size, np.uint8))

    def take_back(self) -> np.ndarray | None:
        """The memory, which can't be read or written through this pool any more; None where somebody still uses it.

        What a straggler still has of a view keeps the whole memory as it is.
        """
        for view in (self.view, self.memory):
            with suppress(BufferError):  # it is being read
                view.release()
        array, self._array = self._array, None
        # Two: the variable and the argument. Whatever is in use of it counts as one more.
        return array if array is not None and sys.getrefcount(array) <= 2 else None


def give_back(array: np.ndarray) -> None:
    """Let the pages of memory that nobody uses go. Blocks."""
    _give_back_pages(array.ctypes.data, array.nbytes)


def fault_in(array: np.ndarray) -> None:
    """Touch memory, so that its pages are there when they are needed. Blocks, without the GIL."""
    for start in range(0, array.nbytes, _SLICE_BYTES):
        array[start : start + _SLICE_BYTES] = 0


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
