"""Slices: the same items as numpy's, from the bytes that hold them and little else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncckpt
from asyncckpt.model import checksums as digests
from asyncckpt.operations.reading import runs
from asyncckpt.operations.reading.runs import runs_of
from asyncckpt.operations.reading.slices import select
from asyncckpt.storage.memory import MemoryStorage
from tests.operations.test_requests import RemoteMemory

SHAPES = [(), (0,), (7,), (5, 0, 3), (6, 5), (4, 3, 5), (2, 3, 2, 3)]


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...], *, ellipsis: bool = True) -> tuple[Any, ...]:
    """Anything numpy takes as basic index of that shape: integers and slices of any step, '...', or fewer of them."""
    first = draw(st.integers(0, len(shape)))
    parts = [draw(_part(size)) for size in shape[:first]]
    if not ellipsis or not draw(st.booleans()):
        return tuple(parts)
    last = draw(st.integers(0, len(shape) - first))
    return (*parts, ..., *[draw(_part(size)) for size in shape[len(shape) - last :]])


def _part(size: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    choice = st.builds(slice, bound, bound, step)
    integers = st.integers(-size, size - 1)
    return choice | integers | integers.map(np.int64) if size else choice


@st.composite
def shapes_and_indices(draw: st.DrawFn, *, ellipsis: bool = True) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    shape = draw(st.sampled_from(SHAPES) | st.lists(st.integers(0, 5), max_size=4).map(tuple))
    return shape, draw(indices(shape, ellipsis=ellipsis))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(prod(shape), dtype=np.int32).reshape(shape)


# --- the arithmetic ---------------------------------------------------------------------------------------------


@given(case=shapes_and_indices(), most_runs=st.sampled_from([1, 3, 4096]))
def test_the_runs_hold_every_selected_item(
    case: tuple[tuple[int, ...], tuple[Any, ...]], most_runs: int
) -> None:
    shape, index = case
    array = numbered(shape)
    selection = select(shape, index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_MOST_RUNS", most_runs)
        found = runs_of(shape, 4, selection.positions)
    read = np.full(array.size, -1, np.int32)
    for run in found:
        assert 0 <= run.start < run.end <= array.nbytes
        read[run.start // 4 : run.end // 4] = array.reshape(-1)[run.start // 4 : run.end // 4]
    assert np.array_equal(selection.of(read.reshape(shape)), array[index])
    assert all(before.end < after.start for before, after in pairwise(found))


@given(case=shapes_and_indices())
def test_picked_items_become_what_numpy_gives_and_back(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, index = case
    array, selection = numbered(shape), select(shape, index)
    expected = array[(*index, ...)] if ... not in index else array[index]
    picked = array[np.ix_(*selection.positions)] if shape else array
    assert picked.shape == selection.shape
    assert np.array_equal(selection.view(picked), expected)
    assert selection.view(picked).shape == expected.shape
    destination = np.full(expected.shape, -1, np.int32)
    selection.array(destination)[...] = picked
    assert np.array_equal(destination, expected)


@given(case=shapes_and_indices(ellipsis=False))
def test_a_box_is_read_without_a_byte_too_many(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, index = case
    plain = tuple(
        slice(part.start, part.stop) if isinstance(part, slice) else slice(part % size, part % size + 1)
        for part, size in zip(index, shape, strict=False)
    )
    found = runs_of(shape, 4, select(shape, plain).positions)
    assert sum(run.size for run in found) == numbered(shape)[plain].nbytes


def test_rows_that_a_step_leaves_out_are_not_read() -> None:
    shape = (1000, 1024)
    found = runs_of(shape, 4, select(shape, slice(3, None, 100)).positions)
    assert [run.start // 4096 for run in found] == list(range(3, 1000, 100))
    assert sum(run.size for run in found) == 10 * 4096
    # Of neighbours, what lies between them is cheaper than another request.
    assert len(runs_of(shape, 4, select(shape, slice(3, None, 2)).positions)) == 1


@pytest.mark.parametrize(
    ("shape", "index", "message"),
    [
        ((2, 3), (0, 0, 0), "3 indices for a tensor of rank 2"),
        ((2, 3), (5,), "index 5 is outside a dimension of 2"),
        ((2, 3), (0, -4), "index -4 is outside a dimension of 3"),
        ((0,), (0,), "index 0 is outside a dimension of 0"),
        ((), (0,), "1 indices for a tensor of rank 0"),
        ((2, 3), (0, ..., 0, 0), "3 indices for a tensor of rank 2"),
        ((2, 3), (..., 0, ...), "only one '...'"),
        ((2, 3), (None, 0), "not of NoneType: read the tensor and index it"),
        ((2, 3), (True,), "not of bool"),
        ((2, 3), ([0, 1],), "not of list"),
        ((2, 3), (np.array([True, False]),), "not of ndarray"),
        ((2, 3), (1.0,), "not of float"),
        ((2, 3), ("0",), "not of str"),
        ((2, 3), (slice(0, 1.5),), "not a slice of a dimension"),
        ((2, 3), (slice(None, None, 0),), "not a slice of a dimension"),
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_is_refused(shape: tuple[int, ...], index: Any, message: str) -> None:
    with pytest.raises(asyncckpt.MismatchError, match=message):
        select(shape, index)


# --- read from a checkpoint -------------------------------------------------------------------------------------


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors have many checksum chunks."""
    monkeypatch.setattr(digests, "MIN_CHUNK_BYTES", 64)


async def _save(storage: asyncckpt.ICheckpointStorage) -> dict[str, np.ndarray]:
    state = {f"t{i}": numbered(shape) for i, shape in enumerate(SHAPES)}
    # Wide enough that most of it lies beyond the block that an open reads.
    state["wide"] = np.arange(90_000, dtype=np.int32).reshape(300, 300)
    await asyncckpt.save(state, (storage, "a.checkpoint"))
    return state


@pytest.mark.usefixtures("tiny_chunks")
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", ["memory", "remote", "local"])
async def test_slices_of_a_checkpoint_are_numpys(kind: str, verify: bool, tmp_path: Path) -> None:
    makers: dict[str, Callable[[], asyncckpt.ICheckpointStorage]] = {
        "memory": MemoryStorage,
        "remote": RemoteMemory,
        "local": lambda: asyncckpt.LocalStorage(tmp_path),
    }
    storage = makers[kind]()
    state = await _save(storage)
    examples = 0
    async with storage, asyncckpt.open_checkpoint((storage, "a.checkpoint"), verify=verify) as checkpoint:
        for name, index in _every_kind_of_index(state):
            found = await checkpoint.read_slice(name, index)
            expected = state[name][index]
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape, (name, index)
            assert np.array_equal(found, expected), (name, index)
            examples += 1
    assert examples > 80


def _every_kind_of_index(state: dict[str, np.ndarray]) -> list[tuple[str, tuple[Any, ...]]]:
    parts: list[Any] = [
        slice(None),
        slice(1, 3),
        slice(None, None, 2),
        slice(None, None, -1),
        slice(3, 1),
        0,
        -1,
    ]
    cases: list[tuple[str, tuple[Any, ...]]] = []
    for name, array in state.items():
        cases.append((name, ()))
        for part in parts:
            for axis in range(array.ndim):
                if isinstance(part, int) and not array.shape[axis]:
                    continue
                cases.append((name, (*[slice(None)] * axis, part)))
    cases += [("wide", (slice(100, 200, 7), slice(250, 3, -9))), ("wide", (299, 299)), ("t5", (-1, -1, -1))]
    return cases


@given(data=st.data())
async def test_any_slice_of_a_remote_checkpoint(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    index = data.draw(indices(shape))
    storage = RemoteMemory()
    await asyncckpt.save({"w": numbered(shape)}, (storage, "x"))
    async with asyncckpt.open_checkpoint((storage, "x")) as checkpoint:
        found = await checkpoint.read_slice("w", index)
    assert np.array_equal(found, numbered(shape)[index])
    assert found.shape == numbered(shape)[index].shape


@pytest.mark.usefixtures("tiny_chunks")
async def test_a_damaged_chunk_fails_the_slices_that_touch_it_and_no_other() -> None:
    storage = RemoteMemory()
    await _save(storage)
    data = bytearray(await storage.read("a.checkpoint"))
    needle = np.arange(45_000, 45_010, dtype=np.int32).tobytes()
    data[data.index(needle)] ^= 1
    await storage.write("a.checkpoint", data)
    async with asyncckpt.open_checkpoint((storage, "a.checkpoint")) as checkpoint:
        with pytest.raises(asyncckpt.ChecksumMismatchError, match="'wide'") as caught:
            await checkpoint.read_slice("wide", 150)
        assert caught.value.tensor == "wide"
        rows = await checkpoint.read_slice("wide", slice(160, 170))
    assert rows[0, 0] == 160 * 300


async def test_a_single_index_or_slice_needs_no_tuple() -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"w": numbered((4, 3))}, (storage, "x"))
    async with asyncckpt.open_checkpoint((storage, "x")) as checkpoint:
        assert np.array_equal(await checkpoint.read_slice("w", 2), numbered((4, 3))[2])
        assert np.array_equal(await checkpoint.read_slice("w", slice(1, 2)), numbered((4, 3))[1:2])
        whole = await checkpoint.read_slice("w", ...)
        assert np.array_equal(whole, numbered((4, 3)))
        assert np.array_equal(await checkpoint.read_slice("w", (..., 1)), numbered((4, 3))[..., 1])
        assert (await checkpoint.read_slice("w", (1, ..., 2))).shape == ()
        wrong: Any
        for wrong in ([0, 1], None, "0", 1.5, np.array([0]), {0}):
            with pytest.raises(
                asyncckpt.InvalidArgumentError, match=r"^index must be integers, slices and '...'"
            ):
                await checkpoint.read_slice("w", wrong)
        with pytest.raises(asyncckpt.InvalidArgumentError, match=r"^name must be a str, not int$"):
            await checkpoint.read(5)  # type: ignore[arg-type]
        with pytest.raises(asyncckpt.TensorNotFoundError, match="no tensor 'v'"):
            await checkpoint.read_slice("v", 0)
