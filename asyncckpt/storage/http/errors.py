"""What an HTTP status means, and what can happen to a connection, as errors of ours.

Decided by numbers and types, never by a text. The errors' own texts name the host, never the URL: it may be signed.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING

from asyncckpt.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StorageTimeoutError,
    UnavailableError,
)

if TYPE_CHECKING:
    from asyncckpt.storage.http.connections import ConnectionSettings

_KINDS: dict[int, type[StorageError]] = {
    401: AccessDeniedError,
    403: AccessDeniedError,
    404: ObjectNotFoundError,
    408: StorageTimeoutError,
    409: UnavailableError,  # another request on the same object is under way
    412: ObjectExistsError,
    416: RangeError,
    429: UnavailableError,
    504: StorageTimeoutError,
}
_ADVICE: dict[type[StorageError], str] = {
    AccessDeniedError: "check the credentials and their permissions",
    ObjectNotFoundError: "check the bucket and the key",
    UnavailableError: "try later",
    StorageTimeoutError: "try later",
}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""They are never followed: whoever is at the other end would get the credentials, and would be believed."""


class UnreachableError(UnavailableError):
    """No connection could be made: the request was never sent."""


class RefusedError(UnreachableError):
    """Nobody listens there at this moment: a server that is being restarted, or an address that is wrong."""


class OddAnswerError(StorageError):
    """The server answered, but not what was asked: something else may stand in its place, or before it."""


class ConnectTimeoutError(StorageTimeoutError):
    """No connection could be made in time: the request was never sent."""


NEVER_SENT = (UnreachableError, ConnectTimeoutError)
"""After these a request can't have had an effect."""
UNTOLD = (UnavailableError, StorageTimeoutError, OddAnswerError)
"""After these, unless it was never sent, a request may have had its effect."""


def odd_answer(what: str, problem: str) -> OddAnswerError:
    """The error for such an answer to `what`."""
    return OddAnswerError(
        f"{what}: {problem}; check that the endpoint is the object store, not a page before it"
    )


def error_for_status(status: int, what: str, *, detail: str = "") -> StorageError:
    """The error for an answer with that status; `what` was tried, `detail` is what the server said of it."""
    kind = _KINDS.get(status) or (UnavailableError if status >= 500 else StorageError)
    said = f"HTTP {status}, {detail}" if detail else f"HTTP {status}"
    advice = _ADVICE.get(kind)
    if status < 300:
        return odd_answer(what, said)
    if status in REDIRECTS:
        advice = "a redirect is not followed, check the endpoint"
    return kind(f"{what}: {said}" + (f"; {advice}" if advice else ""))


def connect_error(
    error: Exception, host: str, settings: ConnectionSettings
) -> UnreachableError | ConnectTimeoutError:
    """The error for a connection that could not be made."""
    import urllib3  # there already: a connection was tried

    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError):
        return ConnectTimeoutError(
            f"{host} can't be reached: no connection within {settings.connect_timeout:g} s"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnreachableError(
            f"the certificate of {host} is not trusted ({error.verify_message}); "
            "pass its certificate authority as client_kwargs={'verify': 'ca.pem'}"
        )
    if isinstance(error, socket.gaierror):
        return UnreachableError(f"{host} can't be found ({error.strerror}); check the endpoint")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return RefusedError(f"{host} can't be reached ({reason}); check the endpoint")


def talk_error(
    error: Exception, host: str, settings: ConnectionSettings
) -> StorageTimeoutError | UnavailableError:
    """The error for a connection that broke, or fell silent, after it was made."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return StorageTimeoutError(f"{host} was silent for {settings.read_timeout:g} s")
    if isinstance(error, http.client.IncompleteRead):
        return UnavailableError(f"{host} closed the connection {error.expected} bytes too early")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return UnavailableError(f"{host} closed the connection ({reason})")
