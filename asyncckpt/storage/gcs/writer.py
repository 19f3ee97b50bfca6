"""Large objects: one resumable session, chunks in order, deleted when the write is given up.

The last bytes, up to 256 KiB, are held back until the commit, so that nothing can complete the object before
it. A session takes chunks that are multiples of 256 KiB, ignores bytes that it has, and says on request how
many that is: that settles an answer that was lost. Its URI is a secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from asyncckpt._aio import run_in_thread, run_shielded
from asyncckpt.errors import (
    AsyncCkptError,
    ObjectExistsError,
    OutcomeUnknownError,
    RangeError,
    StorageError,
    UnavailableError,
    UnsupportedOperationError,
)
from asyncckpt.model.buffers import INLINE_BYTES, Buffer, crc32c_of_views, slice_views, total_bytes
from asyncckpt.model.checksums import crc32c_combine
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectInfo, ObjectWriter
from asyncckpt.storage.gcs.client import Answer, GcsClient
from asyncckpt.storage.gcs.errors import NotSentError
from asyncckpt.storage.gcs.resources import encode_crc32c, info_of
from asyncckpt.storage.gcs.sessions import GONE, ResumableSession, SessionGoneError, persisted_bytes
from asyncckpt.storage.parts import PartLedger
from asyncckpt.storage.retry import Retries
from asyncckpt.storage.settle import LostWrite

QUANTUM = 256 * 1024
"""The granularity of a session: every chunk but the last is a multiple of it."""
_log = logging.getLogger(__name__)


class GcsWriter(ObjectWriter):
    """Parts in order through one session. `stat` looks at the object, to see whose it is; `discard` removes it."""

    concurrency = 1

    def __init__(
        self,
        client: GcsClient,
        key: str,
        name: str,
        *,
        part_bytes: int,
        exclusive: bool,
        write_id: str,
        retries: Retries,
        stat: Callable[[str], Awaitable[ObjectInfo]],
        discard: Callable[[ObjectInfo], Awaitable[None]],
    ) -> None:
        self.part_bytes = max(QUANTUM, -(-part_bytes // QUANTUM) * QUANTUM)
        self.write_id = write_id
        self._client = client
        self._key = key
        self._name = name
        self._exclusive = exclusive
        self._retries = retries
        self._discard = discard
        self._lost_write = LostWrite(
            lambda: stat(key), what=f"write of {key!r}", write_id=write_id, doubtful=(SessionGoneError,)
        )
        self._ledger = PartLedger(key, self.part_bytes)
        self._what = f"upload of {key!r}"
        self._session: ResumableSession | None = None
        self._next = 0
        self._ended = False
        self._position = 0  # what the session has for sure; a multiple of QUANTUM
        self._held = b""
        self._crc = 0
        self._uncertain = False  # a request was sent and its answer never seen

    # -- the session ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin the session; a cancel waits for the answer, so that the session is known and can be deleted."""

        async def initiate() -> None:
            self._session = await ResumableSession.start(
                self._client,
                self._name,
                exclusive=self._exclusive,
                write_id=self.write_id,
                what=self._what,
            )

        async def attempt() -> None:
            await run_shielded(initiate(), timeout=self._retries.policy.attempt_timeout)

        try:
            await self._retries.run(attempt, self._what)
        except ObjectExistsError:
            raise ObjectExistsError(f"{self._key!r} exists already") from None
        except BaseException:
            await run_shielded(self.abort(), timeout=CLEANUP_TIMEOUT)
            raise

    def _open_session(self) -> ResumableSession:
        if self._session is None:
            raise StorageError(f"{self._what} is over")
        return self._session

    async def abort(self) -> None:
        """Delete the session, and with it all that it has.

        A session that can't be deleted now is left to Google, who drops it after a week and charges nothing;
        the error that led here says more than that one.
        """
        session, self._session = self._session, None
        self._held = b""
        if session is None:
            return
        try:
            await self._retries.run(session.delete, self._what)
        except StorageError as error:
            _log.warning("%s: its session could not be deleted: %s", self._what, error)

    # -- parts ---------------------------------------------------------------------------------------------------

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        """Send one part. Raises UnsupportedOperationError out of order, RangeError after a short part."""
        size = total_bytes(views)
        self._ledger.offset(index, size)
        if index != self._next:
            raise UnsupportedOperationError(
                f"gcs takes parts in order: part {self._next} of {self._key!r} is due, got {index}"
            )
        if self._ended:
            raise RangeError(f"part {index - 1} of {self._key!r} was short, and part {index} follows")
        if crc32c is None:
            crc32c = await crc32c_off_loop(views)
        pending = [self._held, *views]
        pending_bytes = len(self._held) + size
        sendable = max(0, pending_bytes - 1) // QUANTUM * QUANTUM
        tail = b"".join(slice_views(pending, sendable, pending_bytes))
        if sendable:
            await self._send(slice_views(pending, 0, sendable), sendable)
        self._held = tail
        self._crc = crc32c_combine(self._crc, crc32c, size)
        self._ledger.add(index, size)
        self._next += 1
        self._ended = size < self.part_bytes

    async def _send(self, views: Sequence[Buffer], size: int) -> None:
        begin = self._position

        async def attempt() -> None:
            session = self._open_session()
            done = 0
            if self._uncertain:
                done = await self._progress_since(begin, size)
            while done < size:
                self._uncertain = True
                answer = await session.put(slice_views(views, done, size), begin + done, total=None)
                if answer.status != 308:
                    raise self._chunk_error(answer)
                advanced = self._advance(answer, begin, size)
                if advanced <= done:
                    raise UnavailableError(f"{self._what}: the session took none of {size - done} bytes")
                done = advanced
            self._uncertain = False

        await self._retries.run(attempt, self._what, size_bytes=size)
        self._position = begin + size

    async def _progress_since(self, begin: int, size: int) -> int:
        answer = await self._open_session().query(None)
        if answer.status != 308:
            raise self._chunk_error(answer)
        return self._advance(answer, begin, size)

    def _advance(self, answer: Answer, begin: int, size: int) -> int:
        done = persisted_bytes(answer) - begin
        if not 0 <= done <= size:
            raise StorageError(
                f"{self._what}: the session has {begin + done} bytes, not {begin} to {begin + size}; save again"
            )
        return done

    def _chunk_error(self, answer: Answer) -> AsyncCkptError:
        if answer.status in GONE:
            return StorageError(f"{self._what}: its session is gone (HTTP {answer.status}); save again")
        return answer.error(self._what)

    # -- the commit ----------------------------------------------------------------------------------------------

    async def commit(self) -> ObjectInfo:
        """Send the last bytes, with the checksum of all. Raises ObjectExistsError, OutcomeUnknownError."""
        total = self._ledger.total()
        finish = self._lost_write.observe(lambda: self._finish(total))
        try:
            info = await self._lost_write.settle(
                lambda: self._retries.run(finish, f"commit of {self._key!r}")
            )
        except SessionGoneError as error:
            raise OutcomeUnknownError(
                f"{self._what}: its session is gone and the object is not ours (write id {self.write_id}); "
                "look for an object with that write id before you write again",
                write_id=self.write_id,
            ) from error
        self._session = None
        return info

    async def _finish(self, total: int) -> ObjectInfo:
        done = 0
        if self._uncertain:
            settled = await self._lost_write.own_object()
            if settled is not None:
                return settled
            answer = await self._open_session().query(total)
            if answer.status != 308:
                return await self._finished(answer)
            done = self._advance(answer, self._position, len(self._held))
        was_uncertain, self._uncertain = self._uncertain, True
        try:
            answer = await self._open_session().put(
                [memoryview(self._held)[done:]], self._position + done, total=total, crc32c=self._crc
            )
        except NotSentError:
            self._uncertain = was_uncertain
            raise
        return await self._finished(answer)

    async def _finished(self, answer: Answer) -> ObjectInfo:
        if answer.status in (200, 201):
            return await self._checked(answer)
        if answer.status == 308:
            raise UnavailableError(f"{self._what}: the session wants more than the last bytes")
        if answer.status in GONE:
            raise SessionGoneError(f"{self._what}: its session is gone (HTTP {answer.status})")
        raise answer.error(self._what)

    async def _checked(self, answer: Answer) -> ObjectInfo:
        """The object that was made, if it is what was sent; else it is removed again."""
        described = answer.json(self._what)
        info = info_of(described, self._key, self._what)
        found, sent = described.get("crc32c"), encode_crc32c(self._crc)
        if (found is None or found == sent) and info.size == self._ledger.total():
            return info
        self._session = None
        await self._discard(info)
        raise StorageError(
            f"{self._what} was damaged on its way: crc32c {found} and {info.size} bytes arrived, "
            f"crc32c {sent} and {self._ledger.total()} bytes were sent; it was removed, save again"
        )


async def crc32c_off_loop(views: Sequence[Buffer]) -> int:
    """The CRC32C of the views taken together, in a thread when it would hold up the event loop."""
    await asyncio.sleep(0)
    if total_bytes(views) <= INLINE_BYTES:
        return crc32c_of_views(views)
    return await run_in_thread(crc32c_of_views, views)
