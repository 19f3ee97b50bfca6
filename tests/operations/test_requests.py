"""Few requests, and only the bytes that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.storage.base import Capabilities, ICheckpointStorage, ObjectReader
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.wrappers import CountingStorage
from tests.operations.places import open_medium


class RemoteMemory(MemoryStorage):
    """Memory that can't be mapped, as an object store can't."""

    capabilities = Capabilities()

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        reader = await super()._open_reader(key, first_bytes=first_bytes)
        reader.map = lambda: None  # type: ignore[method-assign]
        return reader


def counting() -> CountingStorage:
    return CountingStorage(RemoteMemory())


async def test_a_small_save_is_one_request() -> None:
    storage = counting()
    await asyncckpt.save({"w": np.arange(100_000)}, (storage, "a.checkpoint"))
    assert storage.log == ["put"]


async def test_a_small_load_is_one_request() -> None:
    storage = counting()
    await asyncckpt.save({"w": np.arange(1_000), "step": 3}, (storage, "a.checkpoint"))
    storage.log.clear()
    await asyncckpt.load((storage, "a.checkpoint"))
    assert [call for call in storage.log if call not in ("map", "close_reader")] == ["open_reader"]


async def test_opening_takes_at_most_two_requests_whatever_the_header() -> None:
    for count in (1, 100, 5_000):
        storage = counting()
        state = {f"layer{i}": np.zeros(64, np.float32) for i in range(count)}
        await asyncckpt.save(state, (storage, "a.checkpoint"))
        storage.log.clear()
        async with asyncckpt.open_checkpoint((storage, "a.checkpoint")) as checkpoint:
            assert len(checkpoint.tensors) == count
        assert sum(call in ("open_reader", "fetch") for call in storage.log) <= 2


# All that store tensors as they are; the name of the format, and a set of several files where it can make one.
UNCOMPRESSED: dict[str, Callable[[], ICheckpointFormat]] = {
    **{name: lambda name=name: get_format(name) for name in format_names() if name != "sdz"},  # type: ignore[misc]
    "safetensors-set": lambda: HuggingFaceSetFormat(max_file_bytes=5 << 20),
    "sdnb in shards": lambda: SdnbFormat(shards=4),
    "sdz, stored": lambda: SdzFormat(compress=False),
}


@pytest.mark.parametrize("kind", UNCOMPRESSED)
@pytest.mark.parametrize("place", ["memory", pytest.param("minio", marks=pytest.mark.server)])
async def test_one_of_many_tensors_fetches_little_more_than_its_bytes(
    place: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    format = UNCOMPRESSED[kind]()
    key = f"model{format.extension}"
    state = {f"t{i}": np.random.default_rng(i).random(1 << 18, np.float32) for i in range(16)}
    async with AsyncExitStack() as stack:
        inner: ICheckpointStorage = RemoteMemory()
        if place == "minio":
            inner = (await stack.enter_async_context(open_medium(place, tmp_path, request))).storage
        storage = CountingStorage(inner)
        saved = await asyncckpt.save(state, (storage, key), format=format)
        async with asyncckpt.open_checkpoint((storage, saved.key)) as checkpoint:
            storage.bytes_read = 0
            array = await checkpoint.read("t5")
    assert np.array_equal(array, state["t5"])
    assert array.nbytes <= storage.bytes_read <= 1.05 * array.nbytes


async def test_a_slice_fetches_its_own_chunks() -> None:
    storage = counting()
    array = np.random.default_rng(0).random((4096, 4096), np.float32)
    await asyncckpt.save({"w": array}, (storage, "a.checkpoint"))
    async with asyncckpt.open_checkpoint((storage, "a.checkpoint")) as checkpoint:
        storage.bytes_read = 0
        piece = await checkpoint.read_slice("w", slice(1000, 1010))
    assert np.array_equal(piece, array[1000:1010])
    assert storage.bytes_read <= 2 * 1024 * 1024


async def test_a_slice_without_verification_fetches_exactly_itself() -> None:
    storage = counting()
    array = np.random.default_rng(0).random((4096, 4096), np.float32)
    await asyncckpt.save({"w": array}, (storage, "a.checkpoint"))
    async with asyncckpt.open_checkpoint((storage, "a.checkpoint"), verify=False) as checkpoint:
        storage.bytes_read = 0
        piece = await checkpoint.read_slice("w", slice(1000, 1010))
    assert np.array_equal(piece, array[1000:1010])
    assert storage.bytes_read == 10 * 4096 * 4


async def test_many_small_tensors_load_in_few_requests() -> None:
    storage = counting()
    state = {f"p{i}": np.full(300, i, np.float32) for i in range(3_000)}
    await asyncckpt.save(state, (storage, "a.checkpoint"))
    storage.log.clear()
    loaded = await asyncckpt.load((storage, "a.checkpoint"))
    assert np.array_equal(loaded["p2999"], state["p2999"])
    assert sum(call in ("open_reader", "fetch") for call in storage.log) <= 3
