"""Requests and answers over HTTP, as values, and how the small ones are read: nothing here moves large bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from asyncckpt.storage.urls import host_of

MAX_ERROR_BODY_BYTES = 64 * 1024
"""What is read of an answer that is no success: enough for every reason, too little to fill the memory."""
SLICE_BYTES = 1024 * 1024
"""What one call receives: large enough to be cheap, small enough to be hashed while it is in the cache."""


@dataclass(frozen=True)
class HttpRequest:
    """A signed request. Its URL is a secret: it is never logged, nor part of an error."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        return host_of(self.url)


@dataclass(frozen=True)
class HttpAnswer:
    """The status and the headers of an answer; `body` is empty when a receiver took it."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Receiver(Protocol):
    """Takes the body of a successful answer."""

    def views(self, answer: HttpAnswer) -> Iterator[memoryview]:
        """The views to fill, one after another; asking for the next one means that the last is full.

        What the answer holds beyond them is not read. Runs in the worker thread.
        """


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
