"""The capture: a copy of the containers, and of nothing else."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from asyncckpt._aio import dismantle
from asyncckpt.errors import UnsupportedStateError
from asyncckpt.model.state.capture import CAPTURED, capture
from asyncckpt.model.state.flatten import flatten
from asyncckpt.model.state.tree import MAX_DEPTH
from asyncckpt.testing.strategies import states


def flattened(state: Any) -> tuple[Any, list[tuple[str, bytes]]]:
    flat = flatten(state)
    return flat.tree, [(name, array.tobytes()) for name, array in flat.tensors.items()]


@given(states())
def test_a_captured_state_is_stored_as_the_state_itself(state: Any) -> None:
    assert flattened(capture(state)) == flattened(state)


def test_later_changes_of_any_container_have_no_effect() -> None:
    state: dict[Any, Any] = {"l": [1, {"b": [2]}], "t": (1, [3], ({"x": 1},)), "o": OrderedDict(x=[1], y=2)}
    before = flattened(state)
    captured = capture(state)
    state["l"][1]["b"].append(3)
    state["l"].clear()
    state["t"][1].append(4)
    state["t"][2][0]["x"] = 2
    state["o"].move_to_end("x")
    state["o"]["x"].append(9)
    state["new"] = 1
    assert flattened(captured) == before


def test_arrays_and_large_values_are_not_copied() -> None:
    array, text, data = np.ones(3), "x" * 50_000, bytes(50_000)
    captured = capture({"a": [array, text, data]})
    assert all(got is given for got, given in zip(captured["a"], (array, text, data), strict=True))


def test_emptying_the_copy_leaves_the_state_as_it_was() -> None:
    """Subclasses of containers may be the leaves of some adapter: they are not ours either."""

    class Own(dict[str, int]):
        pass

    state = {"l": [[1], {"d": 1}], "t": ([1], 2), "p": (1, 2), "o": OrderedDict(a=[1]), "own": Own(x=1)}
    captured = capture(state)
    dismantle(captured, CAPTURED)
    assert captured == {}
    assert state == {"l": [[1], {"d": 1}], "t": ([1], 2), "p": (1, 2), "o": {"a": [1]}, "own": {"x": 1}}


def test_a_cycle_is_captured_and_then_refused() -> None:
    state: dict[str, Any] = {"a": [1]}
    state["a"].append(({"b": state["a"]},))
    with pytest.raises(UnsupportedStateError, match=r"state\['a'\]\[1\]\[0\]\['b'\]: a cycle"):
        flatten(capture(state))


def test_one_container_in_very_many_places_is_copied_once() -> None:
    """Each level twice in the one above: by paths there would be 2**60 of them."""
    state: Any = [np.ones(1)]
    for _ in range(60):
        state = [state, state]
    captured = capture(state)
    assert captured[0] is captured[1] is not state[0]


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 5_000])
def test_deep_trees(depth: int) -> None:
    state: Any = np.ones(1)
    for _ in range(depth):
        state = [state]
    if depth <= MAX_DEPTH:
        assert flattened(capture(state)) == flattened(state)
        return
    with pytest.raises(UnsupportedStateError, match=f"deeper than {MAX_DEPTH}"):
        flatten(capture(state))
