"""How objects are cut, and how ranges find their way into buffers."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import StorageError
from asyncckpt.model.ranges import ByteRange, MergedRange, MergePolicy, merge_ranges
from asyncckpt.storage.landing import Buffers, Landing
from asyncckpt.storage.s3.plan import (
    LARGE_RANGE_BYTES,
    MAX_OBJECT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    MIB,
    MIN_PART_BYTES,
    RANGE_BYTES,
    cut_views,
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


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 30))
def test_cut_views_keeps_every_byte(views: list[bytes], part: int) -> None:
    parts = [b"".join(bytes(view) for view in cut) for cut in cut_views(views, part)]
    assert b"".join(parts) == b"".join(views)
    assert all(len(cut) == part for cut in parts[:-1])
    assert all(parts)


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


def pour(landing: Landing, source: bytes, limit: int | None = None) -> None:
    """Fill the landing's views from the source, as a connection would; stop after `limit` views."""
    for number, view in enumerate(landing.views()):
        if limit is not None and number >= limit:
            return
        start = landing.position
        view[:] = source[start : start + view.nbytes]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=12),
    st.integers(1, 90),
    st.integers(0, 20),
)
def test_ranges_land_in_their_buffers(pairs: list[tuple[int, int]], cut_bytes: int, gap: int) -> None:
    source = bytes(i * 7 % 256 for i in range(400))
    ranges = [ByteRange(start, start + size) for start, size in pairs]
    into = [memoryview(bytearray(size)) for _, size in pairs]
    filled: list[int] = []
    buffers = Buffers(ranges, into, filled.append)
    requests = merge_ranges(ranges, MergePolicy(max_gap=gap, max_request=200, waste=1.0))
    for request in requests:
        for start in range(request.start, request.end, cut_bytes):
            pour(Landing(buffers, start, min(start + cut_bytes, request.end), request.members), source)
    assert [bytes(buffer) for buffer in into] == [source[wanted.start : wanted.end] for wanted in ranges]
    assert sorted(filled) == [i for i, wanted in enumerate(ranges) if wanted.size]


def test_a_landing_goes_on_where_it_stopped() -> None:
    size = 5 * MIB
    source = bytes(range(256)) * (size // 256)
    target = memoryview(bytearray(size))
    filled: list[int] = []
    landing = Landing(Buffers([ByteRange(0, size)], [target], filled.append), 0, size, (0,))
    pour(landing, source, limit=3)
    assert landing.position == 3 * MIB
    assert filled == []
    pour(landing, source)
    assert target == source
    assert filled == [0]


def test_a_buffer_filled_by_several_threads_is_reported_once() -> None:
    source = bytes(range(256)) * 16
    target = memoryview(bytearray(len(source)))
    filled: list[int] = []
    buffers = Buffers([ByteRange(0, len(source))], [target], filled.append)
    landings = [Landing(buffers, start, start + 256, (0,)) for start in range(0, len(source), 256)]
    threads = [threading.Thread(target=pour, args=(landing, source)) for landing in landings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target == source
    assert filled == [0]
