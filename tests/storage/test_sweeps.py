"""A failure at the k-th storage call, for every k and every kind of error: truthful, and nothing is left."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import pytest

from asyncckpt import errors
from asyncckpt._aio import run_in_thread
from asyncckpt.errors import StorageError, UnavailableError
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.wrappers import (
    CountingStorage,
    FaultyStorage,
    When,
    injected_error,
    storage_error_kinds,
)

OLD = b"the old object"


async def overwrite(storage: ICheckpointStorage) -> None:
    await storage.write("key", b"new")


async def overwrite_in_parts(storage: ICheckpointStorage) -> None:
    async with storage.open_writer("key", part_bytes=2) as writer:
        await writer.write_part(1, [b"w"])
        await writer.copy_part(0, "other", 0, 2)


async def look_at_everything(storage: ICheckpointStorage) -> None:
    async with storage.open_reader("key", first_bytes=3) as reader:
        assert await reader.read_range(2, 5) == OLD[2:5]
        assert bytes(await run_in_thread(reader.map) or b"") == OLD
    assert (await storage.stat("key")).size == len(OLD)
    assert [info.key async for info in storage.list()] == ["key", "other"]


async def remove(storage: ICheckpointStorage) -> None:
    await storage.delete("key", missing_ok=False)


OPERATIONS = [overwrite, overwrite_in_parts, look_at_everything, remove]


async def filled_memory() -> MemoryStorage:
    memory = MemoryStorage()
    await memory.write("key", OLD)
    await memory.write("other", b"ne")
    return memory


@pytest.mark.parametrize("kind", storage_error_kinds())
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_fail_at_each_call(
    operation: Callable[[ICheckpointStorage], Awaitable[None]], when: When, kind: type[StorageError]
) -> None:
    for k in range(50):
        memory = await filled_memory()
        storage = FaultyStorage(memory, fail_at=k, error=lambda: injected_error(kind), when=when)
        raised: StorageError | None = None
        try:
            await operation(storage)
        except StorageError as error:
            raised = error
        assert memory.unfinished == []
        if raised is None:
            assert storage.failed is None
            return
        assert type(raised) is kind
        assert storage.failed
        if when == "before" and operation is not remove:
            assert await memory.read("key") == OLD
    pytest.fail("the operation never came to its end")


async def test_every_kind_of_storage_error_is_injected() -> None:
    kinds = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StorageError)
    }
    assert set(storage_error_kinds()) == kinds
    assert {type(injected_error(kind)) for kind in kinds} == kinds


async def test_calls_and_bytes_are_counted() -> None:
    storage = CountingStorage(await filled_memory())
    await overwrite_in_parts(storage)
    await storage.read_range("key", 0, 2)
    assert storage.log == "open_writer write_part copy_part commit open_reader fetch close_reader".split()
    assert storage.calls["fetch"] == 1
    assert (storage.bytes_written, storage.bytes_read) == (1, 2)
    assert storage.capabilities == MemoryStorage.capabilities


async def test_a_failed_commit_is_followed_by_an_abort() -> None:
    storage = FaultyStorage(await filled_memory(), fail_at=3)
    with pytest.raises(UnavailableError, match="injected"):
        await overwrite_in_parts(storage)
    assert storage.failed == "commit"
    assert storage.log[-1] == "abort"
