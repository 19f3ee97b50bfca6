"""What can happen to a connection, as errors of ours. Their texts name the host, never the URL: it may be signed."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING

from asyncckpt.errors import StorageTimeoutError, UnavailableError
from asyncckpt.storage.http.status import RefusedError, UnreachableError

if TYPE_CHECKING:
    from asyncckpt.storage.http.connections import ConnectionSettings


class ConnectTimeoutError(StorageTimeoutError):
    """No connection could be made in time: the request was never sent."""


NEVER_SENT = (UnreachableError, ConnectTimeoutError)


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
