"""dtypes by name, and arrays to bytes and back, bit by bit."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import LayoutError, UnsupportedDtypeError
from asyncckpt.model.dtype import DTYPE_NAMES, array_from, as_bytes_view, dtype_name, item_size, numpy_dtype
from asyncckpt.testing.strategies import arrays, dtype_names

SIZES = {
    "bool": 1,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex128": 16,
    "S10": 10,
    "U5": 20,
}
SIZES |= {"V7": 7, "datetime64[ns]": 8, "timedelta64[25s]": 8}

NO_NAMES = ["", "float", "float31", "float128", "Float32", "object", "str", "O", "<f4", "f4", "i8", "int4 "]
NO_NAMES += ["S", "S0", "U0", "V0", "S-1", "S01", "S99999999999", "U999999999", "S1,S2", "S１", "S1\n"]
NO_NAMES += [
    "datetime64[1s]",
    "datetime64[x]",
    "datetime64[]",
    "datetime64[0s]",
    "datetime64[generic]",
    "M8[s]",
]
NO_NAMES += ["timedelta64[99999999999s]"]


@given(dtype_names())
def test_name_and_dtype_are_each_others_inverse(name: str) -> None:
    dtype = numpy_dtype(name)
    assert dtype_name(dtype) == name
    assert dtype_name(dtype.newbyteorder(">")) == name
    assert item_size(name) == dtype.itemsize > 0


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_item_sizes(name: str, size: int) -> None:
    assert item_size(name) == size


def test_all_the_common_dtypes_are_there() -> None:
    expected = {"float16", "float32", "float64", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
    expected |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    assert expected | {"complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz"} <= set(DTYPE_NAMES)


@pytest.mark.parametrize("code", list("?bhilqBHILQefdFD"))
def test_every_c_type_has_a_name(code: str) -> None:
    assert numpy_dtype(dtype_name(np.dtype(code))) == np.dtype(code)


@pytest.mark.parametrize("name", NO_NAMES)
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedDtypeError):
        numpy_dtype(name)


@pytest.mark.parametrize("name", [None, 5, ["float32"], {"a": 1}])
def test_names_that_are_no_strings_are_refused(name: Any) -> None:
    with pytest.raises(UnsupportedDtypeError, match="named by a string"):
        item_size(name)


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (np.dtype(object), "Python objects"),
        (np.dtype([("a", "f4"), ("b", "i4")]), "structured"),
        (np.dtype([("a", object)]), "Python objects"),
        (np.dtype(("f4", (2,))), "structured"),
        (np.dtype(np.longdouble), "long double"),
        (np.dtype(np.clongdouble), "long double"),
        (np.dtype("V0"), "0 bytes"),
    ],
)
def test_dtypes_that_cannot_be_stored(dtype: np.dtype[Any], reason: str) -> None:
    with pytest.raises(UnsupportedDtypeError, match=reason) as caught:
        dtype_name(dtype)
    assert "\n" not in str(caught.value)


@given(arrays())
def test_any_array_survives_bit_by_bit(array: np.ndarray) -> None:
    normal, view = as_bytes_view(array)
    assert view.readonly
    assert view.format == "B"
    assert view.ndim == 1
    assert view.nbytes == array.nbytes
    assert normal.flags.c_contiguous
    restored = array_from(bytearray(view), dtype_name(array.dtype), array.shape)
    assert restored.shape == array.shape
    assert restored.flags.writeable
    # The same items in C order, compared as raw bytes in the array's own byte order.
    again = restored if array.dtype == restored.dtype else restored.byteswap()
    assert again.tobytes() == array.tobytes(order="C")


@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "float8_e5m2", "datetime64[us]", "U3", "V3", "complex64"]
)
def test_no_copy_of_a_normal_array(name: str) -> None:
    array = np.zeros((3, 4), numpy_dtype(name))
    normal, view = as_bytes_view(array)
    assert np.shares_memory(normal, array)
    array.view(np.uint8)[0, 0] = 7
    assert view[0] == 7
    with pytest.raises(TypeError):
        view[0] = 1


@pytest.mark.parametrize("name", ["float32", "bfloat16", "datetime64[s]", "S4"])
def test_scalars_and_empty_arrays(name: str) -> None:
    for shape in ((), (0,), (3, 0, 2)):
        array = np.zeros(shape, numpy_dtype(name))
        normal, view = as_bytes_view(array)
        assert normal.shape == shape
        assert view.nbytes == array.nbytes
        assert array_from(view, name, shape).shape == shape


def test_nan_payloads_survive_swapping() -> None:
    # A signalling NaN with a payload: any arithmetic conversion would set its quiet bit.
    bits = 0x7FA0_1234
    big = np.frombuffer(struct.pack(">2I", bits, 0xFF80_0001), ">f4")
    _, view = as_bytes_view(big)
    assert struct.unpack("<2I", view) == (bits, 0xFF80_0001)


def test_big_endian_bfloat16() -> None:
    big = np.frombuffer(b"\x3f\x80\xc0\x00", np.dtype(ml_dtypes.bfloat16).newbyteorder(">"))
    normal, view = as_bytes_view(big)
    assert bytes(view) == b"\x80\x3f\x00\xc0"
    assert normal.astype(np.float32).tolist() == [1.0, -2.0]


def test_array_from_is_writable_when_the_buffer_is() -> None:
    buffer = bytearray(16)
    array = array_from(buffer, "float32", (2, 2))
    array[0, 0] = 1.0
    assert buffer[:4] == struct.pack("<f", 1.0)
    assert not array_from(bytes(16), "float32", (4,)).flags.writeable
    assert array_from(np.zeros(16, np.uint8), "float32", (4,)).flags.writeable


@pytest.mark.parametrize(
    "shape", [(3,), (5,), (-1, -4), (4, 0), (2**62, 2**62), (4.0,), (True, 4), (1,) * 100 + (4,)]
)
def test_shapes_that_do_not_fit(shape: tuple[Any, ...]) -> None:
    with pytest.raises(LayoutError):
        array_from(bytes(16), "float32", shape)


def test_a_huge_shape_without_items_is_a_layout_error() -> None:
    with pytest.raises(LayoutError, match="impossible shape"):
        array_from(b"", "float32", (0, 2**62, 2**62))


@given(st.binary(max_size=64), dtype_names(), st.lists(st.integers(-2, 9), max_size=3))
def test_array_from_fits_or_says_so(data: bytes, name: str, shape: list[int]) -> None:
    try:
        array = array_from(data, name, shape)
    except LayoutError:
        return
    assert array.nbytes == len(data)
    assert list(array.shape) == shape


def test_memory_maps_are_plain_arrays(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data", np.float32, "w+", shape=(4,))
    mapped[:] = [1, 2, 3, 4]
    normal, view = as_bytes_view(mapped)
    assert type(normal) is np.ndarray
    assert bytes(view) == struct.pack("<4f", 1, 2, 3, 4)


def test_subclasses_are_refused() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"\.mask"):
        as_bytes_view(np.ma.masked_array([1, 2], [True, False]))
    with pytest.raises(UnsupportedDtypeError, match="recarray"):
        as_bytes_view(np.zeros(2).view(np.recarray))
