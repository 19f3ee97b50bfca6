"""A table of tensors is what the tuple of them is; only where it keeps them differs."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import LayoutError
from asyncckpt.model.metadata import ShardMetadata, TensorMetadata
from asyncckpt.model.tensors import TensorTable, joined_spans, lay_out_sizes, sizes_column

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def tensor(draw: st.DrawFn, number: int) -> TensorMetadata:
    shape = draw(SHAPES)
    whole = tuple(n + 2 for n in shape)
    boxed = draw(st.booleans())
    return TensorMetadata(
        f"t{number}",
        draw(st.sampled_from(["float32", "int8", "bfloat16"])),
        shape,
        draw(st.integers(0, 1 << 40)),
        draw(st.sampled_from([None, "blake3:00"])),
        whole if boxed else None,
        tuple(1 for _ in shape) if boxed else None,
    )


TENSORS = st.integers(0, 6).flatmap(lambda count: st.tuples(*(tensor(number) for number in range(count))))


@given(TENSORS)
def test_it_is_the_sequence_it_was_made_of(tensors: tuple[TensorMetadata, ...]) -> None:
    table = TensorTable.of(tensors)
    assert tuple(table) == tensors
    assert [table[number] for number in range(len(table))] == list(tensors)
    assert table == tensors
    assert tensors == table
    assert table == TensorTable.of(list(tensors))
    assert repr(table) == repr(tensors)
    assert hash(table) == hash(tensors)
    assert pickle.loads(pickle.dumps(table)) == table
    assert copy.deepcopy(table) == table
    assert [t.size for t in tensors] == table.sizes.tolist()
    assert ShardMetadata(tensors=table) == ShardMetadata(tensors=tensors)


@given(TENSORS, st.integers(0, 6), st.integers(0, 6), st.randoms())
def test_slices_and_orders(tensors: tuple[TensorMetadata, ...], start: int, end: int, random: object) -> None:
    table = TensorTable.of(tensors)
    assert table[start:end] == tensors[start:end]
    order = list(range(len(tensors)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert table.take(order) == tuple(tensors[number] for number in order)
    assert TensorTable.joined([table[:start], table[start:]]) == tensors


def test_a_table_is_not_equal_to_other_tensors_or_other_things() -> None:
    one = TensorTable.of([TensorMetadata("a", "int8", (1,))])
    assert one != TensorTable.of([TensorMetadata("a", "int8", (1,), 8)])
    assert one != TensorTable.of([TensorMetadata("a", "int8", (1,), 0, None, (2,), (1,))])
    assert one != (TensorMetadata("b", "int8", (1,)),)
    assert one != ()
    assert one != "a"
    with pytest.raises(IndexError):
        one[1]


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(0, 200), st.sampled_from([1, 8, 64]))
def test_the_layout_is_one_behind_the_other(sizes: list[int], start: int, alignment: int) -> None:
    offsets, end = lay_out_sizes(sizes_column(sizes), start, alignment)
    position, expected = start, []
    for size in sizes:
        position = -(-position // alignment) * alignment
        expected.append(position)
        position += size
    assert offsets.tolist() == expected
    assert end == position


def test_more_bytes_than_any_file_has_are_refused() -> None:
    with pytest.raises(LayoutError, match="more than any file"):
        sizes_column([1 << 61, 1 << 61, 1])
    with pytest.raises(LayoutError, match="beyond the end of any file"):
        TensorTable.of([TensorMetadata("a", "int8", (), 1 << 63)])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_joined_spans_cover_the_same_bytes(gaps_and_sizes: list[tuple[int, int]]) -> None:
    starts, ends, position = [], [], 0
    for gap, size in gaps_and_sizes:
        starts.append(position + gap)
        position += gap + size
        ends.append(position)
    spans = joined_spans(np.array(starts, np.int64), np.array(ends, np.int64))
    covered = {at for start, end in zip(starts, ends, strict=True) for at in range(start, end)}
    assert {at for start, end in spans for at in range(start, end)} == covered
    assert all(end != start for (_, end), (start, _) in pairwise(spans))
