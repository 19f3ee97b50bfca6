"""The members of a set that is being written: removed after a failure, unless the file that names them may exist."""

from __future__ import annotations

import asyncio
import logging

from asyncckpt._aio import shield
from asyncckpt.errors import (
    CheckpointExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StorageError,
)
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectInfo

_logger = logging.getLogger("asyncckpt")


class Members:
    """What was written of a set before its leader, the file that names all others and makes it a checkpoint."""

    def __init__(self, leader: ObjectLocation) -> None:
        self._leader = leader
        self._leader_began = False
        self._written: list[ObjectLocation] = []

    def add(self, member: ObjectLocation, _: ObjectInfo) -> None:
        """Note a member that is visible."""
        self._written.append(member)

    def leader_begins(self) -> None:
        """To be called right before the leader's commit."""
        self._leader_began = True

    async def remove_if_unnamed(self, error: BaseException) -> None:
        """Remove the members after `error`, when it is certain that no leader of ours names them.

        An unfinished set is debris; an index without its files is a lie. So where nobody knows whether the
        leader is there they stay, and the error says so in a note. Raises a cancel that comes meanwhile.
        """
        if not self._written:
            return
        time_limit = CLEANUP_TIMEOUT * (len(self._written) + 1)
        outcome = await shield(self._remove_if_unnamed(error), timeout=time_limit)
        if outcome.error is not None:
            _tell(
                error, f"the unfinished set of {self._leader.display} could not be removed: {outcome.error}"
            )
        if not isinstance(error, asyncio.CancelledError):
            outcome.raise_if_cancelled()

    async def _remove_if_unnamed(self, error: BaseException) -> None:
        if not await self._is_certain(error):
            names = ", ".join(location.key for location in self._written)
            _tell(
                error, f"nobody knows whether {self._leader.display} was written, so its files stay: {names}"
            )
            return
        for location in self._written:
            try:
                await location.storage.delete(location.key)
            except StorageError as failure:
                _tell(error, f"{location.display} of the unfinished set could not be removed: {failure}")

    async def _is_certain(self, error: BaseException) -> bool:
        """Whether no leader of ours is there, nor can come."""
        if not self._leader_began or isinstance(error, CheckpointExistsError):
            return True
        if _is_unknown(error):
            return False
        try:
            await self._leader.storage.stat(self._leader.key)
        except ObjectNotFoundError:
            return True
        except StorageError:
            return False
        return False


def _is_unknown(error: BaseException | None) -> bool:
    """Whether nobody can say how the commit ended; a cancel has the commit's own error as its cause."""
    while error is not None:
        interrupted = not isinstance(error, Exception | asyncio.CancelledError)  # Ctrl-C, in the middle of it
        if interrupted or isinstance(error, OutcomeUnknownError):
            return True
        error = error.__cause__
    return False


def _tell(error: BaseException, line: str) -> None:
    """A note on the error, and in the log: a cancel's notes are seldom read."""
    error.add_note(line)
    _logger.warning("%s", line)
