"""What is looked at before a storage does anything: that its class keeps to its hooks, and that it is open, and in the
process and on the event loop that its connections belong to."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Self, final

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


class Guarded:
    """The root of every storage: knows where it lives, whatever the backend's own `__init__` does."""

    one_loop: bool = False
    """Whether its connections belong to the event loop and the process of its first use: others get an error."""
    __home: Home

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__, which a backend need not call.
        guarded = super().__new__(cls)
        guarded.__home = Home()
        return guarded

    @final
    def admit(self) -> None:
        """Raises StorageError where it can't be used: it is closed, or belongs to another process or loop."""
        self.__home.admit(self, one_loop=self.one_loop)

    @final
    def end_admission(self) -> None:
        """From now on nothing is admitted. Raises StorageError where it is not the one to be closed."""
        self.__home.close(self)


def refuse_overrides(subclass: type, base: type) -> None:
    """For `__init_subclass__`. Raises TypeError when the subclass, or a mixin of it, replaces a `@final` method."""
    own = (item for each in base.__mro__ for item in vars(each).items())
    for name, method in own:
        if getattr(method, "__final__", False) and getattr(subclass, name) is not method:
            hooks = ", ".join(sorted(getattr(base, "__abstractmethods__", ())))
            raise TypeError(
                f"{subclass.__name__} replaces {base.__name__}.{name}, which is final: implement the hooks ({hooks}) "
                "instead"
            )
