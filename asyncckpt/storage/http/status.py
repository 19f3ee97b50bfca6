"""What an HTTP status means, for every storage that hears one. Decided by the number, never by the text."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

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


MAX_ERROR_BODY_BYTES = 64 * 1024
"""What is read of an answer that is not a success: enough for every reason, too little to fill the memory."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""They are never followed: whoever is at the other end would get the credentials, and would be believed."""


async def read_limited(content: Any, limit: int) -> bytes:
    """At most `limit` bytes of an answer's content, as aiohttp has it; there may be more."""
    found = bytearray()
    while len(found) < limit and (piece := await content.read(limit - len(found))):
        found += piece
    return bytes(found)


def parsed_date(text: str | None) -> datetime | None:
    """An HTTP date, with its time zone; None for one that is missing or unreadable: nothing depends on it."""
    try:
        found = parsedate_to_datetime(text or "")
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class UnreachableError(UnavailableError):
    """No connection could be made: the request was never sent."""


class RefusedError(UnreachableError):
    """Nobody listens there at this moment: a server that is being restarted, or an address that is wrong."""


class OddAnswerError(StorageError):
    """The server answered, but not what was asked: something else may stand in its place, or before it."""


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
