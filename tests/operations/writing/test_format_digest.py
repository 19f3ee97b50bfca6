"""A hash that only the format knows runs beside the writing, reaches `finish`, and ends when nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, TensorBytes
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.storage.base import Capabilities, ICheckpointStorage
from asyncckpt.storage.memory import MemoryStorage

LARGE = 9 * 1024 * 1024


class InOrder(MemoryStorage):
    """Takes its parts one after another, as GCS does."""

    capabilities = Capabilities(any_order=False)


class Hashed(MlcpFormat):
    """MLCP with one more digest; `seen` is what `finish` was given of it."""

    def __init__(self) -> None:
        self.seen: Any = None

    def format_digest(self, read: TensorBytes) -> Any:
        return bytes(read(0, 0, 4)), threading.current_thread().name

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        (plan,) = super().plan(content, name=name)

        def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
            self.seen = digests.format
            return plan.finish(digests, read)

        return [replace(plan, finish=finish, format_digest=self.format_digest)]


class Endless(Hashed):
    """Its digest ends only when a read refuses to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def format_digest(self, read: TensorBytes) -> Any:
        while True:
            read(0, 0, 4)
            self.begun.set()


@pytest.mark.parametrize("storage", [MemoryStorage(), InOrder()], ids=["any order", "in order"])
@pytest.mark.parametrize("size", [64, LARGE])
async def test_it_reaches_finish_from_a_worker_thread(storage: ICheckpointStorage, size: int) -> None:
    format = Hashed()
    state = {"w": np.arange(size // 4, dtype=np.float32)}
    await asyncckpt.save(state, (storage, "a.checkpoint"), format=format, overwrite=True)
    first, thread = format.seen
    assert first == state["w"][:1].tobytes()
    assert thread != threading.main_thread().name
    assert np.array_equal((await asyncckpt.load((storage, "a.checkpoint")))["w"], state["w"])


@pytest.mark.parametrize("storage", [MemoryStorage(), InOrder()], ids=["any order", "in order"])
async def test_a_cancel_ends_it_at_its_next_read(storage: MemoryStorage) -> None:
    format = Endless()
    state = {"w": np.zeros(LARGE // 4, np.float32)}
    saving = asyncio.create_task(asyncckpt.save(state, (storage, "a.checkpoint"), format=format))
    await asyncio.to_thread(format.begun.wait)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert (storage.unfinished, format.seen) == ([], None)
    assert [info.key async for info in storage.list("")] == []
