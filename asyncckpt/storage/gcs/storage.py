"""Google Cloud Storage, over gcsfs's session and credentials.

A small object is one request: its metadata, with the CRC32C that Google checks, and its bytes. A large one is
one resumable session. `ifGenerationMatch=0` makes a create exclusive; the write id in the object's metadata
settles an answer that was lost.
"""

from __future__ import annotations

import importlib.util
import json
import re
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from asyncckpt._aio import WorkerThreads
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.errors import (
    BucketNotFoundError,
    InvalidArgumentError,
    MissingExtraError,
    ObjectNotFoundError,
    StorageError,
)
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.base import Capabilities, ICheckpointStorage, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.gcs.client import Answer, GcsClient, load_driver
from asyncckpt.storage.gcs.listing import GcsLister
from asyncckpt.storage.gcs.reader import GcsReader, media_headers
from asyncckpt.storage.gcs.resources import CONTENT_TYPE, FIELDS, encode_crc32c, info_of, resource
from asyncckpt.storage.gcs.writer import GcsWriter, crc32c_off_loop
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.http.messages import parsed_date
from asyncckpt.storage.listing import Page
from asyncckpt.storage.objects import PART_BYTES
from asyncckpt.storage.retry import Retries, RetryPolicy
from asyncckpt.storage.settle import LostWrite

_CONTENT_RANGE = re.compile(r"bytes 0-(\d{1,19})/(\d{1,19})", re.ASCII)
_WORKERS = 2


class GcsStorage(ICheckpointStorage):
    """Objects under a prefix of a bucket.

    `storage_options` go to gcsfs: `token`, `project`, `endpoint_url`, `requester_pays`, `session_kwargs`, ….
    `part_bytes` is the size of an upload's chunks, rounded up to 256 KiB. Raises MissingExtraError without
    gcsfs.
    """

    capabilities = Capabilities(any_order=False)
    one_loop = True

    @checked
    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        storage_options: Mapping[str, Any] | None = None,
        part_bytes: AtLeastOne | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if importlib.util.find_spec("gcsfs") is None:
            raise MissingExtraError("gs:// needs gcsfs: pip install 'asyncckpt[gcs]'")
        if not bucket:
            raise InvalidArgumentError("a GCS storage needs the name of a bucket")
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._client = GcsClient(bucket, storage_options or {})
        self._part_bytes = part_bytes or PART_BYTES
        self._retries = Retries(retry or RetryPolicy(), load=load_driver)
        self._threads = WorkerThreads(_WORKERS, name="gcs")
        self._lister = GcsLister(self._client, self._prefix, self._retries)

    def __repr__(self) -> str:
        return f"GcsStorage('gs://{self._bucket}/{self._prefix}')"

    def _name(self, key: str) -> str:
        return self._prefix + key

    # -- writing -------------------------------------------------------------------------------------------------

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        described = resource(self._name(key), write_id)
        described["crc32c"] = encode_crc32c(await crc32c_off_loop(views))
        upload = _SinglePut(self._client, key, described, views, exclusive=exclusive)
        what, size = f"write of {key!r}", total_bytes(views)
        lost_write = LostWrite(lambda: self._stat(key), what=what, write_id=write_id)
        return await lost_write.settle(
            lambda: self._retries.run(lost_write.observe(upload.attempt), what, size_bytes=size)
        )

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        writer = GcsWriter(
            self._client,
            key,
            self._name(key),
            part_bytes=part_bytes or self._part_bytes,
            exclusive=exclusive,
            write_id=write_id,
            retries=self._retries,
            stat=self._stat,
            discard=self._discard,
        )
        await writer.start()
        return writer

    async def _discard(self, info: ObjectInfo) -> None:
        """Remove exactly the generation that was just made, whatever the key holds now."""
        await self._remove(info.key, {"generation": info.version})

    async def _delete(self, key: str) -> None:
        await self._remove(key, {})

    async def _remove(self, key: str, params: Mapping[str, str]) -> None:
        what = f"delete of {key!r}"

        async def attempt() -> None:
            answer = await self._client.request(
                "DELETE", self._client.object_path(self._name(key)), what=what, params=params
            )
            if answer.status == 404:
                await self._lister.require_bucket()
            elif answer.status == 200:
                # Google says 204, an emulator 200; so does any web page, but then the object is still there.
                await self._check_gone(key, params.get("generation"), what)
            elif answer.status != 204:
                raise answer.error(what)

        await self._retries.run(attempt, what)

    async def _check_gone(self, key: str, generation: str | None, what: str) -> None:
        try:
            found = await self._stat(key)
        except BucketNotFoundError:
            raise
        except ObjectNotFoundError:
            return
        if generation in (None, found.version):
            raise odd_answer(what, "HTTP 200, and it is still there")

    # -- reading -------------------------------------------------------------------------------------------------

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        return self._reader(*await self._first(key, first_bytes))

    async def _pin(self, info: ObjectInfo) -> ObjectReader:
        return self._reader(info, b"")

    def _reader(self, info: ObjectInfo, first: bytes) -> GcsReader:
        name = self._name(info.key)
        return GcsReader(self._client, name, info, first, retries=self._retries, threads=self._threads)

    async def _first(self, key: str, first_bytes: int) -> tuple[ObjectInfo, bytes]:
        """The object and its first bytes, from one answer; only an empty object takes a second request."""
        if first_bytes < 1:
            return await self._stat(key), b""
        what = f"read of {key!r}"

        async def attempt() -> Answer:
            answer = await self._client.request(
                "GET",
                self._client.object_path(self._name(key)),
                what=what,
                params={"alt": "media"},
                headers=media_headers(0, first_bytes),
                limit=first_bytes,
            )
            if answer.status not in (206, 416):
                raise answer.error(what)
            return answer

        answer = await self._retries.run(attempt, what, size_bytes=first_bytes)
        if answer.status == 416:
            info = await self._stat(key)
            if info.size:
                raise StorageError(f"{what}: refused as empty, but it has {info.size} bytes; try again")
            return info, b""
        return _info_from_media(answer, key), answer.content

    async def _stat(self, key: str) -> ObjectInfo:
        what = f"stat of {key!r}"

        async def attempt() -> ObjectInfo:
            answer = await self._client.request(
                "GET", self._client.object_path(self._name(key)), what=what, params={"fields": FIELDS}
            )
            if answer.status == 404:
                raise ObjectNotFoundError(f"there is no object {key!r} in {self!r}")
            if answer.status != 200:
                raise answer.error(what)
            return info_of(answer.json(what), key, what)

        try:
            return await self._retries.run(attempt, what)
        except ObjectNotFoundError:
            await self._lister.require_bucket()
            raise

    def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        return self._lister.pages(prefix, start_after=start_after, limit=limit)

    async def _close(self) -> None:
        await self._client.aclose()
        await self._threads.close()


class _SinglePut:
    """A whole object in one multipart/related request."""

    def __init__(
        self,
        client: GcsClient,
        key: str,
        described: Mapping[str, Any],
        views: Sequence[Buffer],
        *,
        exclusive: bool,
    ) -> None:
        boundary = f"asyncckpt-{uuid.uuid4().hex}"
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(described)}\r\n"
            f"--{boundary}\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n"
        )
        self._client = client
        self._key = key
        self._what = f"write of {key!r}"
        self._body = [head.encode(), *views, f"\r\n--{boundary}--\r\n".encode()]
        self._headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        self._params = {"uploadType": "multipart", "fields": FIELDS}
        if exclusive:
            self._params["ifGenerationMatch"] = "0"

    async def attempt(self) -> ObjectInfo:
        answer = await self._client.request(
            "POST",
            self._client.upload_path,
            what=self._what,
            params=self._params,
            headers=self._headers,
            body=self._body,
        )
        if answer.status not in (200, 201):
            raise answer.error(self._what)
        return info_of(answer.json(self._what), self._key, self._what)


def _info_from_media(answer: Answer, key: str) -> ObjectInfo:
    """The object as the headers of its own bytes describe it; they do not have the write id."""
    generation = answer.headers.get("X-Goog-Generation")
    span = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if not generation or span is None:
        problem = "the answer does not say which generation it is, or which bytes of how many"
        raise odd_answer(f"read of {key!r}", problem)
    last, size = (int(number) for number in span.groups())
    if not last < size or len(answer.content) != last + 1:
        problem = f"{len(answer.content)} bytes, said to be the first {last + 1} of {size}"
        raise odd_answer(f"read of {key!r}", problem)
    return ObjectInfo(
        key=key,
        size=size,
        version=generation,
        write_id=None,
        modified=parsed_date(answer.headers.get("Last-Modified")),
    )
