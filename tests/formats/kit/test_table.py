"""Stored tensors as columns are what the tuple of them is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.formats.kit.block.order import in_file_order
from asyncckpt.formats.kit.index import Extent, StoredTensor
from asyncckpt.formats.kit.plan import Payload, Payloads, lay_out
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.metadata import TensorMetadata
from asyncckpt.model.tensors import TensorTable

SIZES = st.lists(st.integers(0, 9), max_size=7)
CHUNK = 4


def table_of(sizes: list[int], *, file: int = 0) -> StoredTable:
    tensors = TensorTable.of([TensorMetadata(f"t{i}", "uint8", (n,)) for i, n in enumerate(sizes)])
    placed, _ = lay_out(tensors, 10)
    chunking = Chunking.of(CHUNK, sizes)
    bare = StoredTable(tensors, placed.offsets, file)
    sums = np.arange(100, 100 + chunking.count, dtype=np.uint32)
    return bare.with_checksums(tensors, sums, np.array(chunking.first, np.int64), CHUNK)


def shown(stored: StoredTensor) -> object:
    sums = None if stored.checksums is None else stored.checksums.tolist()
    return stored.metadata, stored.extents, sums, stored.chunk_bytes


@given(SIZES)
def test_iterating_and_indexing_give_the_same(sizes: list[int]) -> None:
    table = table_of(sizes, file=2)
    iterated = [shown(stored) for stored in table]
    assert iterated == [shown(table[number]) for number in range(len(table))]
    assert iterated[1:] == [shown(stored) for stored in table[1:]]
    first = 100
    for stored, size in zip(table, sizes, strict=True):
        assert stored.extents == (Extent(stored.extents[0].offset, size, 2),)
        count = -(-size // CHUNK)
        assert stored.checksums is not None
        assert stored.checksums.tolist() == list(range(first, first + count))
        first += count


@given(SIZES, st.randoms())
def test_another_order_takes_its_checksums_along(sizes: list[int], random: object) -> None:
    table = table_of(sizes)
    order = list(range(len(sizes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    taken = table.take(order)
    assert [shown(stored) for stored in taken] == [shown(table[number]) for number in order]
    chunking = Chunking.of(CHUNK, sizes)
    assert table.checksums is not None
    assert taken.checksums is not None
    expected = in_file_order(order, chunking, table.checksums)
    assert taken.checksums.tolist() == expected.tolist()
    assert expected.tolist() == [n for i in order for n in chunking.of_tensor(i, table.checksums).tolist()]


def test_without_checksums_they_are_bare() -> None:
    bare = StoredTable(TensorTable.of([TensorMetadata("a", "uint8", (3,))]), np.array([5]))
    assert list(bare) == [StoredTensor(TensorMetadata("a", "uint8", (3,)), (Extent(5, 3),))]
    assert bare[-1] == bare[0]
    with pytest.raises(IndexError):
        bare[1]
    assert bare.take([0])[0] == bare[0]


@given(SIZES)
def test_payloads_are_the_sequence_of_them(sizes: list[int]) -> None:
    tensors = [TensorMetadata(f"t{i}", "uint8", (n,)) for i, n in enumerate(sizes)]
    payloads, _ = lay_out(tensors, 3)
    plain = tuple(payloads)
    assert payloads == plain
    assert repr(payloads) == repr(plain)
    assert payloads[1:] == plain[1:]
    assert [payloads[number] for number in range(len(sizes))] == list(plain)
    assert tuple(payloads.moved(5)) == tuple(Payload(p.tensor, p.offset + 5, p.size) for p in plain)
    turned = payloads.of(range(len(sizes))[::-1])
    assert [p.tensor for p in turned] == list(range(len(sizes)))[::-1]
    assert isinstance(turned, Payloads)
