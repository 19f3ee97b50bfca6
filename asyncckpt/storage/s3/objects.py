"""Whole objects on S3: one PUT, one HEAD, and bodies that are sent with their checksum."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from asyncckpt.errors import ObjectNotFoundError
from asyncckpt.model.buffers import INLINE_BYTES, Buffer, crc32c_of_views, total_bytes
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.s3.answers import required, required_size
from asyncckpt.storage.s3.errors import BodyMismatchError, UploadGoneError, WriteConflictError
from asyncckpt.storage.s3.session import S3Session
from asyncckpt.storage.settle import LostWrite

T = TypeVar("T")

WRITE_ID_NAME = "asyncckpt-write-id"
WRITE_ID_HEADER = f"x-amz-meta-{WRITE_ID_NAME}"


class S3Object:
    """One key in the bucket: `key` is the storage's name for it, `full_key` the server's."""

    def __init__(self, session: S3Session, key: str, full_key: str) -> None:
        self.session = session
        self.key = key
        self.full_key = full_key

    def what(self, verb: str) -> str:
        """The beginning of an error message."""
        return f"{verb} {self.full_key!r} in bucket {self.session.bucket!r}"

    def lost_write(self, write_id: str) -> LostWrite:
        """For a write of this object: settles it when its answer is lost, by one HEAD."""
        return LostWrite(
            self.head,
            what=self.what("writing"),
            write_id=write_id,
            doubtful=(UploadGoneError, WriteConflictError),
        )

    async def head(self) -> ObjectInfo:
        """One HEAD, retried. Raises ObjectNotFoundError, BucketNotFoundError, OddAnswerError."""
        what = self.what("looking for")
        try:
            answer = await self.session.retrying(
                lambda: self.session.call("head_object", what, Key=self.full_key), what
            )
        except ObjectNotFoundError:
            await self.session.require_bucket()
            raise
        return ObjectInfo(
            self.key,
            required_size(answer, "ContentLength", what),
            bare_etag(required(answer, "ETag", what)),
            write_id=answer.get("Metadata", {}).get(WRITE_ID_NAME),
            modified=answer.get("LastModified"),
        )

    async def put(self, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        """One PUT of all the bytes, with their checksum. Raises ObjectExistsError when `exclusive`."""
        size, what = total_bytes(views), self.what("writing")
        value = await checksum_of(self.session, views)
        checksum = encoded_crc(value)
        extra = {"IfNoneMatch": "*"} if exclusive else {}

        async def attempt() -> ObjectInfo:
            request = await self.session.sign(
                "put_object",
                "PUT",
                what,
                Key=self.full_key,
                ChecksumCRC32C=checksum,
                Metadata=self.session.metadata(WRITE_ID_NAME, write_id),
                **extra,
            )
            answer = await self.session.exchange(request, what, body=views)
            version = bare_etag(required(answer.headers, "etag", what))
            return ObjectInfo(self.key, size, version, write_id=write_id)

        lost_write = self.lost_write(write_id)
        return await lost_write.settle(
            lambda: send_checked(self.session, lost_write.observe(attempt), views, value, what=what)
        )


async def send_checked(
    session: S3Session,
    attempt: Callable[[], Coroutine[Any, Any, T]],
    views: Sequence[Buffer],
    value: int,
    *,
    what: str,
) -> T:
    """Send views whose CRC32C is `value`, by attempts; what the server finds spoiled is sent once more.

    Raises BodyMismatchError when the views are not what they were when the checksum was taken.
    """
    size = total_bytes(views)
    try:
        return await session.moving(attempt, what, size_bytes=size)
    except BodyMismatchError as error:
        if await checksum_of(session, views) != value:
            raise BodyMismatchError(
                f"{what}: the data changed while it was being written; keep it still, or let it be staged"
            ) from error
    return await session.moving(attempt, what, size_bytes=size)


async def checksum_of(session: S3Session, views: Sequence[Buffer]) -> int:
    """The CRC32C of all the views, computed off the loop unless they are small."""
    if total_bytes(views) <= INLINE_BYTES:
        return crc32c_of_views(views)
    return await session.run(crc32c_of_views, views)


def encoded_crc(value: int) -> str:
    """The checksum as S3's headers have it."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def bare_etag(etag: str) -> str:
    """The ETag without its quotes, which some answers have and some do not."""
    return etag.strip('"')
