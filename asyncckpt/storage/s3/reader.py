"""One version of an S3 object: ranges of it, several at a time, straight into the caller's buffers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from asyncckpt._aio import fan_out
from asyncckpt.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    UnsupportedOperationError,
)
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.base import ObjectInfo, ObjectReader
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.http.messages import SLICE_BYTES, HttpAnswer, HttpRequest, parsed_date
from asyncckpt.storage.landing import Buffers, Landing
from asyncckpt.storage.s3.answers import required
from asyncckpt.storage.s3.objects import WRITE_ID_HEADER, S3Object, bare_etag
from asyncckpt.storage.s3.plan import RangeCut, plan_ranges

_SIGNATURE_REUSED_SECONDS = 60.0
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_LENGTH = re.compile(r"\d{1,19}", re.ASCII)


async def open_s3_reader(target: S3Object, *, first_bytes: int, concurrency: int) -> S3Reader:
    """Pin the object as it is now, with its first bytes, in one request. Raises ObjectNotFoundError."""
    if first_bytes <= 0:
        return S3Reader(target, await target.head(), b"", concurrency=concurrency)
    session, what = target.session, target.what("reading")

    async def attempt() -> _FirstBytes:
        request = await session.sign(
            "get_object", "GET", what, Key=target.full_key, Range=f"bytes=0-{first_bytes - 1}"
        )
        receiver = _FirstBytes(target.key, first_bytes)
        await session.exchange(request, what, receiver=receiver)
        return receiver

    try:
        received = await session.moving(attempt, what, size_bytes=first_bytes)
    except RangeError:
        # No byte to give: the object is empty, and a HEAD tells the rest of it.
        return S3Reader(target, await target.head(), b"", concurrency=concurrency)
    return S3Reader(target, received.info, received.data, concurrency=concurrency)


class S3Reader(ObjectReader):
    """Reads are pinned by If-Match with the ETag."""

    def __init__(self, target: S3Object, info: ObjectInfo, first: bytes, *, concurrency: int) -> None:
        self.info = info
        self.first = first
        self._target = target
        self._concurrency = concurrency
        self._signature = _Signature(target)

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        """Fill the buffers. Raises ObjectChangedError, StorageError's children."""
        buffers = Buffers(ranges, into, filled)

        async def fetch_cut(cut: RangeCut) -> None:
            await self._fetch(Landing(buffers, cut.start, cut.end, cut.request.members))

        cuts = plan_ranges(requests, concurrency=self._concurrency)
        await fan_out(fetch_cut, cuts, limit=self._concurrency)

    async def _fetch(self, landing: Landing) -> None:
        """Read one range; a new attempt goes on where the last one stopped."""
        session, what = self._target.session, self._target.what("reading")
        receiver = _Range(landing, self.info)
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            request = await self._signature.request(
                {
                    "Range": f"bytes={landing.position}-{landing.end - 1}",
                    "If-Match": f'"{self.info.version}"',
                },
                fresh=attempts > 1,
            )
            try:
                await session.exchange(request, what, receiver=receiver)
            except (ObjectExistsError, ObjectNotFoundError, RangeError) as error:
                # 412, 404 or 416 for what was there a moment ago: replaced, removed or cut.
                raise _changed(self.info) from error

        await session.moving(attempt, what, size_bytes=landing.end - landing.position)


class _Signature:
    """One signature for many ranges: neither the range nor the condition has to be signed, and signing costs the
    loop half a millisecond each time. A new attempt, and a new minute, is signed anew.
    """

    def __init__(self, target: S3Object) -> None:
        self._target = target
        self._signed: HttpRequest | None = None
        self._signed_at = 0.0
        self._signing = asyncio.Lock()

    async def request(self, headers: Mapping[str, str], *, fresh: bool) -> HttpRequest:
        async with self._signing:
            now = asyncio.get_running_loop().time()
            signed = self._signed
            if signed is None or fresh or now - self._signed_at > _SIGNATURE_REUSED_SECONDS:
                target = self._target
                signed = await target.session.sign(
                    "get_object", "GET", target.what("reading"), Key=target.full_key
                )
                self._signed, self._signed_at = signed, now
        return replace(signed, headers={**signed.headers, **headers})


def _changed(info: ObjectInfo) -> ObjectChangedError:
    return ObjectChangedError(
        f"{info.key!r} was replaced while it was being read (version {info.version} is gone); open it again"
    )


class _Range:
    """Takes the bytes of one range, if the answer is what was asked for."""

    def __init__(self, landing: Landing, info: ObjectInfo) -> None:
        self._landing = landing
        self._info = info

    def views(self, answer: HttpAnswer) -> Iterator[memoryview]:
        # A server that ignores If-Match still says what it sends.
        if bare_etag(answer.headers.get("etag", self._info.version)) != self._info.version:
            raise _changed(self._info)
        start, size = _span(answer, self._info.key)
        if size != self._info.size:
            raise _changed(self._info)
        if start != self._landing.position:
            raise UnsupportedOperationError(
                f"the server answered a range of {self._info.key!r} with other bytes than were asked for"
            )
        yield from self._landing.views()


class _FirstBytes:
    """Takes the beginning of an object and what the headers say of it."""

    info: ObjectInfo
    data = b""

    def __init__(self, key: str, limit: int) -> None:
        self._key = key
        self._limit = limit

    def views(self, answer: HttpAnswer) -> Iterator[memoryview]:
        start, size = _span(answer, self._key)
        if start:
            raise odd_answer(f"reading {self._key!r}", f"bytes from {start} on instead of from the first")
        headers = answer.headers
        self.info = ObjectInfo(
            self._key,
            size,
            bare_etag(required(headers, "etag", f"reading {self._key!r}")),
            write_id=headers.get(WRITE_ID_HEADER),
            modified=parsed_date(headers.get("last-modified")),
        )
        buffer = memoryview(bytearray(min(size, self._limit)))
        for start in range(0, len(buffer), SLICE_BYTES):
            yield buffer[start : start + SLICE_BYTES]
        self.data = bytes(buffer)


def _span(answer: HttpAnswer, key: str) -> tuple[int, int]:
    """Where the answer's bytes begin, and the size of the whole object. Raises OddAnswerError."""
    # A server that ignores the range answers 200, with all that there is.
    name = "content-range" if answer.status == 206 else "content-length"
    text = answer.headers.get(name, "")
    if answer.status == 206 and (match := _CONTENT_RANGE.fullmatch(text)):
        start, last, size = (int(number) for number in match.groups())
        if start <= last < size:
            return start, size
    elif answer.status == 200 and _LENGTH.fullmatch(text):
        return 0, int(text)
    raise odd_answer(f"reading {key!r}", f"HTTP {answer.status} with {name} {text[:60]!r}")
