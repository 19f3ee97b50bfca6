"""How a write ends: its commit runs to its end whoever cancels, and an answer that was lost is settled.

Whether a write happened is found out by one look at the object, which carries the write id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from asyncckpt._aio import ShieldBrokenError, ShieldTimeoutError, shield
from asyncckpt.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StorageError,
    StorageTimeoutError,
)
from asyncckpt.storage.http.errors import NEVER_SENT, UNTOLD
from asyncckpt.storage.objects import ObjectInfo, ObjectWriter

T = TypeVar("T")
Attempt = Callable[[], Coroutine[Any, Any, ObjectInfo]]

COMMIT_TIMEOUT = 60.0
"""Seconds that a commit may take after its caller was cancelled, before its outcome counts as unknown."""
CLEANUP_TIMEOUT = 30.0
"""Seconds that the removal of an unfinished upload may take."""


class LostWrite:
    """Finds out how a write ended when the answer was lost or odd, or is about an earlier attempt of ours.

    `look` tells what is there now; `write_ids` is whether it tells whose. `doubtful` are errors that a server also
    gives to one who has succeeded before, beside "exists already".
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[ObjectInfo]],
        *,
        what: str,
        write_id: str,
        doubtful: tuple[type[StorageError], ...] = (),
        write_ids: bool = True,
    ) -> None:
        self._look = look
        self._what = what
        self._write_id = write_id
        self._doubtful: tuple[type[StorageError], ...] = (ObjectExistsError, *doubtful)
        self._write_ids = write_ids
        self.uncertain = False
        """Whether an attempt was sent whose answer never came, or does not tell."""

    def observe(self, attempt: Attempt) -> Attempt:
        """The attempt, remembering whether it left the outcome open."""

        async def observed() -> ObjectInfo:
            try:
                return await attempt()
            except NEVER_SENT:
                raise
            except (*UNTOLD, asyncio.CancelledError):
                self.uncertain = True
                raise

        return observed

    async def settle(self, write: Attempt) -> ObjectInfo:
        """The outcome of all the attempts that `write` makes; where they do not tell, one look does.

        Raises ObjectExistsError, OutcomeUnknownError, or the last error.
        """
        try:
            return await write()
        except UNTOLD as error:
            if not self.uncertain and not isinstance(error, self._doubtful):
                raise
            return await self._settled(error)
        except self._doubtful as error:
            return await self._settled(error)

    async def own_object(self) -> ObjectInfo | None:
        """What is there now, if it is what this write wrote. Raises as `look` does, but for what is not there."""
        try:
            found = await self._look()
        except ObjectNotFoundError:
            return None
        return found if found.write_id == self._write_id else None

    async def _settled(self, error: Exception) -> ObjectInfo:
        try:
            found = await self._look()
        except ObjectNotFoundError:
            raise error from None
        except StorageError as silence:
            if not self.uncertain:
                raise error from silence
            raise self._unknown("the storage does not say how it ended") from error
        if found.write_id == self._write_id:
            return found
        if self.uncertain and not self._write_ids:
            raise self._unknown("its answer was lost, and the storage keeps no write ids") from error
        if isinstance(error, ObjectExistsError):
            whose = f", write id {found.write_id}" if found.write_id else ""
            raise ObjectExistsError(
                f"{self._what}: {found.key!r} exists already ({found.size} bytes{whose}); "
                "choose another key, or overwrite"
            ) from None
        raise error

    def _unknown(self, reason: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self._what}: {reason} (write id {self._write_id}); "
            "look for an object with that write id before you write again",
            write_id=self._write_id,
        )


async def commit_shielded(
    commit: Coroutine[Any, Any, ObjectInfo],
    *,
    key: str,
    write_id: str,
    timeout: float,
    on_commit: Callable[[ObjectInfo], None] | None,
) -> ObjectInfo:
    """Run a commit to its end whoever cancels, then raise the cancel, from the commit's error if it has one.

    Raises OutcomeUnknownError when nobody can say whether it happened.
    """
    outcome = await shield(commit, timeout=timeout)
    if outcome.error is None and on_commit is not None:
        on_commit(outcome.result())
    failure = outcome.error
    if isinstance(failure, ShieldTimeoutError | ShieldBrokenError):
        unknown = OutcomeUnknownError(
            f"nobody can say whether {key!r} was written (write id {write_id}): its commit {failure}; "
            "look for an object with that write id before you write again",
            write_id=write_id,
        )
        unknown.__cause__ = failure
        failure = unknown
    if outcome.cancellation is not None:
        raise outcome.cancellation from failure
    if failure is not None:
        raise failure
    return outcome.result()


async def abort_shielded(writer: ObjectWriter, key: str, error: BaseException) -> None:
    """Remove an unfinished object whoever cancels. `error`, which led here, stays the one to be raised."""
    outcome = await shield(writer.abort(), timeout=CLEANUP_TIMEOUT)
    if outcome.error is not None and not isinstance(outcome.error, Exception):
        # A second Ctrl-C has hit the removal itself; an abort is right in any state.
        outcome = await shield(writer.abort(), timeout=CLEANUP_TIMEOUT)
    if outcome.error is not None:
        error.add_note(f"what was written of {key!r} could not be removed: {outcome.error}")
    if not isinstance(error, asyncio.CancelledError):
        outcome.raise_if_cancelled()


async def finish_shielded(coroutine: Coroutine[Any, Any, T], what: str, *, timeout: float) -> T:
    """Run to its end what must not be abandoned, then raise the caller's cancel, else its error.

    Raises StorageTimeoutError on overrun.
    """
    outcome = await shield(coroutine, timeout=timeout)
    outcome.raise_if_cancelled()
    if isinstance(outcome.error, ShieldTimeoutError | ShieldBrokenError):
        raise StorageTimeoutError(f"{what} {outcome.error}") from outcome.error
    return outcome.result()
