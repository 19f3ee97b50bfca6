"""Lists of views: sizes, cuts, checksums and copies agree with the joined bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.model.buffers import (
    as_bytes,
    copy_bytes,
    crc32c_of_views,
    cut_views,
    slice_views,
    total_bytes,
)
from asyncckpt.model.checksums import crc32c

VIEWS = st.lists(st.binary(max_size=40), max_size=12)


def test_bytes_of_views() -> None:
    assert total_bytes([b"ab", bytearray(3), memoryview(b"abcd").cast("I")]) == 9


@given(VIEWS, st.integers(1, 30))
def test_cut_views_keeps_every_byte(views: list[bytes], part: int) -> None:
    parts = [b"".join(bytes(view) for view in cut) for cut in cut_views(views, part)]
    assert b"".join(parts) == b"".join(views)
    assert all(len(cut) == part for cut in parts[:-1])
    assert all(parts)


@given(VIEWS, st.integers(0, 500), st.integers(0, 500))
def test_slice_views_is_a_slice_of_all(views: list[bytes], start: int, end: int) -> None:
    assert b"".join(slice_views(views, start, end)) == b"".join(views)[start:end]


@given(VIEWS)
def test_the_crc_of_views_is_that_of_all(views: list[bytes]) -> None:
    assert crc32c_of_views(views) == crc32c(b"".join(views))


def test_any_view_is_bytes() -> None:
    assert as_bytes(np.arange(3, dtype="<u2").reshape(1, 3).data) == bytes([0, 0, 1, 0, 2, 0])
    assert as_bytes(np.empty((0, 2)).data).nbytes == 0


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_copies(size: int) -> None:
    source = np.random.default_rng(1).bytes(size)
    target = bytearray(size)
    copy_bytes(memoryview(target), source)
    assert target == source
