"""Staging: a private copy of the arrays, or none when they are handed over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncckpt
from asyncckpt._aio import WorkerThreads
from asyncckpt.operations.writing.staging import layout
from asyncckpt.operations.writing.staging.layout import Tensors, normalise
from asyncckpt.operations.writing.staging.stager import NumpyStager
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.strategies import assert_identical


@pytest.fixture
async def threads() -> AsyncIterator[WorkerThreads]:
    async with WorkerThreads(2, name="stage") as pool:
        yield pool


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "plain": rng.random((30, 7)),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5),
        "strided": rng.random((10, 10))[::2, 1:],
        "fortran": np.asfortranarray(rng.random((5, 4))),
        "big-endian": np.arange(9, dtype=">i4"),
        "bfloat16": np.arange(11).astype(ml_dtypes.bfloat16),
        "large": rng.integers(0, 255, 5_000, np.uint8),
    }


async def staged_bytes(tensors: Tensors, threads: WorkerThreads) -> list[bytes]:
    lease = await NumpyStager().stage(tensors, threads)
    views = [memoryview(lease.source.read(n, 0, t.size)) for n, t in enumerate(tensors.table)]
    assert all(view.readonly for view in views)
    return [bytes(view) for view in views]


@pytest.mark.parametrize("small_bytes", [0, 100, 1 << 14])
@pytest.mark.parametrize("copy_bytes", [1, 64, 1_000, 1 << 25])
async def test_the_copy_is_exact_however_it_is_cut(
    threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch, copy_bytes: int, small_bytes: int
) -> None:
    monkeypatch.setattr(layout, "_COPY_BYTES", copy_bytes)
    monkeypatch.setattr(layout, "_JOINED_BYTES", copy_bytes)
    monkeypatch.setattr(layout, "_SMALL_BYTES", small_bytes)
    given = {n: a[:200] if n == "large" else a for n, a in arrays().items()} if copy_bytes == 1 else arrays()
    tensors = normalise(given, {})
    for array, data in zip(given.values(), await staged_bytes(tensors, threads), strict=True):
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
        assert data == little.tobytes()


async def test_what_is_staged_does_not_change_with_the_array(threads: WorkerThreads) -> None:
    given = arrays()
    tensors = normalise(given, {})
    lease = await NumpyStager().stage(tensors, threads)
    sizes = [tensor.size for tensor in tensors.table]
    before = [bytes(lease.source.read(number, 0, size)) for number, size in enumerate(sizes)]
    assert any(map(any, before))
    for array in given.values():
        array[...] = 0
    assert [bytes(lease.source.read(number, 0, size)) for number, size in enumerate(sizes)] == before


def test_only_what_is_still_the_callers_has_to_be_copied() -> None:
    tensors = normalise(arrays(), {})
    shared = dict(zip([t.name for t in tensors.table], tensors.shared, strict=True))
    assert shared["plain"]
    assert shared["bfloat16"]
    assert not shared["strided"]
    assert not shared["big-endian"]


async def test_a_state_that_another_task_changes_comes_back_as_it_was_at_the_call() -> None:
    storage = MemoryStorage()
    array = np.zeros(500_000, np.float32)
    state: dict[str, Any] = {"w": array, "history": [1], "lr": 0.1}

    def change(event: asyncckpt.ProgressEvent) -> None:
        if event.phase is asyncckpt.Phase.WRITE:
            array[:] = 1
        state["history"].append(2)
        state["lr"] = 0.2

    await asyncckpt.save(state, (storage, "x"), progress=change)
    expected = {"w": np.zeros(500_000, np.float32), "history": [1], "lr": 0.1}
    assert_identical(await asyncckpt.load((storage, "x")), expected)


async def test_handed_over_arrays_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("an array that was handed over was staged")

    monkeypatch.setattr(NumpyStager, "stage", refuse)
    storage = MemoryStorage()
    state = {"w": np.arange(1_000)}
    await asyncckpt.save(state, (storage, "x"), copy=False)
    assert_identical(await asyncckpt.load((storage, "x")), state)
    with pytest.raises(AssertionError, match="was staged"):
        await asyncckpt.save(state, (storage, "y"))
    assert not await storage.exists("y")
