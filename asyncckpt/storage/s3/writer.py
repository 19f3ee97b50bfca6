"""A multipart upload: parts in any order, one atomic completion, nothing left after an abort."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from asyncckpt._aio import ShieldBrokenError, ShieldTimeoutError, run_shielded, shield
from asyncckpt.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StorageTimeoutError,
    UnavailableError,
)
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.model.ranges import ByteRange
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectInfo, ObjectWriter
from asyncckpt.storage.http.errors import NEVER_SENT, UNTOLD
from asyncckpt.storage.parts import PartLedger
from asyncckpt.storage.s3.answers import required
from asyncckpt.storage.s3.cleanup import remove_lost_uploads, remove_upload
from asyncckpt.storage.s3.errors import UploadGoneError
from asyncckpt.storage.s3.objects import (
    WRITE_ID_NAME,
    S3Object,
    bare_etag,
    checksum_of,
    encoded_crc,
    send_checked,
)
from asyncckpt.storage.s3.plan import MAX_PARTS
from asyncckpt.storage.s3.reader import open_s3_reader

_logger = logging.getLogger("asyncckpt")
# Of a copy on the server; anything else means that this server can't do it.
_FINAL = (
    AccessDeniedError,
    ObjectNotFoundError,
    RangeError,
    StorageTimeoutError,
    UnavailableError,
    UploadGoneError,
)
_ABORT_SECONDS = CLEANUP_TIMEOUT - 5.0


class S3Writer(ObjectWriter):
    """Creates the upload with its first part, so that a writer that is never used costs no request."""

    def __init__(
        self, target: S3Object, *, exclusive: bool, part_bytes: int, concurrency: int, write_id: str
    ) -> None:
        self.part_bytes = part_bytes
        self.concurrency = concurrency
        self.write_id = write_id
        self._target = target
        self._session = target.session
        self._exclusive = exclusive
        self._ledger = PartLedger(target.key, part_bytes)
        self._parts: dict[int, dict[str, Any]] = {}
        self._upload_id: str | None = None
        self._creating = asyncio.Lock()
        self._closed = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # -- parts -------------------------------------------------------------------------------------------------

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        """Send one part. Raises RangeError for one that can't be, StorageError's children for what fails."""
        size = total_bytes(views)
        self._check(index, size)
        if size:
            value = await checksum_of(self._session, views) if crc32c is None else crc32c
            async with self._flight():
                self._parts[index] = await self._upload(index, views, value)
        self._ledger.add(index, size)

    async def copy_part(self, index: int, key: str, start: int, end: int) -> None:
        """Fill one part from another object of this storage: on the server where it can, else through here."""
        self._check(index, end - start)
        source = S3Object(self._session, key, self._target.full_key[: -len(self._target.key)] + key)
        async with self._flight():
            copied = await self._copy(index, source, start, end)
        if copied is None:
            # MinIO, for one, can't copy into an upload whose parts have checksums.
            reader = await open_s3_reader(source, first_bytes=0, concurrency=1)
            data = bytearray(end - start)
            await reader.read_ranges([ByteRange(start, end)], [memoryview(data)])
            await self.write_part(index, [data])
            return
        self._parts[index] = copied
        self._ledger.add(index, end - start)

    def _check(self, index: int, size: int) -> None:
        self._ledger.offset(index, size)
        if index >= MAX_PARTS:
            raise RangeError(
                f"part {index} of {self._target.key!r}: S3 takes {MAX_PARTS} parts; give size= or a larger part_bytes="
            )

    async def _upload(self, index: int, views: Sequence[Buffer], value: int) -> dict[str, Any]:
        what = self._target.what(f"uploading part {index} of")
        checksum = encoded_crc(value)
        upload_id = await self._ensure_upload()

        async def attempt() -> dict[str, Any]:
            request = await self._session.sign(
                "upload_part",
                "PUT",
                what,
                Key=self._target.full_key,
                UploadId=upload_id,
                PartNumber=index + 1,
                ChecksumCRC32C=checksum,
            )
            answer = await self._session.exchange(request, what, body=views)
            etag = required(answer.headers, "etag", what)
            return {"PartNumber": index + 1, "ETag": etag, "ChecksumCRC32C": checksum}

        return await send_checked(self._session, attempt, views, value, what=what)

    async def _copy(self, index: int, source: S3Object, start: int, end: int) -> dict[str, Any] | None:
        what = self._target.what(f"copying [{start}, {end}) of {source.key!r} to part {index} of")
        upload_id = await self._ensure_upload()
        try:
            answer = await self._session.retrying(
                lambda: self._session.call(
                    "upload_part_copy",
                    what,
                    Key=self._target.full_key,
                    UploadId=upload_id,
                    PartNumber=index + 1,
                    CopySource={"Bucket": self._session.bucket, "Key": source.full_key},
                    CopySourceRange=f"bytes={start}-{end - 1}",
                ),
                what,
                size_bytes=end - start,
            )
        except StorageError as error:
            if isinstance(error, _FINAL):
                raise
            return None
        result = answer.get("CopyPartResult", {})
        if not result.get("ChecksumCRC32C") or not result.get("ETag"):
            return None
        return {
            "PartNumber": index + 1,
            "ETag": result["ETag"],
            "ChecksumCRC32C": result["ChecksumCRC32C"],
        }

    @asynccontextmanager
    async def _flight(self) -> AsyncIterator[None]:
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    # -- the upload --------------------------------------------------------------------------------------------

    async def _ensure_upload(self) -> str:
        async with self._creating:
            if self._closed:
                raise StorageError(f"the writer of {self._target.key!r} is closed")
            if self._upload_id is None:
                await self._create()
            assert self._upload_id is not None, "created, or an error was raised"
            return self._upload_id

    async def _create(self) -> None:
        """Start the upload. A cancel waits for the answer to a request under way, but for no further attempt."""
        what = self._target.what("starting the upload of")
        begun = asyncio.get_running_loop().time()
        lost = False

        async def request() -> None:
            nonlocal lost
            try:
                answer = await self._session.call(
                    "create_multipart_upload",
                    what,
                    Key=self._target.full_key,
                    ChecksumAlgorithm="CRC32C",
                    Metadata=self._session.metadata(WRITE_ID_NAME, self.write_id),
                )
                self._upload_id = str(required(answer, "UploadId", what))
            except NEVER_SENT:
                raise
            except (*UNTOLD, asyncio.CancelledError):
                lost = True
                raise

        async def attempt() -> None:
            # Cancelled in the middle, an upload would exist that nobody knows the id of.
            created = await shield(request(), timeout=CLEANUP_TIMEOUT)
            created.raise_if_cancelled()
            if isinstance(created.error, ShieldTimeoutError | ShieldBrokenError):
                raise StorageTimeoutError(f"{what}: the request {created.error}")
            created.result()

        try:
            await self._session.retrying(attempt, what)
        finally:
            if lost:
                age = asyncio.get_running_loop().time() - begun
                removal = remove_lost_uploads(self._target, keep=self._upload_id, age=age)
                await run_shielded(removal, timeout=CLEANUP_TIMEOUT)

    async def commit(self) -> ObjectInfo:
        """Complete the upload. Raises ObjectExistsError, OutcomeUnknownError, StorageError's children."""
        size = self._ledger.total()
        if not self._parts:
            return await self._target.put([], exclusive=self._exclusive, write_id=self.write_id)
        what = self._target.what("completing the upload of")
        extra = {"IfNoneMatch": "*"} if self._exclusive else {}
        parts = [self._parts[index] for index in sorted(self._parts)]

        async def attempt() -> ObjectInfo:
            answer = await self._session.call(
                "complete_multipart_upload",
                what,
                Key=self._target.full_key,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": parts},
                **extra,
            )
            version = bare_etag(required(answer, "ETag", what))
            return ObjectInfo(self._target.key, size, version, write_id=self.write_id)

        lost_write = self._target.lost_write(self.write_id)
        info = await lost_write.settle(lambda: self._session.retrying(lost_write.observe(attempt), what))
        self._closed = True
        self._upload_id = None
        return info

    async def abort(self) -> None:
        """Remove the upload and all its parts; what is still being sent is waited for, and removed too.

        Raises nothing, because the failure that led here is the one to hear of: what can't be removed is logged.
        """
        self._closed = True
        try:
            async with asyncio.timeout(_ABORT_SECONDS), self._creating:
                if self._upload_id is not None:
                    await remove_upload(self._target, self._upload_id, idle=self._idle)
                    self._upload_id = None
        except (StorageError, TimeoutError) as error:
            _logger.warning(
                "%s: upload %s may be left behind: %s",
                self._target.what("aborting the upload of"),
                self._upload_id,
                error,
            )
