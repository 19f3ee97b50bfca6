"""Errors of fsspec filesystems, translated once: by HTTP status where there is one, then by type and errno."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from asyncckpt.errors import (
    AccessDeniedError,
    AsyncCkptError,
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
    UnavailableError,
    UnsupportedOperationError,
)
from asyncckpt.storage.http_status import error_for_status

_BY_TYPE: tuple[tuple[type[Exception], type[StorageError], str], ...] = (
    (FileNotFoundError, ObjectNotFoundError, "it does not exist"),
    (FileExistsError, ObjectExistsError, "it exists already"),
    (PermissionError, AccessDeniedError, "permission denied; check the credentials and their permissions"),
    (TimeoutError, StorageTimeoutError, "no answer in time; try later"),
    (asyncio.TimeoutError, StorageTimeoutError, "no answer in time; try later"),
    (
        ConnectionRefusedError,
        UnavailableError,
        "the connection was refused; check the address, or try later",
    ),
    (socket.gaierror, UnavailableError, "the host's name can't be resolved; check the address"),
    (ConnectionError, UnavailableError, "the connection broke; try later"),
)
_BY_ERRNO: dict[int, type[StorageError]] = {
    errno.EROFS: AccessDeniedError,
    errno.ENOSPC: StorageFullError,
    errno.EDQUOT: StorageFullError,
    errno.EFBIG: StorageFullError,
    errno.ENAMETOOLONG: InvalidKeyError,
    errno.EISDIR: UnsupportedOperationError,
    errno.ENOTDIR: UnsupportedOperationError,
    errno.ENETDOWN: UnavailableError,
    errno.ENETUNREACH: UnavailableError,
    errno.EHOSTUNREACH: UnavailableError,
    errno.EAGAIN: UnavailableError,
    errno.EBUSY: UnavailableError,
    errno.EIO: UnavailableError,
    errno.ESTALE: UnavailableError,
    errno.EMFILE: UnavailableError,
}
_QUERY = re.compile(r"\?[^\s'\"]+")
# A mistake in a program, ours or the driver's, is no message of the medium.
_MISTAKES = (TypeError, AttributeError, NameError, AssertionError, LookupError)


@contextmanager
def filesystem_errors(what: str) -> Iterator[None]:
    """Within the block every error of a filesystem becomes the StorageError that it means."""
    try:
        yield
    except AsyncCkptError:
        raise
    except _MISTAKES as error:
        if http_status(error) is None:
            raise
        raise translated(error, _unsigned(what)) from _cause(error, what)
    except Exception as error:
        raise translated(error, _unsigned(what)) from _cause(error, what)


def _unsigned(what: str) -> str:
    """Without the query of a URL: in a signed one it is the secret."""
    return _QUERY.sub("?…", what)


def _cause(error: Exception, what: str) -> Exception | None:
    """The driver's error, unless its text may repeat a signed URL."""
    return None if _QUERY.search(what) else error


def translated(error: Exception, what: str) -> StorageError:
    """The storage error for what a filesystem raised while it did `what`."""
    status = http_status(error)
    if status is not None and status >= 400:
        return error_for_status(status, what)
    beneath = _beneath(error)
    if beneath is not None:
        return translated(beneath, what)
    for kind, ours, text in _BY_TYPE:
        if isinstance(error, kind):
            return ours(f"{what}: {text}")
    if _is_transport_error(error):
        return UnavailableError(
            f"{what}: no connection ({type(error).__name__}); check the address, or try later"
        )
    if isinstance(error, OSError) and error.errno:
        ours = _BY_ERRNO.get(error.errno, StorageError)
        return ours(f"{what}: {os.strerror(error.errno).lower()}")
    return StorageError(f"{what} failed: {type(error).__name__}")


def _beneath(error: Exception) -> Exception | None:
    """What a driver that says "not found" for every failure was told itself: fsspec's HTTP does that."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return None
    unreached = _is_transport_error(cause) or isinstance(
        cause, ConnectionError | TimeoutError | socket.gaierror
    )
    return cause if unreached else _beneath(cause)


def http_status(error: BaseException) -> int | None:
    """The HTTP status behind an error or its cause: aiohttp's, botocore's, Google's or Azure's."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            status = getattr(seen, "status_code", None) or getattr(seen, "status", None)
            status = status or getattr(seen, "code", None)
        if isinstance(status, int) and 100 <= status <= 599:
            return status
        seen = seen.__cause__
    return None


def _is_transport_error(error: Exception) -> bool:
    """Whether the driver's HTTP client lost its connection; told by the class, without importing any client."""
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(
        ("aiohttp" in modules and "ClientError" in names)
        or ("botocore" in modules and "HTTPClientError" in names)
        or ("azure" in modules and "AzureError" in names and "HttpResponseError" not in names)
    )
