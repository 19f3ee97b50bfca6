"""The point of no return: once the commit has begun it runs to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

import asyncckpt
from asyncckpt.model.checksums import Buffer
from asyncckpt.storage import base
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.memory import MemoryStorage


class SlowCommit(MemoryStorage):
    """Says when a PUT has begun, and ends it when told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        self.begun.set()
        await self.go_on.wait()
        return await super()._put(key, views, exclusive=exclusive, write_id=write_id)


async def test_a_token_that_fires_during_the_commit_is_ignored() -> None:
    storage = SlowCommit()
    source = asyncckpt.CancellationTokenSource()
    saving = asyncio.create_task(asyncckpt.save({"a": 1}, (storage, "x"), cancellation=source.token))
    await storage.begun.wait()
    source.cancel("too late")
    await asyncio.sleep(0)
    storage.go_on.set()
    result = await saving
    assert result.key == "x"
    assert await asyncckpt.load((storage, "x")) == {"a": 1}


async def test_a_task_cancel_during_the_commit_is_raised_after_it_and_progress_says_committed() -> None:
    storage = SlowCommit()
    events: list[asyncckpt.ProgressEvent] = []
    saving = asyncio.create_task(asyncckpt.save({"a": 1}, (storage, "x"), progress=events.append))
    await storage.begun.wait()
    saving.cancel()
    await asyncio.sleep(0)
    assert not saving.done()
    storage.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert (events[-1].phase, events[-1].committed) == (asyncckpt.Phase.DONE, True)
    assert await asyncckpt.load((storage, "x")) == {"a": 1}


async def test_a_silent_store_ends_in_outcome_unknown_with_the_write_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "COMMIT_TIMEOUT", 0.05)
    storage = SlowCommit()
    with pytest.raises(asyncckpt.OutcomeUnknownError, match="write id") as caught:
        await asyncckpt.save({"a": 1}, (storage, "x"))
    assert caught.value.write_id in str(caught.value)


async def test_the_tree_and_its_values_are_captured_before_the_first_await() -> None:
    storage = MemoryStorage()
    state = {"values": [1, 2], "nested": {"lr": 0.5}, "w": np.arange(3)}
    metadata = {"tags": ["a"]}
    saving = asyncio.create_task(asyncckpt.save(state, (storage, "x"), metadata=metadata))
    await asyncio.sleep(0)
    metadata["tags"].append("b")
    state["values"].append(3)  # type: ignore[attr-defined]
    state["nested"] = {}
    del state["w"]
    await saving
    loaded = await asyncckpt.load((storage, "x"))
    assert (loaded["values"], loaded["nested"]) == ([1, 2], {"lr": 0.5})
    assert np.array_equal(loaded["w"], np.arange(3))
    async with asyncckpt.open_checkpoint((storage, "x")) as checkpoint:
        assert checkpoint.metadata.custom_fields == {"tags": ["a"]}


@pytest.mark.parametrize("size", [1_000, 8_000_000])
async def test_arrays_are_captured_when_progress_leaves_the_staging(size: int) -> None:
    storage = MemoryStorage()
    array = np.zeros(size, np.float32)

    def change(event: asyncckpt.ProgressEvent) -> None:
        if event.phase is asyncckpt.Phase.PLAN:
            array[:] = 9

    await asyncckpt.save({"w": array}, (storage, "x"), progress=change)
    assert array[0] == 9
    assert not (await asyncckpt.load((storage, "x")))["w"].any()
    assert (await asyncckpt.verify((storage, "x"))).ok
