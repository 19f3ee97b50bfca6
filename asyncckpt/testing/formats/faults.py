"""Cancelled at every await and failed at every storage call: nothing is left, and the old checkpoint is intact."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal, get_args

import pytest

import asyncckpt
from asyncckpt.cancellation import CancellationToken
from asyncckpt.errors import AsyncCkptError, ObjectExistsError
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.cancelling import WAYS, CancelBy, Outcome, assert_cancelled, sweep
from asyncckpt.testing.formats.files import FormatFiles
from asyncckpt.testing.storage.wrappers import FaultyStorage, injected_error, storage_error_kinds
from asyncckpt.testing.strategies import assert_identical


class FaultContract(FormatFiles):
    """What a cancel or a failure leaves behind."""

    @pytest.mark.parametrize(("how", "times"), WAYS)
    async def test_save_cancelled_at_every_await(self, how: CancelBy, times: int) -> None:
        state = self.small_state()
        storages: list[MemoryStorage] = []

        async def save(token: CancellationToken | None) -> str:
            storages.append(MemoryStorage())
            return await self.save(state, storages[-1], cancellation=token)

        async def check(k: int, outcome: Outcome[str]) -> None:
            storage = storages[-1]
            assert storage.unfinished == []
            keys = [info.key async for info in storage.list()]
            assert_cancelled(outcome, how=how, times=times)
            if keys:
                # Once the commit has begun it runs to its end: then the checkpoint is there, whole.
                leader = next((key for key in keys if key.endswith(self._leader_ending())), None)
                assert leader is not None, f"only {keys} are left after a cancel at await {k}"
                assert_identical(await self.load(storage, leader), state)
            else:
                assert not outcome.completed

        await sweep(save, check, how=how, times=times)

    def _leader_ending(self) -> str:
        return self.make_format().extension

    @pytest.mark.parametrize("operation", ["load", "open", "verify"])
    @pytest.mark.parametrize("how", get_args(CancelBy))
    async def test_reads_cancelled_at_every_await(self, operation: str, how: CancelBy) -> None:
        key, files = await self.files_of(self.small_state())
        storage = await self.storage_with(files)
        run = self._reading(operation, storage, key)

        async def check(k: int, outcome: Outcome[Any]) -> None:
            assert_cancelled(outcome, how=how)
            assert storage.unfinished == []

        await sweep(run, check, how=how)

    def _reading(
        self, operation: str, storage: asyncckpt.ICheckpointStorage, key: str
    ) -> Callable[[CancellationToken | None], Coroutine[Any, Any, Any]]:
        async def load(token: CancellationToken | None) -> Any:
            return await self.load(storage, key, cancellation=token)

        async def open_and_read(token: CancellationToken | None) -> Any:
            async with asyncckpt.open_checkpoint(
                (storage, key), format=self.reading_format(), cancellation=token
            ) as checkpoint:
                return await checkpoint.read(next(iter(checkpoint.tensors)))

        async def verify(token: CancellationToken | None) -> Any:
            return await asyncckpt.verify((storage, key), format=self.reading_format(), cancellation=token)

        return {"load": load, "open": open_and_read, "verify": verify}[operation]

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_save_failed_at_every_call(self, when: Literal["before", "after"]) -> None:
        state = self.small_state()
        for kind in storage_error_kinds():
            fail_at = 0
            while True:
                inner = MemoryStorage()
                faulty = FaultyStorage(inner, fail_at=fail_at, error=partial(injected_error, kind), when=when)
                answer = await _answer_of(self.save(state, faulty))
                assert faulty.failed or not isinstance(answer, AsyncCkptError), answer
                if not faulty.failed:
                    break
                assert inner.unfinished == []
                # "Exists already" about one's own file is a lie that no storage may tell.
                if not (kind is ObjectExistsError and when == "after"):
                    await self._assert_no_leader_without_its_files(inner, state)
                fail_at += 1
            assert fail_at >= 1

    async def _assert_no_leader_without_its_files(self, storage: MemoryStorage, state: Any) -> None:
        """What makes it a checkpoint is there with all that it names, or is not there."""
        async for info in storage.list():
            if info.key.endswith(self._leader_ending()):
                assert_identical(await self.load(storage, info.key), state)

    @pytest.mark.parametrize("operation", ["load", "open", "verify"])
    async def test_reads_failed_at_every_call(self, operation: str) -> None:
        key, files = await self.files_of(self.small_state())
        for kind in storage_error_kinds():
            fail_at = 0
            while True:
                inner = await self.storage_with(files)
                faulty = FaultyStorage(inner, fail_at=fail_at, error=partial(injected_error, kind))
                answer = await _answer_of(self._reading(operation, faulty, key)(None))
                noticed = isinstance(answer, AsyncCkptError) or not getattr(answer, "ok", True)
                assert bool(faulty.failed) == noticed, (faulty.failed, answer)
                if not faulty.failed:
                    break
                fail_at += 1
            assert fail_at >= 1


async def _answer_of(operation: Coroutine[Any, Any, object]) -> object:
    """Its result, or the error of ours that it ended in; any other error passes."""
    try:
        return await operation
    except AsyncCkptError as error:
        return error
