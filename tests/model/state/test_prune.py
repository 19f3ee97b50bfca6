"""Structures from which tensors are taken out."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from asyncckpt.model.state.flatten import flatten
from asyncckpt.model.state.prune import prune
from asyncckpt.model.state.tree import rebuild
from asyncckpt.testing.strategies import assert_identical

A, B = np.arange(3), np.ones(2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"a": A, "b": B}, {"b": B}),
        ([{"a": A}, B, {"c": A + 1}], [{}, B, {"c": A + 1}]),
        ({"x": (B, [B + 1, {"a": A, "n": None}])}, {"x": (B, [B + 1, {"n": None}])}),
        (OrderedDict(a=A, b=[(), {}]), OrderedDict(b=[(), {}])),
        ({"a": A, "\ud800": {2**70: B, "f": float("inf")}}, {"\ud800": {2**70: B, "f": float("inf")}}),
    ],
)
def test_dropped_tensors_are_gone_from_dicts(state: Any, expected: Any) -> None:
    flat = flatten(state)
    dropped = {name for name in flat.tensors if name.rpartition(".")[2] == "a"}
    assert len(dropped) == 1
    kept = {name: array for name, array in flat.tensors.items() if name not in dropped}
    assert_identical(rebuild(prune(flat.tree, dropped), kept), expected)


def test_dropped_tensors_are_none_in_lists_and_tuples() -> None:
    flat = flatten([A, (B, 3)])
    assert_identical(rebuild(prune(flat.tree, {"0", "1.0"}), {}), [None, (None, 3)])


def test_a_state_that_was_nothing_but_the_tensor_is_none() -> None:
    flat = flatten(A)
    assert rebuild(prune(flat.tree, set(flat.tensors)), {}) is None
    assert prune(None, {"a"}) is None


def test_the_structure_that_was_given_stays_as_it_was() -> None:
    flat = flatten({"x": [A, {"a": B}]})
    before = repr(flat.tree)
    prune(flat.tree, set(flat.tensors))
    assert repr(flat.tree) == before


def test_a_structure_of_any_depth_is_pruned() -> None:
    structure: Any = {"d": ["a", {"t": "a"}, "b", {"t": "b"}]}
    for _ in range(100_000):
        structure = {"d": ["x", [structure]]}
    found = prune(structure, {"a"})
    for _ in range(100_000):
        found = found["d"][1][0]
    assert found == {"d": ["b", {"t": "b"}]}
