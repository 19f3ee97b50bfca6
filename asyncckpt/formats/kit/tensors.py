"""The tensors that a file lists: as the JSON of the metadata has them, and as anybody's header may describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncckpt.errors import LayoutError, LimitExceededError, UnsupportedDtypeError
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.model.metadata import Json, TensorMetadata

MAX_RANK = 64
_MAX_INT = 1 << 63

DTYPE_NUMBERS = {
    "float16": 0,
    "float32": 1,
    "float64": 2,
    "int8": 3,
    "int16": 4,
    "int32": 5,
    "int64": 6,
    "uint8": 7,
    "uint16": 8,
    "uint32": 9,
    "uint64": 10,
    "bool": 11,
    "bfloat16": 12,
    "float8_e4m3fn": 13,
    "float8_e5m2": 14,
    "complex64": 15,
    "complex128": 16,
}
"""The enum of the original, continued from 13 on; any other dtype is written by its own name."""
_DTYPES_BY_NUMBER = {number: name for name, number in DTYPE_NUMBERS.items()}


def checked_tensor(name: Json, dtype: Json, shape: Json, offset: int = 0) -> TensorMetadata:
    """A tensor from what a file says of it, which may be anything.

    Raises LayoutError, UnsupportedDtypeError, LimitExceededError for one of no file's size.
    """
    if type(name) is not str or type(dtype) is not str:
        raise LayoutError(f"tensor {str(name)[:80]!a} has no proper name or dtype")
    if not isinstance(shape, list | tuple) or not all(type(n) is int and 0 <= n < _MAX_INT for n in shape):
        raise LayoutError(f"tensor {name[:80]!a} has the shape {str(shape)[:80]}")
    if len(shape) > MAX_RANK:
        raise LimitExceededError(
            f"tensor {name[:80]!a} has {len(shape)} dimensions, at most {MAX_RANK} are read"
        )
    tensor = TensorMetadata(name, dtype, tuple(shape), offset)
    if tensor.size >= _MAX_INT:
        raise LimitExceededError(f"tensor {name[:80]!a} of shape {list(shape)} is larger than any file")
    return tensor


def encode_tensors(tensors: Sequence[TensorMetadata]) -> list[Json]:
    """The tensors of one shard, as members of the metadata."""
    return [
        {
            "name": t.name,
            "shape": t.shape,
            "dataType": DTYPE_NUMBERS.get(t.dtype, t.dtype),
            "offset": t.offset,
            "size": t.size,
        }
        for t in tensors
    ]


def decode_tensors(values: list[Json]) -> tuple[TensorMetadata, ...]:
    """Empties the list. Raises LayoutError, UnsupportedDtypeError."""
    return tuple(map(_decode_tensor, _drained(values)))


def _drained(values: list[Json]) -> Iterator[Json]:
    """The values, each let go when the next one is due: as JSON a tensor is larger than what is made of it."""
    values.reverse()
    while values:
        yield values.pop()


def _decode_tensor(value: Json) -> TensorMetadata:
    try:
        name, shape, dtype = value["name"], value["shape"], value["dataType"]
        offset, size = value.get("offset") or 0, value["size"]
    except (TypeError, KeyError, AttributeError):
        raise LayoutError(f"a tensor of the metadata lacks a member: {str(value)[:80]}") from None
    if type(name) is not str or type(shape) is not list or type(offset) is not int or type(size) is not int:
        raise LayoutError(f"tensor {str(name)[:80]!r} has members of the wrong type")
    if not all(type(n) is int and 0 <= n < _MAX_INT for n in shape) or not 0 <= offset < _MAX_INT:
        raise LayoutError(f"tensor {name!r} has the shape {shape} and the offset {offset}")
    tensor = TensorMetadata(name, _decode_dtype(dtype, name), tuple(shape), offset)
    if size >= _MAX_INT:
        raise LayoutError(f"tensor {name!r} has {size} bytes, beyond 64 bits")
    if tensor.size != size:
        raise LayoutError(
            f"tensor {name!r} of shape {shape} and dtype {tensor.dtype} has {tensor.size} bytes, the file says {size}"
        )
    return tensor


def _decode_dtype(value: Json, tensor: str) -> str:
    """A dtype's number or name. Raises UnsupportedDtypeError."""
    name = _DTYPES_BY_NUMBER.get(value) if type(value) is int else value
    if not isinstance(name, str):
        raise UnsupportedDtypeError(f"tensor {tensor!r} has the unknown dtype {str(value)[:40]}")
    numpy_dtype(name)
    return name
