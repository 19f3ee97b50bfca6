"""What an HTTP status means, for every storage that hears one. Decided by the number, never by the text."""

from __future__ import annotations

from asyncckpt.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StorageTimeoutError,
    UnavailableError,
)

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


def error_for_status(status: int, what: str, *, detail: str = "") -> StorageError:
    """The error for an answer with that status; `what` was tried, `detail` is what the server said of it."""
    kind = _KINDS.get(status) or (UnavailableError if status >= 500 else StorageError)
    said = f"HTTP {status}, {detail}" if detail else f"HTTP {status}"
    advice = _ADVICE.get(kind)
    return kind(f"{what}: {said}" + (f"; {advice}" if advice else ""))
