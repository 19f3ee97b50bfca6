"""Where a storage lives: whether it is open, and the process and event loop that its connections belong to."""

from __future__ import annotations

import asyncio
import os

from asyncckpt.errors import StorageError


class Home:
    """Looked at before every call of a storage, so that a call in the wrong place ends at once, in one line."""

    def __init__(self) -> None:
        self._closed = False
        self._process: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def admit(self, storage: object, *, one_loop: bool) -> None:
        """Raises StorageError when the storage is closed or, with `one_loop`, was first used elsewhere."""
        if self._closed:
            raise StorageError(f"{storage!r} is closed; open it again")
        if not one_loop:
            return
        if self._loop is None:
            self._process, self._loop = os.getpid(), asyncio.get_running_loop()
        self._require_same_place(storage)

    def close(self, storage: object) -> None:
        """From now on nothing is admitted. Raises StorageError where it is not the one to be closed."""
        if self._loop is not None and not self._closed:
            self._require_same_place(storage)
        self._closed = True

    def _require_same_place(self, storage: object) -> None:
        if self._process != os.getpid():
            raise StorageError(
                f"{storage!r} was opened in process {self._process}, and its connections do not survive a fork; "
                "open one in each process"
            )
        if self._loop is not asyncio.get_running_loop():
            raise StorageError(
                f"{storage!r} was opened on another event loop, to which its connections belong; open one on each loop"
            )
