"""Errors of the operating system, translated once, by errno."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from asyncckpt.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
    UnavailableError,
    UnsupportedOperationError,
)

_BY_ERRNO: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOENT: (ObjectNotFoundError, "there is no such file"),
    errno.EEXIST: (ObjectExistsError, "it exists already"),
    errno.EACCES: (AccessDeniedError, "permission denied; check the folder's owner and mode"),
    errno.EPERM: (AccessDeniedError, "the operation is not permitted; check the folder's owner and mode"),
    errno.EROFS: (AccessDeniedError, "the file system is read-only"),
    errno.ENOSPC: (StorageFullError, "no space is left on the disk; free some"),
    errno.EDQUOT: (StorageFullError, "the disk quota is used up; free some space"),
    errno.EFBIG: (StorageFullError, "the file is larger than the file system or the limit allows"),
    errno.ENAMETOOLONG: (InvalidKeyError, "the name is too long for the file system"),
    errno.EILSEQ: (InvalidKeyError, "the file system does not take this name"),
    errno.ELOOP: (InvalidKeyError, "it is a symbolic link, and links are not followed; name its target"),
    errno.EISDIR: (UnsupportedOperationError, "a folder of that name is in the way; choose another key"),
    errno.ENOTDIR: (UnsupportedOperationError, "part of its path is a file; choose another key"),
    errno.EOPNOTSUPP: (UnsupportedOperationError, "the file system does not support it"),
    errno.ETIMEDOUT: (StorageTimeoutError, "the file system did not answer in time"),
    errno.EMFILE: (UnavailableError, "too many open files; raise the limit (ulimit -n)"),
    errno.ENFILE: (UnavailableError, "too many open files on this machine"),
    errno.EIO: (UnavailableError, "input/output error; check the disk"),
    errno.ESTALE: (UnavailableError, "the network file system lost the file"),
}


def translated(error: OSError, key: str) -> StorageError:
    """The storage error for what the operating system said about `key`."""
    code = error.errno or 0
    kind, text = _BY_ERRNO.get(code, (StorageError, os.strerror(code) if code else str(error)))
    name = errno.errorcode.get(code, f"errno {code}")
    return kind(f"{key!r}: {text} ({name})")


@contextmanager
def storage_errors(key: str) -> Iterator[None]:
    """Within the block an OSError becomes the StorageError that it means."""
    try:
        yield
    except StorageError:
        # Some are OSErrors too, and say all there is to say.
        raise
    except OSError as error:
        raise translated(error, key) from error
