"""How ranges find their way into buffers, whoever brings the bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.model.ranges import ByteRange, MergePolicy, merge_ranges
from asyncckpt.storage.landing import Buffers, Landing

MIB = 1024 * 1024


def pour(landing: Landing, source: bytes, limit: int | None = None) -> None:
    """Fill the landing's views from the source, as a connection would; stop after `limit` views."""
    for number, view in enumerate(landing.views()):
        if limit is not None and number >= limit:
            return
        start = landing.position
        view[:] = source[start : start + view.nbytes]


def feed(landing: Landing, source: bytes) -> None:
    """Give it the bytes in small pieces, and more than it asked for at the end."""
    while landing.missing:
        landing.buffers.report(landing.feed(source[landing.position : landing.position + 7]))


@pytest.mark.parametrize("bring", [pour, feed])
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=12),
    st.integers(1, 90),
    st.integers(0, 20),
)
def test_ranges_land_in_their_buffers(
    bring: Callable[[Landing, bytes], None], pairs: list[tuple[int, int]], cut_bytes: int, gap: int
) -> None:
    source = bytes(i * 7 % 256 for i in range(400))
    ranges = [ByteRange(start, start + size) for start, size in pairs]
    into = [memoryview(bytearray(size)) for _, size in pairs]
    filled: list[int] = []
    buffers = Buffers(ranges, into, filled.append)
    requests = merge_ranges(ranges, MergePolicy(max_gap=gap, max_request=200, waste=1.0))
    for landing in buffers.landings(requests, cut_bytes):
        bring(landing, source)
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
