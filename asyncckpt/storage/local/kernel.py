"""Three Linux calls that `os` does not offer. Each says whether it could do its work."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import lru_cache
from typing import Any

_RENAME_NOREPLACE = 1
_SYNC_WAIT_BEFORE, _SYNC_WRITE, _SYNC_WAIT_AFTER = 1, 2, 4
_NOT_HERE = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ESPIPE})


@lru_cache(maxsize=8)
def _function(name: str, *types: Any) -> Any:
    """The C library's function, or None on systems without it."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = types
        function.restype = ctypes.c_int
    return function


def _call(function: Any, *args: Any) -> bool:
    """True when it worked, False when there is no such thing here. Raises OSError otherwise."""
    if function is None:
        return False
    while function(*args) != 0:
        code = ctypes.get_errno()
        if code in _NOT_HERE:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def reserve_space(descriptor: int, size: int) -> bool:
    """Have the file system set the space aside. `posix_fallocate` would write zeros where it can't."""
    function = _function("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return _call(function, descriptor, 0, 0, size)


def start_writeback(descriptor: int, start: int, size: int) -> bool:
    """Ask for the range to go to the disk now, without waiting for it."""
    return _sync_range(descriptor, start, size, _SYNC_WRITE)


def finish_writeback(descriptor: int, start: int, size: int) -> bool:
    """Wait until the range has gone to the disk; the file's size and place are not synced by this."""
    return _sync_range(descriptor, start, size, _SYNC_WAIT_BEFORE | _SYNC_WRITE | _SYNC_WAIT_AFTER)


def _sync_range(descriptor: int, start: int, size: int, flags: int) -> bool:
    function = _function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return _call(function, descriptor, start, size, flags)


def rename_exclusively(folder: int, source: str, target: str) -> bool:
    """Rename within one folder unless the target exists. Raises FileExistsError."""
    types = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function = _function("renameat2", *types)
    return _call(function, folder, os.fsencode(source), folder, os.fsencode(target), _RENAME_NOREPLACE)
