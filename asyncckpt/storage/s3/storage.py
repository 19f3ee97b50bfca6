"""Checkpoints on S3 and everything that speaks its protocol.

s3fs's own client keeps the session and the credentials, makes the control calls and signs; the bytes of objects,
parts and ranges are moved by worker threads over connections of our own (`transfer`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from asyncckpt._aio import fan_out, run_shielded
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.errors import MissingExtraError, StorageError, UnsupportedOperationError
from asyncckpt.model.buffers import Buffer, cut_views, total_bytes
from asyncckpt.storage.base import (
    CLEANUP_TIMEOUT,
    Capabilities,
    ICheckpointStorage,
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
)
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.listing import Page
from asyncckpt.storage.retry import RetryPolicy
from asyncckpt.storage.s3.deleting import BATCH, delete_batch, delete_one
from asyncckpt.storage.s3.listing import S3Lister
from asyncckpt.storage.s3.objects import S3Object
from asyncckpt.storage.s3.plan import MIB, plan_parts
from asyncckpt.storage.s3.reader import S3Reader, open_s3_reader
from asyncckpt.storage.s3.session import S3Session
from asyncckpt.storage.s3.writer import S3Writer

SINGLE_PUT_BYTES = 128 * MIB
"""Above this a whole object goes up in parts all the same: one PUT ends at 5 GiB, and starts all over when cut."""


class S3Storage(ICheckpointStorage):
    """A bucket, or what lies below `prefix` in it. Connects on first use; `aclose` ends its threads.

    `storage_options` are s3fs's (key, secret, client_kwargs, config_kwargs, s3_additional_kwargs …). `part_bytes`
    and `concurrency` are chosen from each object's size and 4, unless given. Raises MissingExtraError without s3fs.
    """

    capabilities = Capabilities(server_copy=True)
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
        self._lister = S3Lister(self._session, self._root)

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

    async def _pin(self, info: ObjectInfo) -> ObjectReader:
        return S3Reader(self._object(info.key), info, b"", concurrency=self._concurrency)

    async def _stat(self, key: str) -> ObjectInfo:
        return await self._object(key).head()

    def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        return self._lister.pages(prefix, start_after=start_after, limit=limit)

    async def _delete(self, key: str) -> None:
        await delete_one(self._object(key))

    async def _delete_many(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        failures: dict[str, StorageError] = {}
        for start in range(0, len(keys), BATCH):
            batch = [self._object(key) for key in keys[start : start + BATCH]]
            failures |= await delete_batch(self._session, batch)
        unsupported = [key for key, error in failures.items() if isinstance(error, UnsupportedOperationError)]
        # Not every server has this request.
        return {
            **{key: error for key, error in failures.items() if key not in unsupported},
            **await super()._delete_many(unsupported),
        }
