"""Dtypes by canonical name, and the step between arrays and their bytes.

A name is numpy's own ('float32', 'int8', 'bool', 'datetime64[ns]'), ml_dtypes' ('bfloat16', 'float8_e4m3fn'),
or a letter and a width for text and raw bytes ('S10' bytes, 'U5' characters, 'V8' bytes). Bytes are always
little-endian and in C order. No step converts a value, so every bit survives, NaN payloads included.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from asyncckpt.errors import LayoutError, UnsupportedDtypeError

_NUMPY_NAMES: Final = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
# All but the complex ones take one byte (bfloat16: two) for an item in memory, and so in a file. Which of
# them exist depends on the release of ml_dtypes.
_ML_NAMES: Final = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
    "complex32",
    "bcomplex32",
)
_BY_NAME: Final[dict[str, np.dtype[Any]]] = {
    **{name: np.dtype(name).newbyteorder("<") for name in _NUMPY_NAMES},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_NAMES if hasattr(ml_dtypes, name)},
}
# By scalar type and so for every byte order. C has several integers of one width, hence the codes; long double
# is not among them, even where it is as wide as a double.
_NAME_BY_TYPE: Final[dict[type, str]] = {
    **{np.dtype(code).type: np.dtype(code).name for code in "?bhilqBHILQefdFD"},
    **{_BY_NAME[name].type: name for name in _ML_NAMES if name in _BY_NAME},
}

_ITEM_SIZES: Final[dict[str, int]] = {name: dtype.itemsize for name, dtype in _BY_NAME.items()}
DTYPE_NAMES: Final = tuple(_BY_NAME)
"""The names without a parameter; 'S', 'U' and 'V' take a width, 'datetime64' and 'timedelta64' a unit."""

BytesLike = bytes | bytearray | memoryview | mmap.mmap | np.ndarray
"""What `array_from` takes; anything with a contiguous buffer works."""

_SIZED_TYPES: Final = (np.bytes_, np.str_, np.void)
_SIZED = re.compile(r"([SUV])([1-9][0-9]{0,8})", re.ASCII)
_TIME = re.compile(r"(?:datetime64|timedelta64)(?:\[(?:[1-9][0-9]{0,8})?[a-zA-Z]{1,2}\])?", re.ASCII)
_MAX_ITEM_BYTES = 2**31 - 1


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The canonical name, the same for every byte order. Raises UnsupportedDtypeError with the reason."""
    name = _NAME_BY_TYPE.get(dtype.type)
    if name is not None:
        return name
    if dtype.type in (np.datetime64, np.timedelta64):
        return dtype.name
    if dtype.kind in "SUV" and dtype.names is None and dtype.subdtype is None and dtype.type in _SIZED_TYPES:
        if dtype.itemsize == 0:
            raise UnsupportedDtypeError(f"dtype {dtype} has items of 0 bytes")
        return f"{dtype.kind}{dtype.itemsize // (4 if dtype.kind == 'U' else 1)}"
    raise UnsupportedDtypeError(_refusal(dtype))


def _refusal(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        return f"dtype {dtype} holds Python objects, which are never stored: use numbers or fixed-width text"
    if dtype.names is not None or dtype.subdtype is not None:
        return f"structured dtype {dtype} can't be stored: store each field as an array of its own"
    if dtype.kind in "fc":
        return f"dtype {dtype} is a long double, whose width differs between machines: convert it to float64"
    return f"dtype {dtype} is not one of fixed width that a checkpoint can hold"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The little-endian dtype of that name. Raises UnsupportedDtypeError for anything else."""
    if not isinstance(name, str):
        raise UnsupportedDtypeError(f"a dtype is named by a string, not by a {type(name).__name__}")
    known = _BY_NAME.get(name)
    return known if known is not None else _rare_dtype(name)


@lru_cache(maxsize=1024)
def _rare_dtype(name: str) -> np.dtype[Any]:
    if name in _ML_NAMES:
        raise UnsupportedDtypeError(f"dtype {name!r} needs a newer ml_dtypes: pip install -U ml_dtypes")
    parsed = _parsed(name)
    # Only the spelling that dtype_name gives is a name: 'datetime64[1s]' is 'datetime64[s]'.
    if parsed is None or dtype_name(parsed) != name:
        raise UnsupportedDtypeError(f"unknown dtype {name[:80]!r}")
    return parsed


def _parsed(name: str) -> np.dtype[Any] | None:
    sized = _SIZED.fullmatch(name)
    if sized is not None:
        width = int(sized[2]) * (4 if sized[1] == "U" else 1)
        return np.dtype("<" + name) if width <= _MAX_ITEM_BYTES else None
    if _TIME.fullmatch(name):
        try:
            return np.dtype(name).newbyteorder("<")
        except (TypeError, ValueError):
            return None
    return None


def item_size(name: str) -> int:
    """The bytes of one item. Raises UnsupportedDtypeError for an unknown name."""
    known = _ITEM_SIZES.get(name) if type(name) is str else None
    return numpy_dtype(name).itemsize if known is None else known


def as_bytes_view(array: np.ndarray) -> tuple[np.ndarray, memoryview]:
    """The array in C order and little-endian, and a read-only flat view of its bytes.

    Both share memory with `array` unless its order or layout has to change. Raises UnsupportedDtypeError.
    """
    normal = np.asarray(_little_endian(plain_array(array)), order="C")
    flat = normal.reshape(-1).view(np.uint8)
    return normal, flat.data.toreadonly()


def plain_array(array: np.ndarray) -> np.ndarray:
    """The array as np.ndarray itself, without a copy.

    A memory map is an array like any other; masks and the behaviour of other subclasses would be lost, so
    they raise UnsupportedDtypeError, as a dtype does that can't be stored.
    """
    if type(array) not in (np.ndarray, np.memmap):
        if isinstance(array, np.ma.MaskedArray):
            raise UnsupportedDtypeError("a masked array can't be stored: store its .data and its .mask")
        raise UnsupportedDtypeError(
            f"{type(array).__name__} is a subclass of numpy's array and would come back as a plain one: "
            "convert it with np.array(...)"
        )
    dtype_name(array.dtype)
    return np.asarray(array)


def _little_endian(array: np.ndarray) -> np.ndarray:
    little = array.dtype.newbyteorder("<")
    if array.dtype == little:
        return array
    # Swapped by bytes and not by value: a conversion may quieten a signalling NaN. numpy 1 does not swap the
    # items of types that it does not know, so bfloat16 is swapped as the integer of its width.
    as_integers = array.dtype.type is ml_dtypes.bfloat16
    return (array.view(np.uint16) if as_integers else array).byteswap().view(little)


def array_from(buffer: BytesLike, name: str, shape: Sequence[int]) -> np.ndarray:
    """An array over the buffer, without a copy, writable when the buffer is.

    Raises UnsupportedDtypeError for an unknown name, LayoutError when the shape is impossible or does not
    fit the number of bytes.
    """
    dtype = numpy_dtype(name)
    dims = tuple(shape)
    if any(type(dim) is not int or dim < 0 for dim in dims):
        raise LayoutError(f"impossible shape {list(dims)}")
    expected = math.prod(dims) * dtype.itemsize
    actual = buffer.nbytes if isinstance(buffer, np.ndarray) else memoryview(buffer).nbytes
    if expected != actual:
        raise LayoutError(f"shape {list(dims)} of {name} takes {expected} bytes, there are {actual}")
    try:
        return np.ndarray(dims, dtype, buffer=buffer)
    except ValueError as error:
        raise LayoutError(f"impossible shape {list(dims)}: {error}") from error
