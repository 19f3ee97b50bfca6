"""Storages after a fork, and storages that nobody closed."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.errors import StorageError, UnavailableError
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.fsspec.storage import FsspecStorage
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.retry import NO_RETRY
from asyncckpt.storage.s3.storage import S3Storage
from tests.forks import exit_code_of_fork

MOVING: dict[str, Callable[[Path], ICheckpointStorage]] = {
    "memory": lambda folder: MemoryStorage(),
    "local": LocalStorage,
    "fsspec url": lambda folder: FsspecStorage(f"file://{folder}"),
    "fsspec memory": lambda folder: FsspecStorage(f"memory://{folder.name}"),
}
pytestmark = pytest.mark.filterwarnings("ignore::asyncckpt.storage.NotAtomicWarning")
NOWHERE = "http://127.0.0.1:9"
FIXED: dict[str, Callable[[], ICheckpointStorage]] = {
    "s3": lambda: S3Storage(
        "bucket",
        storage_options={"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": NOWHERE}},
        retry=NO_RETRY,
    ),
    "gcs": lambda: GcsStorage(
        "bucket", storage_options={"token": "anon", "endpoint_url": NOWHERE}, retry=NO_RETRY
    ),
    "http": lambda: FsspecStorage(f"{NOWHERE}/folder", retry=NO_RETRY),
}


@pytest.mark.parametrize("kind", MOVING)
async def test_an_open_storage_goes_on_in_the_child_of_a_fork(kind: str, tmp_path: Path) -> None:
    async def use(storage: ICheckpointStorage) -> None:
        assert await storage.read("key") == b"data"
        await storage.write("other", bytes(20_000_000))
        async with storage.open_writer("parts", part_bytes=1000) as writer:
            await writer.write_part(0, [b"data"])
        assert [info.key async for info in storage.list()] == ["key", "other", "parts"]
        for key in ("other", "parts"):
            await storage.delete(key)
        await storage.aclose()

    async with MOVING[kind](tmp_path) as storage:
        await storage.write("key", b"data")
        async with storage.open_reader("key", first_bytes=2) as reader:
            assert await reader.read_range(0, 4) == b"data"
            code = await run_in_thread(exit_code_of_fork, lambda: asyncio.run(use(storage)))
        assert code == 0
        assert await storage.read("key") == b"data"
        await storage.delete("key")


@pytest.mark.parametrize("kind", FIXED)
async def test_a_storage_with_connections_says_what_to_do_after_a_fork(kind: str) -> None:
    async def use(storage: ICheckpointStorage) -> None:
        for call in (storage.read("key"), storage.write("key", b""), storage.delete("key"), storage.aclose()):
            with pytest.raises(
                StorageError, match=r"opened in process \d+.* a fork; open one in each process"
            ):
                await call
        with pytest.raises(StorageError, match="open one in each process"):
            [info async for info in storage.list()]

    async with FIXED[kind]() as storage:
        with pytest.raises(UnavailableError):
            await storage.read("key")
        assert await run_in_thread(exit_code_of_fork, lambda: asyncio.run(use(storage))) == 0


@pytest.mark.parametrize("kind", ["local", "fsspec url", "fsspec memory"])
async def test_threads_of_a_storage_that_is_never_closed_end_with_it(kind: str, tmp_path: Path) -> None:
    async def use() -> tuple[weakref.ref[ICheckpointStorage], list[threading.Thread]]:
        storage = await MOVING[kind](tmp_path).__aenter__()
        await storage.write("key", b"data")
        async with storage.open_reader("key") as reader:
            assert await reader.read_range(0, 4) == b"data"
        await storage.delete("key")
        started = [thread for thread in threading.enumerate() if thread not in before]
        assert started
        return weakref.ref(storage), started

    before = threading.enumerate()
    gone, started = await use()
    gc.collect()
    assert gone() is None
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()
