"""Requests and answers over HTTP, as values: what the S3 modules speak of without importing what moves the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from asyncckpt.storage.urls import host_of

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
