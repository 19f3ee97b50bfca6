"""Parts of a file whose head is known last: all bytes once, the head's parts last, or everything in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.operations.writing import head_last
from asyncckpt.operations.writing.head_last import HeadLast


@given(
    chunks=st.lists(st.binary(max_size=50), max_size=8),
    part_bytes=st.integers(1, 40),
    head_bytes=st.integers(0, 90),
    in_order=st.booleans(),
    piece_bytes=st.integers(1, 64),
)
def test_the_parts_make_up_the_file(
    chunks: list[bytes], part_bytes: int, head_bytes: int, in_order: bool, piece_bytes: int
) -> None:
    head = bytes(range(1, head_bytes + 1))
    cut = HeadLast(part_bytes, head_bytes, in_order=in_order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_last, "PIECE_BYTES", piece_bytes)
        parts = [part for chunk in (bytes(head_bytes), *chunks) for part in cut.add(chunk)]
        before_the_head = [index for index, _ in parts]
        parts += cut.end(head)
    cut.close()
    cut.close()
    whole = head + b"".join(chunks)
    numbers = [index for index, _ in parts]
    assert b"".join(bytes(data) for _, data in sorted(parts, key=lambda part: part[0])) == whole
    assert sorted(numbers) == list(range(-(-len(whole) // part_bytes)))
    assert all(len(data) == part_bytes for index, data in parts if index != max(numbers))
    assert not [index for index in before_the_head if index * part_bytes < head_bytes]
    if in_order:
        assert numbers == sorted(numbers)
