"""State trees: apart and together again, exactly."""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import LayoutError, UnsupportedStateError
from asyncckpt.model.state.flatten import FlatState, flatten
from asyncckpt.model.state.tree import MAX_DEPTH, flat_tree, rebuild, tree_leaves, tree_names
from asyncckpt.testing.strategies import assert_identical, states

Point = namedtuple("Point", "x y")

PLAIN_VALUES: list[Any] = [0, -1, 2**53 - 1, 2**53, -(2**53), 2**64, -(2**1000), 16**3000, True, False, None]
PLAIN_VALUES += [0.0, -0.0, 0.1, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")]
PLAIN_VALUES += [1j, complex(-0.0, float("nan")), b"", b"\x00\xff", "", "é😀", "a\x00"]
PLAIN_VALUES += ["\ud800", "\udc00\ud800", "\ud83d\ude00"]
PLAIN_VALUES += [np.str_("a\x00"), np.str_(""), np.bytes_(b"a\x00")]


class Colour(IntEnum):
    RED = 1


@dataclass
class Config:
    rate: float = 0.1


def through_json(flat: FlatState, **options: Any) -> Any:
    """What a load sees: the structure as text, strictly JSON and in ASCII."""
    text = json.dumps(flat.tree, allow_nan=False, ensure_ascii=True)
    return rebuild(json.loads(text), flat.tensors, **options)


@given(states())
def test_any_state_comes_back_as_it_was(state: Any) -> None:
    flat = flatten(state)
    assert_identical(through_json(flat), state)
    assert tree_names(flat.tree) == list(flat.tensors) == list(flat.leaf_kinds)


@given(states())
def test_the_same_state_gives_the_same_structure(state: Any) -> None:
    assert json.dumps(flatten(state).tree) == json.dumps(flatten(state).tree)


@given(states())
def test_sorting_json_keys_changes_nothing(state: Any) -> None:
    flat = flatten(state)
    sorted_text = json.dumps(flat.tree, sort_keys=True, ensure_ascii=False)
    assert_identical(rebuild(json.loads(sorted_text.encode()), flat.tensors), state)


@pytest.mark.parametrize("value", PLAIN_VALUES, ids=ascii)
def test_plain_values(value: Any) -> None:
    flat = flatten({"v": value, "l": [value, (value,)]})
    assert flat.tensors == {}
    assert_identical(through_json(flat), {"v": value, "l": [value, (value,)]})


@pytest.mark.parametrize("bits", [0x7FF8_0000_0000_0001, 0xFFF8_DEAD_BEEF_0001, 0x7FF8_0000_0000_0000])
def test_nan_payloads_of_python_floats(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    restored = through_json(flatten([value]))[0]
    assert struct.pack("<d", restored) == struct.pack("<Q", bits)


def test_integers_beyond_the_limit_of_decimal_conversion() -> None:
    value = -(3 ** (4 * sys.get_int_max_str_digits()))
    restored = through_json(flatten({"n": value, value: 1}))
    assert restored["n"] == value
    assert list(restored) == ["n", value]


def test_int_and_str_keys_are_kept_apart_and_in_order() -> None:
    state = {1: "int", "1": "str", "z": 0, "a": OrderedDict([("b", 1), (2**70, 2), (-3, 3)])}
    assert_identical(through_json(flatten(state)), state)


def test_numpy_scalars_are_tensors_that_come_back_as_scalars() -> None:
    state = {"f": np.float64(0.5), "b": np.bool_(True), "t": np.datetime64("NaT", "s"), "v": np.void(b"ab")}
    flat = flatten(state)
    assert [array.shape for array in flat.tensors.values()] == [()] * 4
    assert set(flat.leaf_kinds.values()) == {"scalar"}
    assert_identical(through_json(flat), state)


def test_names_are_keys_joined_by_dots() -> None:
    state = {"model": {"layers.0": {"w": np.ones(1)}, 7: np.ones(2)}, "l": [0, (np.ones(3),)]}
    assert list(flatten(state).tensors) == ["model.layers.0.w", "model.7", "l.1.0"]


def test_a_lone_array_has_a_name() -> None:
    flat = flatten(np.arange(3))
    assert list(flat.tensors) == ["value"]
    assert_identical(through_json(flat), np.arange(3))


def test_keys_that_collide_never_mix_up() -> None:
    state = {
        "a": {"b": np.array([1]), "": np.array([2])},
        "a.b": np.array([3]),
        "a.b#2": np.array([4]),
        "a.": np.array([5]),
        "": {"": np.array([6])},
        ".": np.array([7]),
        1: np.array([8]),
        "1": np.array([9]),
        "\ud800": np.array([10]),
        "\\ud800": np.array([11]),
    }
    flat = flatten(state)
    assert len(flat.tensors) == 11
    assert list(flat.tensors)[:4] == ["a.b", "a.", "a.b#3", "a.b#2"]
    assert all(name == name.encode().decode() for name in flat.tensors)
    assert_identical(through_json(flat), state)


def test_an_empty_key_has_a_name() -> None:
    state = {"": np.array([1]), "value": np.array([2])}
    flat = flatten(state)
    assert list(flat.tensors) == ["value", "value#2"]
    assert_identical(through_json(flat), state)


def test_many_collisions_stay_quick_and_distinct() -> None:
    deep: Any = {}
    for index in range(300):
        # 'x.x.x' can be cut into keys in many ways.
        deep[".".join("x" * (index % 7 + 1))] = {".".join("x" * (7 - index % 7)): np.array([index])}
    flat = flatten([deep, dict(deep)])
    assert_identical(through_json(flat), [deep, deep])


def test_tied_arrays_are_stored_once_and_come_back_as_one() -> None:
    weight = np.arange(6.0).reshape(2, 3)
    state = {"embed": weight, "head": [weight, weight[:], weight.view()], "other": weight.copy()}
    flat = flatten(state)
    assert list(flat.tensors) == ["embed", "other"]
    restored = through_json(flat)
    assert restored["head"][0] is restored["head"][1] is restored["head"][2] is restored["embed"]
    assert restored["other"] is not restored["embed"]


def test_two_like_views_of_a_part_are_tied() -> None:
    base = np.arange(10.0)
    flat = flatten([base[2:5], base[2:5], base[2:6], base[2:5].view(np.int64)])
    assert list(flat.tensors) == ["0", "2", "3"]


def test_different_views_of_one_memory_are_stored_separately() -> None:
    base = np.arange(4.0).reshape(2, 2)
    state = {"a": base, "t": base.T, "row": base[0], "none": base[:0], "none2": base[:0]}
    flat = flatten(state)
    assert list(flat.tensors) == ["a", "t", "row", "none", "none2"]
    assert_identical(through_json(flat), state)


def test_what_is_refused_is_not_taken_for_its_plain_twin() -> None:
    data = np.arange(3.0)
    with pytest.raises(UnsupportedStateError, match=r"state\['masked'\]: a masked array"):
        flatten({"plain": data, "masked": np.ma.masked_array(data, copy=False)})


def test_no_copy_of_arrays() -> None:
    array = np.arange(4)
    assert np.shares_memory(flatten({"a": array}).tensors["a"], array)


def test_later_changes_of_the_tree_have_no_effect() -> None:
    state: dict[Any, Any] = {"a": [1, {"b": 2}], "w": np.ones(2), "o": OrderedDict(x=1)}
    flat = flatten(state)
    before = json.dumps(flat.tree)
    state["a"][1]["b"] = 3
    state["a"].append(4)
    state["new"] = np.zeros(1)
    del state["w"]
    state["o"].move_to_end("x")
    assert json.dumps(flat.tree) == before
    assert_identical(through_json(flat), {"a": [1, {"b": 2}], "w": np.ones(2), "o": OrderedDict(x=1)})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1, 2}, "type set"),
        (frozenset(), "type frozenset"),
        (bytearray(b"x"), "type bytearray"),
        (range(3), "type range"),
        (object(), "type object"),
        (len, "type builtin_function_or_method"),
        (Config(), "Config can't be stored"),
        (Point(1, 2), "Point is a subclass of tuple"),
        (defaultdict(int), "collections.defaultdict is a subclass of dict"),
        (Counter("a"), "Counter is a subclass of dict"),
        (Colour.RED, "Colour is a subclass of int"),
        (np.array([object()]), "Python objects"),
        (np.zeros(2, [("a", "f4")]), "structured"),
        (np.longdouble(1), "long double"),
        (np.zeros(2, np.longdouble), "long double"),
        (np.ma.masked_array([1]), "masked"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(value: Any, reason: str) -> None:
    with pytest.raises(UnsupportedStateError) as caught:
        flatten({"a": [0, {3: value}]})
    message = str(caught.value)
    assert message.startswith("state['a'][1][3]: ")
    assert reason in message
    assert "\n" not in message
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("key", [True, None, 1.5, b"k", (1, 2), np.int64(1), np.str_("k"), Colour.RED])
def test_keys_that_are_neither_str_nor_int(key: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=r"state\['a'\]: the key .* keys are str or int"):
        flatten({"a": {key: 1}})


def test_cycles_are_refused_with_their_path() -> None:
    state: dict[str, Any] = {"a": [1]}
    state["a"].append(({"b": state["a"]},))
    with pytest.raises(
        UnsupportedStateError, match=r"state\['a'\]\[1\]\[0\]\['b'\]: a cycle.*state\['a'\] again"
    ):
        flatten(state)


def test_the_same_container_twice_is_no_cycle() -> None:
    shared = {"x": np.ones(1), "y": [1]}
    flat = flatten([shared, shared])
    assert_identical(through_json(flat), [shared, shared])
    assert list(flat.tensors) == ["0.x"]


def nested(depth: int, wrap: str) -> Any:
    value: Any = np.arange(2)
    for _ in range(depth):
        value = {"k": value} if wrap == "dict" else (value,) if wrap == "tuple" else [value]
    return value


@pytest.mark.parametrize("wrap", ["dict", "tuple", "list"])
def test_deep_trees_up_to_the_limit(wrap: str) -> None:
    state = nested(MAX_DEPTH, wrap)
    assert_identical(through_json(flatten(state)), state)


@pytest.mark.parametrize("wrap", ["dict", "tuple", "list"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_deeper_trees_are_refused(wrap: str, depth: int) -> None:
    state = nested(depth, wrap)
    with pytest.raises(UnsupportedStateError, match=f"deeper than {MAX_DEPTH}") as caught:
        flatten(state)
    assert len(str(caught.value)) < 300
    while isinstance(state, (dict, tuple, list)):  # unwound by hand: freeing it at once would recurse
        [state] = state.values() if isinstance(state, dict) else state


def test_a_part_of_the_tensors() -> None:
    state = {"m": {"w": np.ones(1), "b": np.zeros(1)}, "l": [np.ones(2), (np.zeros(2), 5)], "step": 3}
    flat = flatten(state)
    chosen = {name: flat.tensors[name] for name in ("m.w", "l.1.0")}
    restored = rebuild(flat.tree, chosen, partial=True)
    assert_identical(restored, {"m": {"w": np.ones(1)}, "l": [None, (np.zeros(2), 5)], "step": 3})
    assert rebuild(flatten(np.ones(1)).tree, {}, partial=True) is None


def test_the_structure_of_a_file_without_one() -> None:
    names = ["b.c", "a", "\ud800"]
    tensors = {name: np.array([index]) for index, name in enumerate(names)}
    structure = flat_tree(names)
    assert tree_names(structure) == names
    assert_identical(rebuild(structure, tensors), tensors)
    assert tree_leaves(flat_tree(["a"], kind="torch")) == [(("a",), "a", "torch")]


HOSTILE: list[Any] = [
    {},
    {"d": None},
    {"d": {}},
    {"d": ["k"]},
    {"d": ["k", 1, "k", 2]},
    {"d": [1, 1, {"i": "1"}, 2]},
    {"d": [True, 1]},
    {"d": [None, 1]},
    {"d": [["k"], 1]},
    {"d": [1.0, 1]},
    {"d": [{"b": ""}, 1]},
    {"d": [], "o": []},
    {"u": "ab"},
    {"x": 1},
    {"t": "w", "d": []},
    {"t": "w", "k": "numpy", "z": 1},
    {"t": "nowhere"},
    {"t": 5},
    {"t": None},
    {"t": ["w"]},
    {"t": "w", "k": 5},
    {"t": "w", "k": ""},
    {"t": "w", "k": "../../evil"},
    {"t": "w", "k": "scalar"},
    {"i": 5},
    {"i": ""},
    {"i": "0x10"},
    {"i": "1_0"},
    {"i": "-"},
    {"i": " 1"},
    {"i": "١"},
    {"f": "nan"},
    {"f": "7ff8"},
    {"f": 1.0},
    {"c": "00"},
    {"c": "0" * 31},
    {"b": "*"},
    {"b": "abc"},
    {"b": "é"},
    {"s": "//79"},
    {"ns": 3},
    float("nan"),
    float("inf"),
    [float("inf")],
    {"u": [{"d": ["k", {"t": ["x"]}]}]},
    (1, 2),
    b"bytes",
    {1: 2},
    object(),
]


@pytest.mark.parametrize(
    "structure",
    HOSTILE,
    ids=lambda value: type(value).__name__ + repr(value)[:40] * (type(value) is not object),
)
def test_hostile_structures_are_layout_errors(structure: Any) -> None:
    tensors = {"w": np.ones(2)}
    for wrapped in (structure, [structure], {"d": ["k", structure]}):
        with pytest.raises(LayoutError) as caught:
            rebuild(wrapped, tensors)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrap", ["list", "tuple", "dict", "ordered"])
def test_structures_nested_too_deep_are_layout_errors(wrap: str) -> None:
    node: Any = 1
    for _ in range(100_000):
        node = {
            "list": [node],
            "tuple": {"u": [node]},
            "dict": {"d": ["k", node]},
            "ordered": {"o": [0, node]},
        }[wrap]
    for walk in (tree_names, lambda structure: rebuild(structure, {})):
        with pytest.raises(LayoutError, match="deeper"):
            walk(node)
    while isinstance(node, (dict, list)):
        node = node[-1] if isinstance(node, list) else next(iter(node.values()))


def json_like() -> st.SearchStrategy[Any]:
    """JSON that looks as if it were a structure."""
    words = st.sampled_from(("w", "", "k", "numpy", "torch", "1f", "AAAA", "7ff8000000000001", "nowhere"))
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words)
    tags = st.sampled_from(("d", "o", "u", "t", "k", "i", "f", "c", "b", "s", "ns", "nb"))
    tensor = st.fixed_dictionaries({"t": words}, optional={"k": words})
    return st.recursive(
        st.one_of(scalars, tensor, st.dictionaries(tags, words, max_size=2)),
        lambda nodes: st.one_of(
            st.lists(nodes, max_size=4),
            st.dictionaries(tags, st.one_of(nodes, st.lists(nodes, max_size=4)), min_size=1, max_size=1),
        ),
        max_leaves=12,
    )


@given(json_like())
def test_any_json_is_a_state_or_a_layout_error(structure: Any) -> None:
    try:
        state = rebuild(structure, {"w": np.ones(2)}, framework="numpy")
    except LayoutError:
        return
    assert_identical(through_json(flatten(state)), state)


def test_twenty_thousand_tensors_make_a_compact_structure() -> None:
    state = {f"layers.{index}.weight": np.zeros(1) for index in range(20_000)}
    flat = flatten(state)
    names = sum(len(name) for name in state)
    assert len(json.dumps(flat.tree, separators=(",", ":"))) < 2 * names + 20_000 * 16
    assert through_json(flat).keys() == state.keys()
