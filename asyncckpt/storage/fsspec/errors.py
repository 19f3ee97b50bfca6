"""Errors of fsspec filesystems, translated once: by HTTP status where there is one, then by type and errno."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable
from typing import TypeVar

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
from asyncckpt.storage.fsspec.clean_logs import logs_without
from asyncckpt.storage.http.errors import error_for_status
from asyncckpt.storage.urls import Secrets

T = TypeVar("T")

_BY_TYPE: tuple[tuple[type[Exception], type[StorageError], str], ...] = (
    (FileNotFoundError, ObjectNotFoundError, "it does not exist"),
    (FileExistsError, ObjectExistsError, "it exists already"),
    (
        NotADirectoryError,
        UnsupportedOperationError,
        "part of its path is a file; choose another key",
    ),
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
_SAID_CHARACTERS = 500
# A mistake in a program, ours or the driver's, is not a message of the medium.
_MISTAKES = (TypeError, AttributeError, NameError, AssertionError, LookupError)


async def translating(what: str, call: Awaitable[T], secrets: Secrets) -> T:
    """Await a call of a filesystem; every error of it becomes the StorageError that it means.

    The driver's own error is dropped, because it may hold a URL with a password: its text, without secrets, is kept
    as `driver_said`. A mistake in a program stays what it is.
    """
    try:
        with logs_without(secrets):
            return await call
    except AsyncCkptError:
        raise
    except Exception as error:
        if isinstance(error, _MISTAKES) and http_status(error) is None and not _tells(error, secrets):
            raise
        problem = translated(error, what, secrets)
    # Here, because an error that is raised inside of `except` carries the other one along as its context.
    raise problem


def _tells(error: BaseException, secrets: Secrets) -> bool:
    """Whether a secret stands in the error, or in one that it carries along."""
    seen: BaseException | None = error
    while seen is not None:
        if secrets.are_in(f"{seen} {seen!r}"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def translated(error: Exception, what: str, secrets: Secrets | None = None) -> StorageError:
    """The storage error for what a filesystem raised while it did `what`."""
    problem = _meaning(error, what)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    problem.driver_said = (secrets or Secrets()).without(said)[:_SAID_CHARACTERS]
    return problem


def _meaning(error: Exception, what: str) -> StorageError:
    status = http_status(error)
    if status is not None and status >= 400:
        return error_for_status(status, what)
    beneath = _beneath(error)
    if beneath is not None:
        return _meaning(beneath, what)
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
