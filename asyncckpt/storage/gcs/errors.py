"""What went wrong in a request to GCS, as an error of ours.

Messages of the HTTP client can hold a session URI, which is a secret: what is raised here repeats neither its
text nor its URL, and does not chain it.
"""

from __future__ import annotations

import errno
import json
import os

from asyncckpt.errors import AccessDeniedError, StorageError, StorageTimeoutError, UnavailableError
from asyncckpt.storage.http.errors import RefusedError, error_for_status

_DETAIL_CHARACTERS = 200


class NotSentError(RefusedError):
    """No connection could be had, so the request can't have had an effect."""


def answer_error(status: int, content: bytes, what: str) -> StorageError:
    """The error for an answer that refuses."""
    return error_for_status(status, what, detail=_detail(content))


def _detail(content: bytes) -> str:
    """Google's own reason and message, on one line; nothing that could hold a session URI."""
    try:
        error = json.loads(content)["error"]
        reason, message = str(error["errors"][0]["reason"]), str(error["message"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    line = " ".join(f"{reason}: {message}".split())[:_DETAIL_CHARACTERS]
    return "" if "upload_id" in line or "://" in line else line


def connection_error(error: Exception, what: str, endpoint: str) -> StorageError:
    """The error for a request that got no whole answer."""
    import aiohttp

    if isinstance(error, TimeoutError):
        return StorageTimeoutError(f"{what}: {endpoint} did not answer in time; try later")
    cause = type(error).__name__ + _named_errno(error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return NotSentError(
            f"{what}: no connection to {endpoint} ({cause}); check the endpoint, or try later"
        )
    return UnavailableError(f"{what}: the connection to {endpoint} broke ({cause}); try later")


def _named_errno(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return f", {os.strerror(number)}" if isinstance(number, int) and number in errno.errorcode else ""


def credentials_error(error: Exception, what: str) -> StorageError:
    """The error for credentials that can't be had or renewed. `requests` errors are a lost connection."""
    import google.auth.exceptions
    import requests

    if isinstance(error, google.auth.exceptions.TransportError | requests.exceptions.RequestException):
        return NotSentError(f"{what}: the token server can't be reached ({type(error).__name__}); try later")
    return AccessDeniedError(
        f"{what}: no credentials for GCS ({type(error).__name__}); pass token= in storage_options, "
        "or set up application default credentials"
    )
