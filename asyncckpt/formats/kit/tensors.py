"""The tensors that a file lists: as the JSON of the metadata has them, and as anybody's header may describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from json.encoder import encode_basestring_ascii
from operator import itemgetter

import numpy as np

from asyncckpt.errors import LayoutError, LimitExceededError, UnsupportedDtypeError
from asyncckpt.formats.kit.strict_json import JsonText, dump_json
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.model.metadata import Json, TensorMetadata, byte_size
from asyncckpt.model.tensors import TensorTable, sizes_column

MAX_RANK = 64
_MAX_INT = 1 << 63
_MEMBERS = itemgetter("name", "shape", "dataType", "offset", "size")
_STRING, _INTEGERS, _LISTS = frozenset({str}), frozenset({int}), frozenset({list})
_KNOWN_TYPES = frozenset({str, int})

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


def encode_tensors(tensors: Sequence[TensorMetadata]) -> Json:
    """The tensors of one shard, as a member of the metadata."""
    table = TensorTable.of(tensors)
    shapes = {shape: ",".join(map(str, shape)) for shape in set(table.shapes)}
    dtypes = {dtype: dump_json(DTYPE_NUMBERS.get(dtype, dtype)) for dtype in set(table.dtypes)}
    columns = zip(
        map(encode_basestring_ascii, table.names),
        table.shapes,
        table.dtypes,
        table.offsets.tolist(),
        table.sizes.tolist(),
        strict=True,
    )
    texts = [
        f'{{"name":{name},"shape":[{shapes[shape]}],"dataType":{dtypes[dtype]},"offset":{offset},"size":{size}}}'
        for name, shape, dtype, offset, size in columns
    ]
    return JsonText(f"[{','.join(texts)}]")


def decode_tensors(values: list[Json]) -> TensorTable:
    """Empties the list. Raises LayoutError, UnsupportedDtypeError."""
    try:
        names, shapes, types, offsets, sizes = (
            zip(*map(_MEMBERS, values), strict=True) if values else [()] * 5
        )
        columns = [list(names), list(shapes), list(types), list(offsets), list(sizes)]
    except (KeyError, TypeError):
        columns = []
    table = _decode_columns(*columns) if columns else None
    if table is None:
        # Something is wrong, or rare, with at least one of them.
        return TensorTable.of([_decode_tensor(value) for value in _drained(values)])
    values.clear()
    return table


def _decode_columns(
    names: list[Json], shapes: list[Json], types: list[Json], offsets: list[Json], sizes: list[Json]
) -> TensorTable | None:
    """The tensors, where all columns are what they should be."""
    if not _STRING.issuperset(map(type, names)) or not _LISTS.issuperset(map(type, shapes)):
        return None
    # The types of all of them, not of the distinct ones: 1 == 1.0 == True.
    if not _INTEGERS.issuperset(map(type, chain(offsets, sizes, chain.from_iterable(shapes)))):
        return None
    if not _KNOWN_TYPES.issuperset(map(type, types)) or not all(0 <= n < _MAX_INT for n in offsets):
        return None
    shapes = list(map(tuple, shapes))
    kinds = set(zip(types, shapes, strict=True))
    if not all(0 <= n < _MAX_INT for _, shape in kinds for n in shape):
        return None
    dtypes = {value: _decode_dtype(value, names[types.index(value)]) for value in set(types)}
    known = {shape: shape for _, shape in kinds}
    expected = {kind: byte_size(dtypes[kind[0]], kind[1]) for kind in kinds}
    if [expected[kind] for kind in zip(types, shapes, strict=True)] != sizes:
        return None
    return TensorTable(
        names,
        [dtypes[value] for value in types],
        [known[shape] for shape in shapes],
        sizes_column(sizes),
        np.array(offsets, np.int64),
    )


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
