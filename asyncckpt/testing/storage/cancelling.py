"""The part of the contract about cancels: at every await of every method, nothing is left and nothing torn."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncckpt.cancellation import CancellationToken, CancellationTokenSource
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.testing.cancelling import WAYS, CancelBy, MakeOperation, Outcome, assert_cancelled, sweep
from asyncckpt.testing.storage.bytes import pattern
from asyncckpt.testing.storage.calls import call
from asyncckpt.testing.storage.medium import StorageMedium
from asyncckpt.testing.storage.wrappers import CountingStorage

_OLD = b"the old object"
_LOOKS = ("open_reader", "read", "read_range", "read_ranges", "stat", "exists", "list", "list_pages")

each_way = pytest.mark.parametrize(("how", "times"), WAYS)


class CancellingContract(StorageMedium):
    """Cancelled in each of the `WAYS` at the k-th suspension, for every k."""

    async def cancel_everywhere(
        self,
        operation: MakeOperation[Any],
        check: Callable[[Outcome[Any]], Awaitable[None]],
        *,
        how: CancelBy,
        times: int,
    ) -> None:
        """Run the sweep; after each run the medium must be clean, and `check` says whether it is right."""

        async def check_one(k: int, outcome: Outcome[Any]) -> None:
            assert_cancelled(outcome, how=how, times=times)
            leftovers = list(await self.raw_leftovers())
            assert leftovers == [], f"cancelled by {how} × {times} at suspension {k}: {leftovers} left"
            await check(outcome)

        rng = None if self.exhaustive else random.Random(self.sweep_seed)
        if rng is not None:
            print(f"sweep seed: {self.sweep_seed}")
        runs = await sweep(operation, check_one, how=how, times=times, rng=rng)
        assert runs > 0, "the operation never suspended, so nothing was tested"

    @each_way
    @pytest.mark.parametrize("parts", [0, 2])
    async def test_cancelled_overwrite(
        self, storage: ICheckpointStorage, parts: int, how: CancelBy, times: int
    ) -> None:
        new = self._new_object(parts)
        await self.raw_put("key", _OLD)

        async def check(outcome: Outcome[Any]) -> None:
            found = await self.raw_objects()
            assert list(found) == ["key"]
            assert found["key"] == new if outcome.completed else found["key"] in (_OLD, new)
            await self.raw_put("key", _OLD)

        await self.cancel_everywhere(self._writing(storage, "key", new, parts), check, how=how, times=times)

    @each_way
    @pytest.mark.parametrize("parts", [0, 2])
    async def test_cancelled_create(
        self, storage: ICheckpointStorage, parts: int, how: CancelBy, times: int
    ) -> None:
        new = self._new_object(parts)
        keys = (f"folder-{i}/key" for i in itertools.count())
        key = next(keys)

        async def check(outcome: Outcome[Any]) -> None:
            nonlocal key
            found = (await self.raw_objects()).get(key)
            assert found == new if outcome.completed else found in (None, new)
            await storage.delete(key)
            key = next(keys)

        def write(token: CancellationToken | None) -> Any:
            return self._writing(storage, key, new, parts, exclusive=storage.capabilities.exclusive)(token)

        await self.cancel_everywhere(write, check, how=how, times=times)

    def _new_object(self, parts: int) -> bytes:
        """As few bytes as make so many parts, or a small object for none."""
        return pattern((parts - 1) * self.part_bytes + 5 if parts else 500, seed=20)

    def _writing(
        self, storage: ICheckpointStorage, key: str, data: bytes, parts: int, *, exclusive: bool = False
    ) -> MakeOperation[Any]:
        async def write_parts(token: CancellationToken | None) -> None:
            async with storage.open_writer(
                key, size=len(data), part_bytes=self.part_bytes, exclusive=exclusive, cancellation=token
            ) as writer:
                await self.write_parts(writer, data)

        whole = storage.write_new if exclusive else storage.write
        return write_parts if parts else lambda token: whole(key, data, cancellation=token)

    @each_way
    @pytest.mark.parametrize("method", _LOOKS)
    async def test_cancelled_look(
        self, storage: ICheckpointStorage, method: str, how: CancelBy, times: int
    ) -> None:
        await self.raw_put("key", _OLD)

        async def check(_: Outcome[Any]) -> None:
            assert await self.raw_objects() == {"key": _OLD}

        await self.cancel_everywhere(
            lambda token: call(storage, method, "key", token), check, how=how, times=times
        )
        assert await storage.read("key") == _OLD

    @each_way
    @pytest.mark.parametrize("method", ["delete", "delete_many"])
    async def test_cancelled_delete(
        self, storage: ICheckpointStorage, method: str, how: CancelBy, times: int
    ) -> None:
        await self.raw_put("key", _OLD)
        await self.raw_put("other", _OLD)

        async def check(outcome: Outcome[Any]) -> None:
            found = await self.raw_objects()
            assert found.pop("other") == _OLD
            assert found == {} if outcome.completed else found in ({}, {"key": _OLD})
            await self.raw_put("key", _OLD)

        await self.cancel_everywhere(
            lambda token: call(storage, method, "key", token), check, how=how, times=times
        )

    @pytest.mark.parametrize("parts", [0, 2])
    async def test_a_token_that_fires_during_the_commit_is_ignored(
        self, storage: ICheckpointStorage, parts: int
    ) -> None:
        source, new = CancellationTokenSource(), self._new_object(parts)
        firing = _ActingStorage(storage, "commit" if parts else "put", source.cancel)
        await self._writing(firing, "key", new, parts)(source.token)
        assert source.token.is_cancelled
        await self.assert_medium({"key": new})

    @pytest.mark.parametrize("parts", [0, 2])
    async def test_a_task_cancelled_during_the_commit_hears_of_it_afterwards(
        self, storage: ICheckpointStorage, parts: int
    ) -> None:
        new = self._new_object(parts)

        def cancel() -> None:
            task.cancel()

        firing = _ActingStorage(storage, "commit" if parts else "put", cancel)
        task = asyncio.ensure_future(self._writing(firing, "key", new, parts)(None))
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.assert_medium({"key": new})


class _ActingStorage(CountingStorage):
    """Does something just before one call is passed on."""

    def __init__(self, inner: ICheckpointStorage, name: str, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._name = name
        self._action = action

    def entering(self, name: str) -> None:
        super().entering(name)
        if name == self._name:
            self._action()
