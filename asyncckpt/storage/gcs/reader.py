"""Reading from GCS: one generation, pinned; ranges straight into the caller's buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncckpt._aio import WorkerThreads, fan_out
from asyncckpt.errors import AsyncCkptError, ObjectChangedError, UnavailableError
from asyncckpt.model.buffers import INLINE_BYTES
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage.base import ObjectInfo, ObjectReader
from asyncckpt.storage.gcs.client import GcsClient
from asyncckpt.storage.gcs.errors import answer_error
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.landing import Buffers, Landing
from asyncckpt.storage.retry import Retries

_CONCURRENCY = 8
_REFUSED_PINS = (404, 412, 416)


def media_headers(start: int, end: int) -> dict[str, str]:
    # Identity, because a transcoded answer would have other offsets.
    return {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}


class GcsReader(ObjectReader):
    """One generation of one object."""

    def __init__(
        self,
        client: GcsClient,
        name: str,
        info: ObjectInfo,
        first: bytes,
        *,
        retries: Retries,
        threads: WorkerThreads,
    ) -> None:
        self.info = info
        self.first = first
        self._client = client
        self._name = name
        self._retries = retries
        self._threads = threads
        self._what = f"read of {info.key!r}"

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        buffers = Buffers(ranges, into, filled)
        await fan_out(self._fetch, buffers.landings(requests), limit=_CONCURRENCY)

    async def _fetch(self, landing: Landing) -> None:
        await self._retries.run(lambda: self._attempt(landing), self._what, size_bytes=landing.missing)

    async def _attempt(self, landing: Landing) -> None:
        """Fetch what is still missing: an attempt goes on where the last one broke off."""
        async with self._client.stream(
            "GET",
            self._client.object_path(self._name),
            what=self._what,
            params={"alt": "media", "generation": self.info.version},
            headers=media_headers(landing.position, landing.end),
        ) as response:
            if response.status != 206:
                raise await self._refusal(response)
            if not response.headers.get("Content-Range", "").startswith(f"bytes {landing.position}-"):
                raise odd_answer(self._what, "other bytes than were asked for")
            while landing.missing:
                data = await self._client.read_some(response, self._what)
                if not data:
                    raise UnavailableError(f"{self._what}: the answer ended {landing.missing} bytes early")
                await self._report(landing.buffers, landing.feed(data))
            # The end of the answer, so that the connection can be used again.
            await self._client.read_some(response, self._what)

    async def _report(self, buffers: Buffers, completed: list[int]) -> None:
        """In a thread for many bytes, because to hear of them may mean to hash them."""
        if buffers.size_of(completed) <= INLINE_BYTES:
            buffers.report(completed)
        else:
            await self._threads.run(buffers.report, completed)

    async def _refusal(self, response: Any) -> AsyncCkptError:
        content = await self._client.read(response, self._what)
        if response.status in _REFUSED_PINS:
            return ObjectChangedError(
                f"{self.info.key!r} was replaced or deleted while it was read (generation {self.info.version}); "
                "open it again"
            )
        if response.status == 200:
            return UnavailableError(f"{self._what}: the server ignored the range")
        return answer_error(response.status, content, self._what)
