"""The members of a set whose leader failed: removed only when it is certain that no leader names them."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

import asyncckpt
from asyncckpt.errors import AccessDeniedError, OutcomeUnknownError, StorageError
from asyncckpt.storage import base
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.wrappers import CountingStorage, FaultyStorage, When, injected_error
from asyncckpt.testing.strategies import assert_identical

LEADER = "run/model.safetensors.index.json"
STATE = {"w": [np.full(50, i, np.float32) for i in range(3)]}


async def keys_of(storage: MemoryStorage) -> list[str]:
    return [info.key async for info in storage.list()]


async def puts_of_a_save() -> int:
    counting = CountingStorage(MemoryStorage())
    await asyncckpt.save(STATE, (counting, LEADER))
    assert counting.log == ["put"] * len(counting.log)
    return len(counting.log)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_they_stay_while_nobody_knows(when: When, caplog: pytest.LogCaptureFixture) -> None:
    memory, last = MemoryStorage(), await puts_of_a_save() - 1
    faulty = FaultyStorage(memory, fail_at=last, error=lambda: injected_error(OutcomeUnknownError), when=when)
    with caplog.at_level(logging.WARNING, "asyncckpt"), pytest.raises(OutcomeUnknownError) as caught:
        await asyncckpt.save(STATE, (faulty, LEADER))
    [note] = caught.value.__notes__
    members = sorted(key for key in await keys_of(memory) if key != LEADER)
    assert len(members) == last
    assert all(member in note for member in members)
    assert "nobody knows whether" in note
    assert note in caplog.text
    if when == "after":
        assert_identical(await asyncckpt.load((memory, LEADER)), STATE)


async def test_they_stay_with_a_leader_that_was_written_although_it_failed() -> None:
    memory, last = MemoryStorage(), await puts_of_a_save() - 1
    faulty = FaultyStorage(
        memory, fail_at=last, error=lambda: injected_error(AccessDeniedError), when="after"
    )
    with pytest.raises(AccessDeniedError):
        await asyncckpt.save(STATE, (faulty, LEADER))
    assert_identical(await asyncckpt.load((memory, LEADER)), STATE)


async def test_they_go_when_the_leader_is_not_there() -> None:
    memory, last = MemoryStorage(), await puts_of_a_save() - 1
    faulty = FaultyStorage(memory, fail_at=last, error=lambda: injected_error(AccessDeniedError))
    with pytest.raises(AccessDeniedError) as caught:
        await asyncckpt.save(STATE, (faulty, LEADER))
    assert await keys_of(memory) == []
    assert not hasattr(caught.value, "__notes__")


async def test_what_cannot_be_removed_is_told() -> None:
    class Undeletable(FaultyStorage):
        async def _delete(self, key: str) -> None:
            raise AccessDeniedError(f"{key} is kept")

    memory, last = MemoryStorage(), await puts_of_a_save() - 1
    faulty = Undeletable(memory, fail_at=last, error=lambda: injected_error(StorageError))
    with pytest.raises(StorageError, match="injected") as caught:
        await asyncckpt.save(STATE, (faulty, LEADER))
    assert len(caught.value.__notes__) == last == len(await keys_of(memory))
    assert all("could not be removed" in note for note in caught.value.__notes__)


async def test_a_silent_store_and_a_cancel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel is raised, with "unknown" as its cause, and the members stay."""
    monkeypatch.setattr(base, "COMMIT_TIMEOUT", 0.01)

    class Silent(CountingStorage):
        async def _put(self, key: str, *args: object, **options: object) -> asyncckpt.ObjectInfo:
            if key == LEADER:
                task.cancel()
                await asyncio.get_running_loop().create_future()
            return await super()._put(key, *args, **options)  # type: ignore[arg-type]

    memory = MemoryStorage()
    task = asyncio.ensure_future(asyncckpt.save(STATE, (Silent(memory), LEADER)))
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OutcomeUnknownError)
    assert "did not end within" in str(caught.value.__cause__)
    assert len(await keys_of(memory)) == await puts_of_a_save() - 1
