"""The read planner against numpy: any region of a tensor that is stored in any way, brought by what holds it alone."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncckpt
from asyncckpt._aio import run_in_thread
from asyncckpt.errors import ChecksumMismatchError, MismatchError, NotEnoughMemoryError
from asyncckpt.formats.kit.index import Index
from asyncckpt.model.boxes import Box
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.operations.reading import chunks
from asyncckpt.operations.reading.catalog import Catalog
from asyncckpt.operations.reading.plan import Want, plan_reads
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.wrappers import CountingStorage
from tests.operations.reading.layouts import Layout, Writing, add_tiled, layouts, tilings
from tests.operations.reading.test_slices import indices
from tests.operations.test_requests import RemoteMemory

DTYPES = ["int32", "float64", "uint8", "S3", "bfloat16", "complex64"]
SHAPES = [(), (0,), (7,), (6, 5), (3, 0, 2), (4, 3, 5), (2, 3, 2, 3)]


def filled(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    plain = numpy_dtype(dtype)
    data = np.random.default_rng(prod(shape)).integers(1, 255, prod(shape) * plain.itemsize, np.uint8)
    return np.ndarray(shape, plain, buffer=data)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


# --- values only ------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_parts_have_every_wanted_item_once(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([s for s in SHAPES if 0 not in s]))
    index = data.draw(indices(shape))
    array = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    writing = Writing()
    boxes = data.draw(tilings(shape))
    add_tiled(writing, "w", array, boxes, [Layout()] * len(boxes))
    plan = plan_reads(Catalog(index_of(writing)), [Want("w", index)])
    picked = np.full(plan.shape(0), -1, np.int64)
    for part in plan.parts:
        box, source = part.stored.metadata.box, part.source
        assert box is not None
        assert source is not None
        piece = array[box.within(Box((0,) * len(shape), shape))].reshape(box.shape)
        target: tuple[Any, ...] = part.target
        assert (picked[(*target, ...)] == -1).all()
        picked[(*target, ...)] = piece[np.ix_(*source)] if shape else piece
    assert_same(plan.selections[0].view(picked), array[(*index, ...)] if ... not in index else array[index])


def index_of(writing: Writing) -> Index:
    return Index("described", "1", CheckpointMetadata(), tuple(writing.tensors), files=("", "b", "below/c"))


def test_a_box_that_leaves_the_tensor_is_refused() -> None:
    writing = Writing()
    writing.add("w", filled("int32", (4, 5)), Layout())
    catalog = Catalog(index_of(writing))
    assert plan_reads(catalog, [Want("w", Box((1, 1), (3, 4)))]).size == 4 * 12
    for box in (Box((1, 1), (4, 4)), Box((-1, 0), (1, 1)), Box((0,), (4,))):
        with pytest.raises(MismatchError, match="leaves tensor 'w', whose shape is"):
            plan_reads(catalog, [Want("w", box)])


# --- read -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mapped", "remote"])
@given(data=st.data())
async def test_whatever_the_layout_reads_are_numpys(kind: str, data: st.DataObject) -> None:
    shape, dtype = data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(DTYPES))
    array = filled(dtype, shape)
    writing = Writing()
    writing.add("whole", array, data.draw(layouts()))
    boxes = data.draw(tilings(shape))
    add_tiled(writing, "tiled", array, boxes, [data.draw(layouts()) for _ in boxes])
    storage = MemoryStorage() if kind == "mapped" else RemoteMemory()
    format = await writing.write(storage)
    async with asyncckpt.open_checkpoint(
        (storage, "a.described"),
        format=format,
        verify=data.draw(st.booleans()),
        memory_bytes=data.draw(st.sampled_from([1, 100, 1 << 20])),
    ) as checkpoint:
        for name in ("whole", "tiled"):
            index = data.draw(indices(shape))
            assert_same(await checkpoint.read(name), array)
            assert_same(np.asarray(await checkpoint.read_slice(name, index)), np.asarray(array[index]))
            for place in places(array):
                await checkpoint.read_into(name, place)
                assert_same(place.astype(array.dtype), array)
        both = await checkpoint.read_many(["tiled", "whole"], into={"whole": np.empty_like(array)})
        assert list(both) == ["tiled", "whole"]
        assert_same(both["tiled"], both["whole"])
        start = data.draw(st.integers(0, array.nbytes))
        end = data.draw(st.integers(start, array.nbytes))
        assert bytes(await checkpoint.read_bytes("whole", start, end)) == array.tobytes()[start:end]
        await checkpoint.check_stored("whole")


def places(array: np.ndarray) -> list[np.ndarray]:
    """Arrays to fill: as the tensor lies, with gaps, backwards, in the other order."""
    dtype, shape = array.dtype, array.shape
    found = [np.empty(shape, dtype), np.empty(shape, dtype, order="F"), np.empty((*shape, 2), dtype)[..., 1]]
    if shape:
        found.append(np.empty(shape, dtype)[::-1])
    if dtype.kind in "if" and dtype.itemsize > 1:
        found.append(np.empty(shape, dtype.newbyteorder(">")))
    return found


async def test_a_region_goes_into_a_region() -> None:
    """As ranks will do it: a box of the global tensor into a box of an array that exists."""
    array = filled("int32", (6, 8))
    writing = Writing()
    add_tiled(
        writing, "w", array, [Box((0, 0), (6, 3)), Box((0, 3), (6, 5))], [Layout(), Layout(frame_bytes=16)]
    )
    storage = RemoteMemory()
    format = await writing.write(storage)
    async with asyncckpt.open_checkpoint((storage, "a.described"), format=format) as checkpoint:
        local = np.zeros((4, 6), np.int32)
        (found,) = await checkpoint._fetcher.read([Want("w", Box((1, 1), (3, 5)), local[1:, :5])])
        assert found.base is local
        assert np.array_equal(local[1:, :5], array[1:4, 1:6])
        assert not local[0].any()
        assert not local[:, 5].any()
        with pytest.raises(
            MismatchError, match=r"the slice has the shape \[3, 5\], the array to fill \[4, 6\]"
        ):
            await checkpoint._fetcher.read([Want("w", Box((1, 1), (3, 5)), local)])


# --- counted ----------------------------------------------------------------------------------------------------


async def opened(writing: Writing) -> tuple[CountingStorage, Any]:
    storage = CountingStorage(RemoteMemory())
    return storage, await writing.write(storage)


async def test_a_slice_of_a_tensor_in_pieces_reads_the_chunks_that_hold_it() -> None:
    array = np.random.default_rng(0).random((2048, 1024), np.float32)
    writing = Writing()
    boxes = [Box((row, 0), (256, 1024)) for row in range(0, 2048, 256)]
    add_tiled(writing, "w", array, boxes, [Layout(chunk_bytes=1 << 16)] * 8)
    storage, format = await opened(writing)
    async with asyncckpt.open_checkpoint((storage, "a.described"), format=format) as checkpoint:
        storage.bytes_read = 0
        assert np.array_equal(await checkpoint.read_slice("w", 700), array[700])
        assert storage.bytes_read == 1 << 16
        storage.bytes_read = 0
        assert np.array_equal(await checkpoint.read_slice("w", slice(255, 257)), array[255:257])
        assert 2 << 16 <= storage.bytes_read <= (2 << 16) + 3  # what lies between the two pieces


@pytest.mark.parametrize("chunk_bytes", [0, 1 << 16, 1 << 14])
async def test_a_slice_decodes_the_frames_that_hold_it(chunk_bytes: int) -> None:
    array = np.random.default_rng(0).integers(0, 9, 4 << 20, np.uint8)
    writing = Writing()
    writing.add("w", array, Layout(frame_bytes=1 << 16, chunk_bytes=chunk_bytes))
    storage, format = await opened(writing)
    async with asyncckpt.open_checkpoint((storage, "a.described"), format=format) as checkpoint:
        storage.bytes_read = 0
        storage.log.clear()
        found = await checkpoint.read_slice("w", slice(3_000_000, 3_000_003))
        assert np.array_equal(found, array[3_000_000:3_000_003])
        assert writing.decoded == [("w", 3_000_000 >> 16)]
        assert storage.bytes_read < 1 << 16
        assert storage.calls["fetch"] == 1
        writing.decoded.clear()
        await checkpoint.read("w")
        assert sorted(writing.decoded) == [("w", number) for number in range(64)]


async def test_frames_that_lie_together_are_fetched_together() -> None:
    writing = Writing()
    for number in range(500):
        writing.add(f"t{number}", np.full(1000, number, np.int32), Layout(frame_bytes=4096, chunk_bytes=4096))
    writing.files[0] += bytes(1 << 20)
    storage, format = await opened(writing)
    async with asyncckpt.open_checkpoint((storage, "a.described"), format=format) as checkpoint:
        storage.log.clear()
        found = await checkpoint.read_many([f"t{number}" for number in range(500)])
    assert all((array == number).all() for number, array in enumerate(found.values()))
    assert storage.calls["fetch"] <= 4


async def test_damage_in_a_frame_names_the_tensor() -> None:
    writing = Writing()
    writing.add("w", np.arange(1000, dtype=np.int32), Layout(frame_bytes=400, chunk_bytes=400))
    stored = writing.tensors[0]
    assert stored.checksums is not None
    stored.checksums[3] ^= 1
    storage, format = await opened(writing)
    async with asyncckpt.open_checkpoint((storage, "a.described"), format=format) as checkpoint:
        assert (await checkpoint.read_slice("w", slice(0, 100)))[5] == 5
        with pytest.raises(
            ChecksumMismatchError, match=r"tensor 'w' is damaged.*load another checkpoint"
        ) as caught:
            await checkpoint.read("w")
        assert caught.value.tensor == "w"


# --- memory -----------------------------------------------------------------------------------------------------


async def test_a_lack_of_memory_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> np.ndarray:
        raise MemoryError

    storage = RemoteMemory()
    await asyncckpt.save({"w": np.zeros(50_000)}, (storage, "x"))
    monkeypatch.setattr("asyncckpt.operations.reading.sorting.empty_array", none_left)
    expected = r"/x: there is not enough memory for the 400000 bytes asked for.*only=.*into="
    with pytest.raises(NotEnoughMemoryError, match=expected):
        await asyncckpt.load((storage, "x"))
    assert issubclass(NotEnoughMemoryError, MemoryError)
    assert chunks.empty_array("int32", (2, 3)).shape == (2, 3)


async def test_a_lack_of_memory_while_opening_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: Any) -> Any:
        raise MemoryError

    storage = RemoteMemory()
    await asyncckpt.save({"w": np.zeros(5)}, (storage, "x.checkpoint"))
    monkeypatch.setattr("asyncckpt.formats.mlcp.file.MlcpFormat.parse", greedy)
    with pytest.raises(
        NotEnoughMemoryError, match=r"x\.checkpoint: there is not enough memory for its header"
    ):
        await asyncckpt.load((storage, "x.checkpoint"))


# --- cancelled --------------------------------------------------------------------------------------------------


async def test_a_cancelled_read_stops_decoding_and_leaves_nothing() -> None:
    """The guards of the suite look for tasks and threads that are left."""
    writing = Writing()
    writing.add("w", np.zeros(1 << 20, np.uint8), Layout(frame_bytes=1 << 10, chunk_bytes=1 << 10))
    begun = threading.Event()
    frames = writing.tensors[0].frames
    assert frames is not None

    def slow(number: int, stored: Buffer) -> Buffer:
        begun.set()
        time.sleep(0.002)
        return frames.decode(number, stored)

    (stored,) = writing.tensors
    writing.tensors = [replace(stored, frames=replace(frames, decode=slow))]
    storage, format = await opened(writing)
    async with asyncckpt.open_checkpoint((storage, "a.described"), format=format) as checkpoint:
        reading = asyncio.ensure_future(checkpoint.read("w"))
        await run_in_thread(begun.wait)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        decoded = len(writing.decoded)
        assert decoded < 512
        assert checkpoint._fetcher._budget.held == 0
        await asyncio.sleep(0.02)
        assert len(writing.decoded) == decoded
