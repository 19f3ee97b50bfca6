"""How objects are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import StorageError
from asyncckpt.model.ranges import MergedRange
from asyncckpt.storage.s3.plan import (
    LARGE_RANGE_BYTES,
    MAX_OBJECT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    MIB,
    MIN_PART_BYTES,
    RANGE_BYTES,
    plan_parts,
    plan_ranges,
)

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("size", "wish", "expected"),
    [
        (0, None, 16 * MIB),
        (64 * MIB, None, 16 * MIB),
        (512 * MIB - 1, None, 16 * MIB),
        (512 * MIB, None, 32 * MIB),
        (6 * GIB, None, 32 * MIB),
        (None, None, 32 * MIB),
        (1000, 1, MIN_PART_BYTES),
        (400 * GIB, None, 41 * MIB),
        (5 * 1024 * GIB, None, 525 * MIB),
        (GIB, 8 * GIB, MAX_PART_BYTES),
        (100 * GIB, 6 * MIB, 11 * MIB),
    ],
)
def test_part_sizes(size: int | None, wish: int | None, expected: int) -> None:
    assert plan_parts(size, wish) == expected


@given(st.integers(0, MAX_OBJECT_BYTES), st.none() | st.integers(1, 8 * GIB))
def test_every_object_fits_the_rules(size: int, wish: int | None) -> None:
    part = plan_parts(size, wish)
    assert MIN_PART_BYTES <= part <= MAX_PART_BYTES
    assert -(-size // part) <= MAX_PARTS


def test_an_object_beyond_the_limit_is_refused() -> None:
    with pytest.raises(StorageError, match="save it in shards"):
        plan_parts(MAX_OBJECT_BYTES + 1)


def test_one_large_request_is_spread_over_the_connections() -> None:
    request = MergedRange(100, 100 + GIB, (0,))
    cuts = list(plan_ranges([request], concurrency=4))
    assert [cut.start for cut in cuts[1:]] == [cut.end for cut in cuts[:-1]]
    assert (cuts[0].start, cuts[-1].end) == (100, 100 + GIB)
    assert max(cut.end - cut.start for cut in cuts) <= LARGE_RANGE_BYTES
    smaller = list(plan_ranges([MergedRange(0, 256 * MIB, (0,))], concurrency=4))
    assert max(cut.end - cut.start for cut in smaller) <= RANGE_BYTES


def test_a_request_of_sixteen_mebibytes_uses_two_connections_and_a_small_one_stays_whole() -> None:
    assert len(list(plan_ranges([MergedRange(0, 16 * MIB, (0,))], concurrency=4))) == 2
    assert len(list(plan_ranges([MergedRange(0, 8 * MIB, (0,))], concurrency=4))) == 1
