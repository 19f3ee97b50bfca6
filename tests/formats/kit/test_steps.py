"""The one driver of parsers: where the bytes of a need lie, and how a parser is run to its end."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import IncompleteCheckpointError
from asyncckpt.formats.kit.index import Need, open_ahead
from asyncckpt.formats.kit.steps import Parsed, advance, clip, parse_bytes


@given(size=st.integers(0, 30), start=st.integers(-40, 40), count=st.integers(-3, 40))
def test_a_need_lies_where_slicing_would_find_it(size: int, start: int, count: int) -> None:
    data = bytes(range(size))
    found = clip(Need(start, count), size)
    assert 0 <= found.start <= found.end <= size
    beginning = start if start >= 0 else max(0, size + start)
    assert data[found.start : found.end] == data[beginning : beginning + max(0, count)]


def reading(*needs: Need) -> Generator[Need, memoryview, list[bytes]]:
    found = []
    for need in needs:
        try:
            found.append(bytes((yield need)))
        except IncompleteCheckpointError as error:
            found.append(str(error).encode())
    return found


def test_bytes_in_memory_answer_all_needs() -> None:
    steps = reading(Need(0, 2), Need(-3, 9), Need(9, 2), Need(1, 1, "b"), Need(0, 1, "c"))
    found = parse_bytes(steps, memoryview(b"abcde"), {"b": memoryview(b"xyz")})
    assert found == [b"ab", b"cde", b"", b"y", b"file 'c' of the set is missing"]


def test_a_parser_stops_at_the_first_need_that_is_not_known() -> None:
    known = {0: b"a", 1: b"b"}

    def look(need: Need) -> memoryview | None:
        return memoryview(known[need.start]) if need.start in known else None

    steps = reading(Need(0, 1), Need(1, 1), Need(5, 1), Need(0, 1))
    assert advance(steps, None, look) == Need(5, 1)
    assert advance(steps, memoryview(b"f"), look) == Parsed([b"a", b"b", b"f", b"a"])


def test_an_error_as_answer_is_raised_where_the_parser_waits() -> None:
    def stubborn() -> Generator[Need, memoryview, None]:
        yield Need(0, 1, "gone")

    steps = stubborn()
    assert advance(steps, None) == Need(0, 1, "gone")
    with pytest.raises(IncompleteCheckpointError, match="it is gone"):
        advance(steps, IncompleteCheckpointError("it is gone"))


def test_files_ahead_are_named_but_not_without_end() -> None:
    (need,) = open_ahead(f"f{number}" for number in range(10_000))
    assert (need.size, need.ahead[:2], len(need.ahead)) == (0, ("f0", "f1"), 256)
