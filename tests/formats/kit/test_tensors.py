"""The list of tensors in the metadata: many at once, and as strict as one by one."""

from __future__ import annotations

from typing import Any

import pytest

from asyncckpt.errors import FormatError
from asyncckpt.formats.kit.tensors import decode_tensors

SOUND = {"name": "b", "shape": [1], "dataType": "uint8", "offset": 0, "size": 1}


def test_sound_ones_are_read() -> None:
    found = decode_tensors([dict(SOUND), {**SOUND, "name": "c", "shape": [2, 3], "size": 6}])
    assert [(tensor.name, tensor.shape, tensor.size) for tensor in found] == [
        ("b", (1,), 1),
        ("c", (2, 3), 6),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [True]},
        {"shape": [1.0]},
        {"shape": "1"},
        {"shape": {"1": 1}},
        {"shape": [[1]]},
        {"shape": [-1]},
        {"shape": [1 << 63]},
        {"offset": True},
        {"offset": -1},
        {"size": 1.0},
        {"size": 2},
        {"name": 3},
        {"dataType": None},
        {"dataType": []},
    ],
    ids=str,
)
@pytest.mark.parametrize("wrong_first", [True, False])
def test_one_that_only_looks_sound_is_refused(wrong: dict[str, Any], wrong_first: bool) -> None:
    """Also beside a sound one that is equal to it: 1 == 1.0 == True."""
    entries = [{**SOUND, "name": "a", **wrong}, dict(SOUND)]
    with pytest.raises(FormatError):
        decode_tensors(entries if wrong_first else entries[::-1])
