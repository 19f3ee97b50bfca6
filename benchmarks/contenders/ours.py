"""asyncckpt: a long-lived storage, arrays handed over, checksums on."""

from __future__ import annotations

from collections.abc import Callable

from asyncckpt.operations.load import load
from asyncckpt.operations.save import save
from asyncckpt.storage.base import ICheckpointStorage
from benchmarks.contenders.base import INTO, LOAD, SAVE, UNVERIFIED, Contender, Operation
from benchmarks.states import State

KEY = "ours/model.checkpoint"


class Ours(Contender):
    """`unverified` adds the load with `verify=False`."""

    name = "asyncckpt"

    def __init__(
        self,
        open_storage: Callable[[], ICheckpointStorage],
        *,
        format: str = "mlcp",
        unverified: bool = False,
    ) -> None:
        self._open_storage = open_storage
        self._format = format
        self._unverified = unverified

    async def open(self, state: State) -> None:
        await super().open(state)
        self._storage = self._open_storage()

    def operations(self) -> list[Operation]:
        place = (self._storage, KEY)
        operations = [
            Operation(SAVE, lambda: save(self.state.arrays, place, format=self._format, copy=False)),
            Operation(LOAD, lambda: load(place), fresh=True),
            Operation(INTO, lambda: load(place, into=self.state.targets)),
        ]
        if self._unverified:
            operations.append(Operation(UNVERIFIED, lambda: load(place, verify=False), fresh=True))
        return operations

    async def forget(self) -> None:
        await self._storage.delete(KEY)

    async def aclose(self) -> None:
        await self._storage.aclose()
