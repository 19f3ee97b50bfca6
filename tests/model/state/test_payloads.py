"""Large bytes and strings: beside the tensors, not in the tree's JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from asyncckpt.errors import LayoutError
from asyncckpt.model.state.fill import tensors_into
from asyncckpt.model.state.flatten import flatten
from asyncckpt.model.state.payloads import PAYLOAD_BYTES, payload_names
from asyncckpt.model.state.tree import rebuild, tree_names, tree_values, with_values
from asyncckpt.testing.strategies import assert_identical

BLOB = bytes(range(256)) * (PAYLOAD_BYTES // 256)
TEXT = "naïve 😀\ud800" * PAYLOAD_BYTES


def restored(state: Any, **options: Any) -> Any:
    flat = flatten(state)
    return rebuild(json.loads(json.dumps(flat.tree)), flat.tensors | flat.payloads, **options)


def test_from_the_limit_on_bytes_and_strings_are_payloads() -> None:
    state = {"b": BLOB, "s": TEXT, "short": BLOB[1:], "l": [(BLOB + b"x",)]}
    flat = flatten(state)
    assert flat.tensors == {}
    assert tree_names(flat.tree) == []
    assert list(flat.payloads) == ["b#bytes", "s#str", "l.0.0#bytes"]
    assert all(array.dtype == np.uint8 and array.ndim == 1 for array in flat.payloads.values())
    assert flat.payloads["s#str"].tobytes() == TEXT.encode("utf-8", "surrogatepass")
    assert payload_names(flat.tree) == set(flat.payloads)
    assert len(json.dumps(flat.tree)) < 2 * PAYLOAD_BYTES
    assert_identical(restored(state), state)


@pytest.mark.parametrize("state", [BLOB, TEXT, [BLOB], {"": TEXT}])
def test_in_any_place(state: Any) -> None:
    assert_identical(restored(state), state)


@pytest.mark.parametrize("unit", ["a", "é", "語", "😀", "\ud800"])
def test_long_strings_of_every_width_in_several_steps(unit: str) -> None:
    """Characters lie across the steps' borders."""
    text = "x" + unit * 900_000
    assert restored([text]) == [text]


def test_long_bytes_in_several_steps() -> None:
    data = np.random.default_rng(0).bytes(1_500_001)
    assert restored([data]) == [data]


def test_without_payloads_they_are_text() -> None:
    state = {"b": BLOB, "s": TEXT}
    flat = flatten(state, payloads=False)
    assert flat.payloads == {}
    assert_identical(rebuild(flat.tree, {}), state)
    with_payloads = flatten(state)
    assert with_values(with_payloads.tree, with_payloads.payloads) == flat.tree


def test_bytes_are_not_copied() -> None:
    assert np.shares_memory(flatten([BLOB]).payloads["0#bytes"], np.frombuffer(BLOB, np.uint8))


def test_one_object_is_one_payload_and_one_object_again() -> None:
    twin = bytes(bytearray(BLOB))
    flat = flatten({"a": BLOB, "b": [BLOB], "c": twin})
    assert list(flat.payloads) == ["a#bytes", "c#bytes"]
    back = restored({"a": BLOB, "b": [BLOB], "c": twin})
    assert back["a"] is back["b"][0]
    assert back["c"] == twin


def test_no_payload_takes_the_name_of_a_tensor() -> None:
    state = {
        "a": BLOB,
        "a#bytes": np.ones(1),
        "b.c": BLOB + b"1",
        "b": {"c": BLOB + b"2", "c#bytes#2": np.zeros(1)},
    }
    flat = flatten(state)
    assert list(flat.tensors) == ["a#bytes", "b.c#bytes#2"]
    assert list(flat.payloads) == ["a#bytes#2", "b.c#bytes", "b.c#bytes#3"]
    assert_identical(restored(state), state)


def test_payloads_come_back_with_a_part_of_the_tensors() -> None:
    flat = flatten({"w": np.ones(1), "b": BLOB})
    assert rebuild(flat.tree, flat.payloads, partial=True) == {"b": BLOB}


def test_loading_into_a_state_passes_them_by() -> None:
    flat = flatten({"w": np.ones(1), "b": BLOB})
    found = tensors_into(flat.tree, {"w": np.zeros(1), "other": TEXT})
    assert (list(found.arrays), found.missing, found.unexpected) == (["w"], (), ())


def test_values_of_a_structure() -> None:
    flat = flatten({"a": (1, [2.5]), "b": BLOB, "w": np.ones(1), "n": None})
    found = dict(tree_values(flat.tree))
    assert found[()] is dict
    assert found[("a",)] is tuple
    assert found[("a", 1)] is list
    assert found[("a", 0)] == 1
    assert found[("a", 1, 0)] == 2.5
    assert found[("n",)] is None
    assert (found[("b",)].name, found[("b",)].kind) == ("b#bytes", bytes)
    assert ("w",) not in found


@pytest.mark.parametrize(
    ("node", "tensors", "reason"),
    [
        ({"pb": "x"}, {}, "the payload 'x' is missing"),
        ({"ps": "x"}, {"x": np.ones(2, np.float32)}, "not uint8 with one dimension"),
        ({"pb": "x"}, {"x": np.ones((2, 2), np.uint8)}, "not uint8 with one dimension"),
        ({"pb": "x"}, {"x": np.ones((), np.uint8)}, "not uint8 with one dimension"),
        ({"ps": "x"}, {"x": np.full(3, 255, np.uint8)}, "not UTF-8"),
        ({"ps": "x"}, {"x": np.frombuffer("é".encode()[:1], np.uint8)}, "not UTF-8"),
        ({"pb": 5}, {}, "without a proper name"),
        ({"pb": "x", "ps": "x"}, {"x": np.ones(1, np.uint8)}, "not a node"),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_hostile_payloads(node: Any, tensors: dict[str, np.ndarray], reason: str, partial: bool) -> None:
    with pytest.raises(LayoutError, match=reason) as caught:
        rebuild({"d": ["k", [node]]}, tensors, partial=partial)
    assert str(caught.value).startswith("state tree: state['k'][0]: ")
