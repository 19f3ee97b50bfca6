"""`Contender`: what is measured. Whatever is not the saving or the loading itself belongs into `open`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.states import State

SAVE, LOAD, INTO, UNVERIFIED = "save", "load", "load into", "load unverified"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing to measure. `fresh` says that it returns a state of its own, as large as the saved one."""

    name: str
    call: Callable[[], Awaitable[Any]]
    fresh: bool = False


class Contender(ABC):
    """Saves a state to one place and loads it back. `operations` run in their order, the save first."""

    name: str

    async def open(self, state: State) -> None:
        """Connect, and prepare what a long-running process would have ready."""
        self.state = state

    @abstractmethod
    def operations(self) -> list[Operation]: ...

    @abstractmethod
    async def forget(self) -> None:
        """Remove what was saved."""

    async def aclose(self) -> None:  # noqa: B027 - not every contender holds something
        """Let go of connections."""


class SynchronousContender(Contender):
    """One whose calls block: they run in a thread, as a user with an event loop would have to run them."""

    @abstractmethod
    def save(self) -> None: ...

    @abstractmethod
    def load(self) -> Mapping[str, np.ndarray]: ...

    def operations(self) -> list[Operation]:
        return [
            Operation(SAVE, lambda: asyncio.to_thread(self.save)),
            Operation(LOAD, lambda: asyncio.to_thread(self.load), fresh=True),
        ]
