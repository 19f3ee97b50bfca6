"""The planner of requests: everything asked for is fetched once, and little else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.model.ranges import ByteRange, MergedRange, MergePolicy, merge_ranges

RANGES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 80)).map(lambda pair: ByteRange(pair[0], sum(pair))),
    max_size=20,
)
POLICIES = st.builds(
    MergePolicy, max_gap=st.integers(0, 60), max_request=st.integers(1, 300), waste=st.floats(0, 2)
)


def distinct_bytes(ranges: list[ByteRange]) -> int:
    return len({position for r in ranges for position in range(r.start, r.end)})


@given(RANGES, POLICIES)
def test_each_range_is_in_one_request(ranges: list[ByteRange], policy: MergePolicy) -> None:
    requests = merge_ranges(ranges, policy)
    members = sorted(i for request in requests for i in request.members)
    assert members == [i for i, r in enumerate(ranges) if r.size]
    for request in requests:
        starts = [ranges[i].start for i in request.members]
        assert starts == sorted(starts)
        assert request.start == starts[0]
        assert request.end == max(ranges[i].end for i in request.members)


@given(RANGES, POLICIES)
def test_limits_are_kept(ranges: list[ByteRange], policy: MergePolicy) -> None:
    for request in merge_ranges(ranges, policy):
        useful = distinct_bytes([ranges[i] for i in request.members])
        if len(request.members) > 1:
            assert request.size <= policy.max_request
        assert request.size - useful <= policy.waste * useful + 1e-9


@given(RANGES)
def test_requests_are_in_order(ranges: list[ByteRange]) -> None:
    requests = merge_ranges(ranges, MergePolicy(max_gap=10, max_request=1 << 30))
    assert all(a.end <= b.start for a, b in pairwise(requests))


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([ByteRange(5, 5)], []),
        ([ByteRange(0, 10), ByteRange(10, 20)], [MergedRange(0, 20, (0, 1))]),
        ([ByteRange(10, 20), ByteRange(0, 10)], [MergedRange(0, 20, (1, 0))]),
        ([ByteRange(0, 100), ByteRange(101, 200)], [MergedRange(0, 200, (0, 1))]),
        (
            [ByteRange(0, 10), ByteRange(1000, 1010)],
            [MergedRange(0, 10, (0,)), MergedRange(1000, 1010, (1,))],
        ),
        ([ByteRange(0, 100), ByteRange(20, 30)], [MergedRange(0, 100, (0, 1))]),
    ],
)
def test_examples(ranges: list[ByteRange], expected: list[MergedRange]) -> None:
    assert merge_ranges(ranges) == expected


def test_a_range_beyond_the_largest_request_stays_whole() -> None:
    huge = ByteRange(0, 1 << 40)
    assert merge_ranges([huge]) == [MergedRange(0, 1 << 40, (0,))]
