"""The tensors that a file lists: the quick way and the careful way agree, and nothing malformed gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import FormatError, LayoutError, LimitExceededError, UnsupportedDtypeError
from asyncckpt.formats.kit.strict_json import dump_json
from asyncckpt.formats.kit.tensors import checked_tensor, decode_tensors, encode_tensors
from asyncckpt.model.metadata import TensorMetadata

GOOD = {"name": "a", "shape": [1], "dataType": 1, "offset": 0, "size": 4}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def entry(**members: Any) -> dict[str, Any]:
    return {**GOOD, "name": "b", **members}


@given(
    st.lists(
        st.tuples(
            NAMES,
            st.sampled_from(["float32", "bool", "datetime64[ns]", "S3"]),
            st.lists(st.integers(0, 4), max_size=3).map(tuple),
            st.integers(0, 1 << 40),
        ),
        max_size=6,
    )
)
def test_what_is_encoded_is_decoded(rows: list[tuple[str, str, tuple[int, ...], int]]) -> None:
    tensors = tuple(TensorMetadata(*row) for row in rows)
    read = json.loads(dump_json(encode_tensors(tensors)))
    members = [(one["name"], tuple(one["shape"]), one["offset"], one["size"]) for one in read]
    assert members == [(t.name, t.shape, t.offset, t.size) for t in tensors]
    assert decode_tensors(read) == tensors
    assert read == []


SHAPES: tuple[Any, ...] = ([True], [1.0], {}, "1", None, [[1]], [-1], [1 << 63], [2])
TYPES: tuple[Any, ...] = (True, 1.0, None, [], 99, "float33")
BAD: list[Any] = [
    *(entry(shape=shape) for shape in SHAPES),
    *(entry(dataType=kind) for kind in TYPES),
    *(entry(offset=offset) for offset in (True, 1.0, "0", -1, 1 << 63)),
    *(entry(size=size) for size in (True, 4.0, 5, -4)),
    *(entry(name=name) for name in (None, 1, ["b"])),
    {"name": "b"},
    [],
    "b",
    None,
]


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("bad_first", [True, False])
def test_one_malformed_tensor_among_good_ones_is_refused(bad: Any, bad_first: bool) -> None:
    """Also beside a good one that is equal to it: 1 == 1.0 == True."""
    entries = [bad, dict(GOOD)]
    with pytest.raises(FormatError):
        decode_tensors(entries if bad_first else entries[::-1])


def test_an_offset_that_is_null_or_missing_is_0() -> None:
    missing = entry()
    del missing["offset"]
    tensors = (TensorMetadata("a", "float32", (1,)), TensorMetadata("b", "float32", (1,)))
    assert decode_tensors([dict(GOOD), missing]) == tensors
    assert decode_tensors([dict(GOOD), entry(offset=None)]) == tensors


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "error"),
    [
        (1, "int8", [1], LayoutError),
        ("a", 1, [1], LayoutError),
        ("a", "int8", [True], LayoutError),
        ("a", "int8", {}, LayoutError),
        ("a", "int8", [-1], LayoutError),
        ("a", "int9", [1], UnsupportedDtypeError),
        ("a", "int8", [1] * 65, LimitExceededError),
        ("a", "int8", [1 << 62] * 2, LimitExceededError),
    ],
)
def test_a_tensor_from_anybodys_header_is_checked(
    name: Any, dtype: Any, shape: Any, error: type[FormatError]
) -> None:
    with pytest.raises(error):
        checked_tensor(name, dtype, shape)
    assert checked_tensor("a", "int8", [2, 3], 5) == TensorMetadata("a", "int8", (2, 3), 5)
