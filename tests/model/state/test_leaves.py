"""Leaf adapters: the registry, third parties' kinds, loading into what exists."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from asyncckpt.errors import LayoutError, MismatchError, MissingExtraError, UnsupportedStateError
from asyncckpt.model.state.fill import tensors_into
from asyncckpt.model.state.flatten import flatten
from asyncckpt.model.state.leaves import LEAVES, LeafAdapter, LeafRegistry, NumpyArrayLeaf, NumpyScalarLeaf
from asyncckpt.model.state.torch_leaf import TorchLeaf
from asyncckpt.model.state.tree import flat_tree, needs_framework, rebuild
from asyncckpt.testing.strategies import assert_identical


class Celsius:
    """A stranger's type."""

    def __init__(self, degrees: np.ndarray) -> None:
        self.degrees = degrees


class CelsiusLeaf:
    kind = "celsius"

    def matches(self, value: object) -> bool:
        return isinstance(value, Celsius)

    def to_array(self, value: Celsius) -> np.ndarray:
        if value.degrees.min(initial=0) < -273.15:
            raise UnsupportedStateError("colder than is possible")
        return value.degrees

    def from_array(self, array: np.ndarray) -> Celsius:
        return Celsius(array)

    def destination(self, value: Celsius) -> np.ndarray:
        return value.degrees

    def identity(self, value: Celsius) -> Hashable:
        return id(value)


CELSIUS_LEAF = CelsiusLeaf()
NOT_A_LEAF = "a string"


def plugin(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, "asyncckpt.leaves")


def celsius_registry() -> LeafRegistry:
    registry = LeafRegistry()
    registry.register(CELSIUS_LEAF)
    return registry


@pytest.mark.parametrize("adapter", [NumpyArrayLeaf(), NumpyScalarLeaf(), TorchLeaf(), CelsiusLeaf()])
def test_adapters_keep_the_protocol(adapter: LeafAdapter) -> None:
    assert isinstance(adapter, LeafAdapter)


def test_a_registered_kind_goes_there_and_back() -> None:
    registry = celsius_registry()
    shared = Celsius(np.array([20.5]))
    flat = flatten({"t": shared, "again": shared, "other": Celsius(np.zeros(1))}, registry=registry)
    assert flat.leaf_kinds == {"t": "celsius", "other": "celsius"}
    restored = rebuild(flat.tree, flat.tensors, registry=registry)
    assert isinstance(restored["t"], Celsius)
    assert restored["t"].degrees is flat.tensors["t"]
    assert restored["again"] is restored["t"]
    as_arrays = rebuild(flat.tree, flat.tensors, framework="numpy")
    assert as_arrays["t"] is flat.tensors["t"]


def test_a_refusal_of_an_adapter_gets_the_path() -> None:
    with pytest.raises(UnsupportedStateError, match=r"state\[0\]\['x'\]: colder than is possible"):
        flatten([{"x": Celsius(np.array([-300.0]))}], registry=celsius_registry())


def test_an_unknown_kind_in_a_file_names_the_way_out() -> None:
    structure = flatten({"t": Celsius(np.zeros(1))}, registry=celsius_registry()).tree
    assert needs_framework(structure)
    with pytest.raises(MissingExtraError, match="kind 'celsius'; load with framework='numpy'"):
        rebuild(structure, {"t": np.zeros(1)})


def test_plain_numpy_needs_no_framework() -> None:
    state = {"a": [np.zeros(1), {"k": np.ones(2)}], "k": (1, np.float32(2))}
    structure = flatten({"a": state["a"], "b": 1}).tree
    assert not needs_framework(structure)
    assert needs_framework(flat_tree(["w"], kind="torch"))


def test_kinds_are_registered_once() -> None:
    registry = celsius_registry()
    with pytest.raises(ValueError, match="registered already"):
        registry.register(CelsiusLeaf())
    registry.register(CelsiusLeaf(), replace=True)
    for kind in ("numpy", "scalar", "torch", "", "Upper", "a b", "x" * 65):
        adapter = CelsiusLeaf()
        adapter.kind = kind
        with pytest.raises(ValueError, match=repr(kind)):
            registry.register(adapter)


def test_entry_points_are_loaded_when_first_needed() -> None:
    registry = LeafRegistry([plugin("celsius", f"{__name__}:CELSIUS_LEAF")])
    flat = flatten([np.zeros(1), Celsius(np.ones(1))], registry=registry)
    assert flat.leaf_kinds["1"] == "celsius"
    fresh = LeafRegistry([plugin("celsius", f"{__name__}:CELSIUS_LEAF")])
    assert isinstance(rebuild(flat.tree, flat.tensors, registry=fresh)[1], Celsius)


def test_broken_entry_points_stop_nothing_and_are_named() -> None:
    broken = [plugin("gone", "no_such_module_anywhere:LEAF"), plugin("odd", f"{__name__}:NOT_A_LEAF")]
    registry = LeafRegistry([*broken, plugin("celsius", f"{__name__}:CELSIUS_LEAF")])
    assert flatten([Celsius(np.ones(1)), np.ones(1)], registry=registry).leaf_kinds["0"] == "celsius"
    with pytest.raises(
        UnsupportedStateError, match=r"'gone' failed to load: No module.*'odd' failed to load"
    ):
        flatten([object()], registry=registry)


def test_torch_is_missing_when_a_file_holds_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    structure, tensors = flat_tree(["w"], kind="torch"), {"w": np.ones(2)}
    with pytest.raises(MissingExtraError, match=r"pip install 'asyncckpt\[torch\]'.*framework='numpy'"):
        rebuild(structure, tensors)
    assert_identical(rebuild(structure, tensors, framework="numpy"), tensors)
    assert not TorchLeaf().matches(np.ones(1))


def test_a_scalar_with_dimensions_is_a_layout_error() -> None:
    with pytest.raises(LayoutError, match=r"'w'.*no dimensions"):
        rebuild({"t": "w", "k": "scalar"}, {"w": np.ones((2, 2))})


def test_a_restored_scalar_keeps_nothing_of_the_file() -> None:
    buffer = bytearray(b"ab")
    restored = rebuild({"t": "v", "k": "scalar"}, {"v": np.ndarray((), "V2", buffer=buffer)})
    buffer[0] = 0
    assert restored.tobytes() == b"ab"


def test_into_matches_by_position_and_fills_in_place() -> None:
    saved = flatten({"a": np.array([1.0]), "l": [np.array([2, 3])], "a.b": np.ones(1), "n": 5})
    state: dict[str, Any] = {"l": [np.zeros(2, int)], "a": np.zeros(1), "a.b": np.zeros(1), "n": 0}
    found = tensors_into(saved.tree, state)
    assert (found.missing, found.unexpected, found.replaced) == ((), (), ())
    for name, arrays in found.arrays.items():
        for array in arrays:
            array[...] = saved.tensors[name]
    assert state["a"].tolist() == [1.0]
    assert state["l"][0].tolist() == [2, 3]
    restored = rebuild(saved.tree, saved.tensors, existing=found.existing)
    assert restored["a"] is state["a"]
    assert restored["l"][0] is state["l"][0]
    assert restored["n"] == 5


def test_into_matches_by_name_what_a_flat_file_has() -> None:
    state: dict[str, Any] = {"model": {"w": np.zeros(1), "b": np.zeros(2)}, "new": np.zeros(3)}
    found = tensors_into(flat_tree(["model.b", "model.w", "old"]), state)
    assert np.shares_memory(found.arrays["model.w"][0], state["model"]["w"])
    assert np.shares_memory(found.arrays["model.b"][0], state["model"]["b"])
    assert found.missing == ("new",)
    assert found.unexpected == ("old",)


def test_into_reports_what_only_one_side_has() -> None:
    saved = flatten({"a": np.ones(1), "b": [np.ones(1)], "plain": 1})
    found = tensors_into(saved.tree, {"a": 3, "plain": np.ones(1), "b": [np.zeros(1), np.zeros(1)]})
    assert list(found.arrays) == ["b.0"]
    assert found.missing == ("plain", "b.1")
    assert found.unexpected == ("a",)


def test_into_fills_every_array_of_a_tied_tensor() -> None:
    weight = np.ones(2)
    saved = flatten({"a": weight, "b": weight})
    untied = {"a": np.zeros(2), "b": np.zeros(2)}
    targets = tensors_into(saved.tree, untied).arrays["a"]
    assert len(targets) == 2
    tied = np.zeros(2)
    assert len(tensors_into(saved.tree, {"a": tied, "b": tied}).arrays["a"]) == 1


def test_into_refuses_one_array_for_two_tensors() -> None:
    saved = flatten({"a": np.ones(2), "b": np.zeros(2)})
    tied = np.zeros(2)
    with pytest.raises(MismatchError, match=r"state\['a'\] and state\['b'\] are one array.*'a' and 'b'"):
        tensors_into(saved.tree, {"a": tied, "b": tied})


def test_into_refuses_what_cannot_be_written() -> None:
    saved = flatten({"a": np.ones(2)})
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(UnsupportedStateError, match=r"state\['a'\]: the array is read-only"):
        tensors_into(saved.tree, {"a": frozen})
    repeated = np.lib.stride_tricks.as_strided(np.zeros(1), (2,), (0,))
    with pytest.raises(UnsupportedStateError, match=r"state\['a'\]: the array repeats its memory"):
        tensors_into(saved.tree, {"a": repeated})


def test_into_leaves_scalars_to_be_replaced() -> None:
    saved = flatten({"s": np.float32(2.5), "w": np.ones(1)})
    found = tensors_into(saved.tree, {"s": np.float32(0), "w": np.zeros(1)})
    assert found.replaced == ("s",)
    assert found.missing == found.unexpected == ()
    assert rebuild(saved.tree, saved.tensors, existing=found.existing)["s"] == np.float32(2.5)


def test_the_shared_registry_knows_numpy_and_torch() -> None:
    assert LEAVES.of_kind("torch").kind == "torch"
    found = LEAVES.find(np.float32(1))
    assert found is not None
    assert found.kind == "scalar"
    assert LEAVES.find(object()) is None
