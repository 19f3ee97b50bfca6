"""Checkpoints on S3 and everything that speaks its protocol.

s3fs's own client keeps the session and the credentials, makes the control calls and signs; the bytes of objects,
parts and ranges are moved by worker threads over connections of our own (`transfer`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from asyncckpt._aio import fan_out, run_shielded
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.errors import BucketNotFoundError, InvalidKeyError, MissingExtraError, ObjectNotFoundError
from asyncckpt.model.checksums import Buffer
from asyncckpt.storage.base import (
    CLEANUP_TIMEOUT,
    Capabilities,
    ICheckpointStorage,
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
)
from asyncckpt.storage.http.status import odd_answer
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.parts import total_bytes
from asyncckpt.storage.retry import RetryPolicy
from asyncckpt.storage.s3.answers import required, required_size
from asyncckpt.storage.s3.objects import S3Object, bare_etag
from asyncckpt.storage.s3.plan import MIB, cut_views, plan_parts
from asyncckpt.storage.s3.reader import open_s3_reader
from asyncckpt.storage.s3.session import S3Session
from asyncckpt.storage.s3.writer import S3Writer

SINGLE_PUT_BYTES = 128 * MIB
"""Above this a whole object goes up in parts all the same: one PUT ends at 5 GiB, and starts all over when cut."""


class S3Storage(ICheckpointStorage):
    """A bucket, or what lies below `prefix` in it. Connects on first use; `aclose` ends its threads.

    `storage_options` are s3fs's (key, secret, client_kwargs, config_kwargs, s3_additional_kwargs …). `part_bytes`
    and `concurrency` are chosen from each object's size and 4, unless given. Raises MissingExtraError without s3fs.
    """

    capabilities = Capabilities(server_copy=True, remote=True)
    one_loop = True

    @checked
    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        storage_options: Mapping[str, Any] | None = None,
        part_bytes: AtLeastOne | None = None,
        concurrency: AtLeastOne = 4,
        retry: RetryPolicy | None = None,
    ) -> None:
        if importlib.util.find_spec("s3fs") is None:
            raise MissingExtraError("s3:// needs s3fs: pip install 'asyncckpt[s3]'")
        prefix = prefix.strip("/")
        self._root = f"{validate_key(prefix)}/" if prefix else ""
        self._bucket = bucket
        self._part_bytes = part_bytes
        self._concurrency = concurrency
        self._session = S3Session(
            bucket, storage_options or {}, threads=concurrency, policy=retry or RetryPolicy()
        )

    def __repr__(self) -> str:
        return f"S3Storage('s3://{self._bucket}/{self._root}')"

    async def _close(self) -> None:
        await self._session.aclose()

    def _object(self, key: str) -> S3Object:
        return S3Object(self._session, key, self._root + key)

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        size = total_bytes(views)
        if size <= SINGLE_PUT_BYTES:
            return await self._object(key).put(views, exclusive=exclusive, write_id=write_id)
        writer = self._writer(key, size=size, exclusive=exclusive, part_bytes=None, write_id=write_id)

        async def write_part(part: tuple[int, Sequence[memoryview]]) -> None:
            await writer.write_part(part[0], part[1])

        try:
            parts = enumerate(cut_views(views, writer.part_bytes))
            await fan_out(write_part, parts, limit=writer.concurrency)
            return await writer.commit()
        except BaseException:
            await run_shielded(writer.abort(), timeout=CLEANUP_TIMEOUT)
            raise

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        return self._writer(key, size=size, exclusive=exclusive, part_bytes=part_bytes, write_id=write_id)

    def _writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> S3Writer:
        return S3Writer(
            self._object(key),
            exclusive=exclusive,
            part_bytes=plan_parts(size, part_bytes or self._part_bytes),
            concurrency=self._concurrency,
            write_id=write_id,
        )

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        return await open_s3_reader(self._object(key), first_bytes=first_bytes, concurrency=self._concurrency)

    async def _stat(self, key: str) -> ObjectInfo:
        return await self._object(key).head()

    async def _list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        held: list[ObjectInfo] | None = None
        async with aclosing(self._pages(prefix)) as pages:
            async for ordered, page in pages:
                if held is None and not ordered:
                    held = []
                if held is None:
                    yield page
                else:
                    held += page
        if held:
            yield sorted(held, key=_by_bytes)

    async def _pages(self, prefix: str) -> AsyncGenerator[tuple[bool, list[ObjectInfo]], None]:
        """The server's pages, each with whether its listings are in the order of the keys' bytes."""
        what = f"listing {self._root + prefix!r} in bucket {self._bucket!r}"
        more: dict[str, str] = {}
        while True:
            call = partial(self._session.call, "list_objects_v2", what, Prefix=self._root + prefix, **more)
            answer = await self._session.retrying(call, what)
            listed = [self._listed(entry, prefix, what) for entry in answer.get("Contents", [])]
            page = [info for info in listed if info is not None]
            yield self._lists_in_order(answer) and page == sorted(page, key=_by_bytes), page
            if not answer.get("IsTruncated"):
                return
            token = required(answer, "NextContinuationToken", what)
            if token == more.get("ContinuationToken"):
                raise odd_answer(what, "the same page twice")
            more = {"ContinuationToken": token}

    def _lists_in_order(self, answer: Mapping[str, Any]) -> bool:
        """SeaweedFS lists folder by folder, and AWS's directory buckets in no order at all."""
        server = str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("server", ""))
        return not server.startswith("SeaweedFS") and not self._bucket.endswith("--x-s3")

    def _listed(self, entry: Mapping[str, Any], prefix: str, what: str) -> ObjectInfo | None:
        """One line of a listing; None for what is not an object of ours, such as a folder's marker.

        Raises OddAnswerError for what was not asked for.
        """
        full_key: str = required(entry, "Key", what)
        if not full_key.startswith(self._root + prefix):
            raise odd_answer(what, f"{full_key[:200]!r} is listed, which has another prefix")
        key = full_key.removeprefix(self._root)
        try:
            validate_key(key)
        except InvalidKeyError:
            return None
        size = required_size(entry, "Size", what)
        etag = required(entry, "ETag", what)
        return ObjectInfo(key, size, bare_etag(etag), modified=entry.get("LastModified"))

    async def _delete(self, key: str) -> None:
        target = self._object(key)
        what = target.what("deleting")
        try:
            await self._session.retrying(
                lambda: self._session.call("delete_object", what, Key=target.full_key), what
            )
        except BucketNotFoundError:
            raise
        except ObjectNotFoundError:
            # Some servers say so, and it is not an error; but a web server says 404 to anything.
            await self._session.require_bucket()


def _by_bytes(info: ObjectInfo) -> bytes:
    return info.key.encode()
