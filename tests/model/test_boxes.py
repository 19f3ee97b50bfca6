"""Boxes against numpy: what an array of marks would say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.model.boxes import Box, boxes_of_run, overlap, tiles, whole


@st.composite
def boxes_in(draw: st.DrawFn, dims: int, count: int) -> list[Box]:
    sides = st.tuples(st.integers(0, 5), st.integers(0, 4))
    drawn = [draw(st.lists(sides, min_size=dims, max_size=dims)) for _ in range(count)]
    return [Box(tuple(o for o, _ in box), tuple(n for _, n in box)) for box in drawn]


def marks(box: Box) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    field = np.zeros((10,) * len(box.shape), dtype=np.int64)
    field[box.within(whole(field.shape))] = 1
    return field


@given(st.data(), st.integers(0, 3))
def test_intersection_is_where_both_are(data: st.DataObject, dims: int) -> None:
    a, b = data.draw(boxes_in(dims, 2))
    common = a.intersect(b)
    both = marks(a) & marks(b)
    assert common == b.intersect(a)
    if common is None:
        assert not both.any()
    else:
        assert np.array_equal(marks(common), both)
        assert common.volume == both.sum()


@given(st.data(), st.integers(0, 3))
def test_within_cuts_the_box_out_of_an_array(data: st.DataObject, dims: int) -> None:
    a, b = data.draw(boxes_in(dims, 2))
    common = a.intersect(b)
    if common is None:
        return
    field = np.arange(10**dims).reshape((10,) * dims)
    outer = field[a.within(whole(field.shape))]
    assert np.array_equal(outer[common.within(a)], field[common.within(whole(field.shape))])


@given(st.data(), st.integers(1, 3), st.integers(0, 4))
def test_tiles_means_each_element_once(data: st.DataObject, dims: int, count: int) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=dims, max_size=dims)))
    boxes = data.draw(boxes_in(dims, count))
    inside = [box for box in boxes if all(map(int.__le__, box.end, shape))]
    hits = sum((marks(box) for box in inside), np.zeros((10,) * dims, dtype=np.int64))
    expected = len(inside) == len(boxes) and bool((hits[tuple(map(slice, shape))] == 1).all())
    assert tiles(boxes, shape) == expected


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_a_grid_tiles(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[axis]))
    left, right = list(shape), list(shape)
    left[axis], right[axis] = cut, shape[axis] - cut
    origin = [0] * len(shape)
    origin[axis] = cut
    pieces = [Box((0,) * len(shape), tuple(left)), Box(tuple(origin), tuple(right))]
    assert tiles(pieces, tuple(shape))
    assert tiles(pieces[::-1], tuple(shape))


@pytest.mark.parametrize(
    ("boxes", "shape", "expected"),
    [
        ([Box((), ())], (), True),
        ([], (), False),
        ([Box((), ()), Box((), ())], (), False),
        ([], (0, 3), True),
        ([Box((0, 0), (0, 3))], (0, 3), True),
        ([Box((-1,), (3,))], (3,), False),
        ([Box((0,), (3,))], (3, 1), False),
        ([Box((0, 0), (2, 2)), Box((0, 0), (2, 2))], (4, 2), False),
    ],
)
def test_edges_of_tiling(boxes: list[Box], shape: tuple[int, ...], expected: bool) -> None:
    assert tiles(boxes, shape) == expected


def test_many_rows_are_checked_fast() -> None:
    rows = [Box((i, 0), (1, 8)) for i in range(20_000)]
    assert tiles(rows, (20_000, 8))
    assert not tiles([*rows[:-1], rows[0]], (20_000, 8))


@given(start=st.integers(-5, 20), count=st.integers(0, 12), step=st.integers(1, 5), data=st.data())
def test_an_overlap_has_the_positions_of_an_interval(
    start: int, count: int, step: int, data: st.DataObject
) -> None:
    positions = range(start, start + count * step, step)
    low = data.draw(st.integers(-6, 90))
    high = data.draw(st.integers(low, 100))
    found = overlap(positions, low, high)
    assert list(positions[found] if found else ()) == [p for p in positions if low <= p < high]


@given(shape=st.lists(st.integers(0, 4), max_size=4).map(tuple), data=st.data())
def test_a_run_is_its_boxes_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    start = data.draw(st.integers(0, array.size))
    end = data.draw(st.integers(start, array.size))
    boxes = list(boxes_of_run(shape, start, end))
    assert len(boxes) <= 2 * len(shape) + 1
    items = [item for box in boxes for item in array[box.within(whole(shape))].reshape(-1)]
    assert items == list(range(start, end))


@pytest.mark.parametrize(
    ("box", "inside"),
    [
        (Box((0, 0), (2, 3)), True),
        (Box((1, 1), (1, 2)), True),
        (Box((1, 1), (2, 2)), False),
        (Box((0,), (2,)), False),
        (Box((-1, 0), (1, 1)), False),
    ],
)
def test_a_box_inside_another(box: Box, inside: bool) -> None:
    assert box.inside(whole((2, 3))) == inside
