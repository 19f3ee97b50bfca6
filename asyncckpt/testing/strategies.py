"""hypothesis strategies for everything a checkpoint can hold, and the comparison that goes with them.

Needs hypothesis, which asyncckpt itself does not depend on.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import numpy as np
from hypothesis import strategies as st

from asyncckpt.model.dtype import DTYPE_NAMES, as_bytes_view, dtype_name, numpy_dtype

_TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s")


def dtype_names() -> st.SearchStrategy[str]:
    """Canonical names of dtypes, the ones with a width or unit included."""
    return st.one_of(
        st.sampled_from(DTYPE_NAMES),
        st.builds("{}{}".format, st.sampled_from("SUV"), st.integers(1, 12)),
        st.builds(
            "{}[{}]".format, st.sampled_from(("datetime64", "timedelta64")), st.sampled_from(_TIME_UNITS)
        ),
        st.sampled_from(("datetime64", "timedelta64")),
    )


def shapes(*, max_dims: int = 4, max_side: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes, with scalars and empty arrays among them."""
    return st.lists(st.integers(0, max_side), max_size=max_dims).map(tuple)


@st.composite
def arrays(
    draw: st.DrawFn, *, names: st.SearchStrategy[str] | None = None, any_layout: bool = True
) -> np.ndarray:
    """Arrays of any storable dtype with random bits (NaN payloads too), in any memory layout."""
    dtype = numpy_dtype(draw(names if names is not None else dtype_names()))
    shape = draw(shapes())
    count = int(np.prod(shape, dtype=np.int64))
    data = bytearray(_random_bytes(draw, dtype, count))
    array = np.ndarray(shape, dtype, buffer=data)
    return _other_layout(draw, array) if any_layout else array


def _random_bytes(draw: st.DrawFn, dtype: np.dtype[Any], count: int) -> bytes:
    size = count * dtype.itemsize
    if dtype.kind == "b":
        return bytes(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    if dtype.kind == "U":
        # Any other four bytes are not a character, and numpy fails on them.
        letters = draw(st.lists(st.integers(0, 0xD7FF), min_size=size // 4, max_size=size // 4))
        return struct.pack(f"<{len(letters)}I", *letters)
    return draw(st.binary(min_size=size, max_size=size))


def _other_layout(draw: st.DrawFn, array: np.ndarray) -> np.ndarray:
    layout = draw(st.sampled_from(("as it is", "fortran", "strided", "reversed", "big-endian", "read-only")))
    if layout == "fortran":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed" and array.ndim:
        return array[::-1]
    if layout == "big-endian":
        return array.byteswap().view(array.dtype.newbyteorder(">"))
    if layout == "read-only":
        array.flags.writeable = False
    return array


def numpy_scalars() -> st.SearchStrategy[np.generic]:
    """Scalars of every numeric dtype."""
    return arrays(names=st.sampled_from(DTYPE_NAMES), any_layout=False).map(
        lambda array: array.reshape(-1)[0] if array.size else array.dtype.type(0)
    )


def plain_values() -> st.SearchStrategy[Any]:
    """None, booleans, integers of any size, every float, any string (lone surrogates too), bytes, complex."""
    floats = st.one_of(
        st.floats(),
        st.binary(min_size=8, max_size=8).map(lambda bits: struct.unpack("<d", bits)[0]),
        st.sampled_from((0.0, -0.0, float("inf"), float("-inf"))),
    )
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**200), 2**200),
        floats,
        st.builds(complex, floats, floats),
        texts(),
        st.binary(max_size=12),
        texts().map(np.str_),
        st.binary(max_size=12).map(np.bytes_),
    )


def texts() -> st.SearchStrategy[str]:
    """Strings with everything in them that Python allows."""
    tricky = ("", ".", "a.b", "a#2", "0", "value", "/", "\ud800", "\ud800\udc00", "\udfff", "é", "😀", "\x00")
    any_text = st.text(st.characters(exclude_categories=()), max_size=6)
    return st.one_of(any_text, st.sampled_from(tricky))


def keys() -> st.SearchStrategy[str | int]:
    """Keys that collide easily."""
    return st.one_of(texts(), st.integers(-3, 3), st.integers())


def states(*, max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """State trees of every container with arrays, numpy scalars and plain values, some arrays tied."""
    return st.recursive(_leaves(), _containers, max_leaves=max_leaves)


# Composite, as the next one is, for the sake of its short repr: hypothesis shows those of nested strategies whole.
@st.composite
def _leaves(draw: st.DrawFn) -> Any:
    tied = st.shared(arrays(), key="asyncckpt.testing.strategies.tied")
    return draw(st.one_of(plain_values(), arrays(), numpy_scalars(), tied))


@st.composite
def _containers(draw: st.DrawFn, children: st.SearchStrategy[Any]) -> Any:
    kind = draw(st.sampled_from((dict, OrderedDict, list, tuple)))
    items = draw(st.lists(children, max_size=4))
    if kind in (list, tuple):
        return kind(items)
    names = draw(st.lists(keys(), min_size=len(items), max_size=len(items), unique=True))
    return kind(zip(names, items, strict=True))


def assert_identical(actual: Any, expected: Any, path: str = "state") -> None:
    """Fail unless both are the same tree: types, order of keys, dtypes, shapes and every bit.

    Arrays are compared as stored: the byte order and layout of `expected` do not matter.
    """
    if isinstance(expected, np.memmap):
        expected = np.asarray(expected)
    assert type(actual) is type(expected), f"{path}: {type(actual)} is not {type(expected)}"
    if isinstance(expected, dict):
        assert [(type(key), key) for key in actual] == [(type(key), key) for key in expected], f"{path}: keys"
        for key, value in expected.items():
            assert_identical(actual[key], value, f"{path}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{path}: {len(actual)} items, not {len(expected)}"
        for index, value in enumerate(expected):
            assert_identical(actual[index], value, f"{path}[{index}]")
    else:
        assert _bits(actual) == _bits(expected), f"{path}: {actual!r} is not {expected!r}"


def _bits(leaf: Any) -> Any:
    if isinstance(leaf, (np.str_, np.bytes_)):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        array, view = as_bytes_view(np.asarray(leaf))
        return dtype_name(array.dtype), array.shape, bytes(view)
    if isinstance(leaf, float):
        return struct.pack("<d", leaf)
    if isinstance(leaf, complex):
        return struct.pack("<dd", leaf.real, leaf.imag)
    if type(leaf).__module__ == "torch":
        return _torch_bits(leaf)
    return leaf


def _torch_bits(tensor: Any) -> Any:
    from asyncckpt.model.state.torch_leaf import TorchLeaf

    return _bits(TorchLeaf().to_array(tensor))
