"""The entries of a safetensors header: its tensors as JSON, by name, and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from json.encoder import encode_basestring_ascii
from operator import itemgetter

import numpy as np

from asyncckpt.errors import LayoutError, LimitExceededError, UnsupportedDtypeError
from asyncckpt.formats.kit.binary import is_unicode
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.model.metadata import Json, TensorMetadata, byte_size
from asyncckpt.model.tensors import TensorTable, lay_out_sizes, sizes_column

MAX_RANK = 64

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""In the package's own order, which is also the order of the data, backwards."""
TAGS = {dtype: tag for tag, dtype in _DTYPES.items()}
_RANKS = {dtype: -number for number, dtype in enumerate(_DTYPES.values())}
_ENTRY = itemgetter("dtype", "shape", "data_offsets")
_INTEGERS, _LISTS = frozenset({int}), frozenset({list})
_PACKED = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


# -- encode --------------------------------------------------------------------------------------------------


def file_order(tensors: Sequence[TensorMetadata]) -> list[int]:
    """The numbers of the tensors as the `safetensors` package orders their data."""
    table = TensorTable.of(tensors)
    groups: dict[str, list[int]] = {dtype: [] for dtype in sorted(set(table.dtypes), key=_RANKS.__getitem__)}
    for number, dtype in enumerate(table.dtypes):
        groups[dtype].append(number)
    return [number for group in groups.values() for number in sorted(group, key=table.names.__getitem__)]


def encode_entries(listed: TensorTable) -> str:
    """The entries of tensors that are stored in this order, as members of a JSON object."""
    kinds = list(zip(listed.dtypes, listed.shapes, strict=True))
    # Of very many tensors most are alike.
    texts = {
        (dtype, shape): f'"dtype":"{TAGS[dtype]}","shape":[{",".join(map(str, shape))}]'
        for dtype, shape in set(kinds)
    }
    starts, _ = lay_out_sizes(listed.sizes, 0, 1)
    columns = zip(
        map(encode_basestring_ascii, listed.names),
        kinds,
        starts.tolist(),
        (starts + listed.sizes).tolist(),
        strict=True,
    )
    return ",".join(
        [f'{name}:{{{texts[kind]},"data_offsets":[{start},{end}]}}' for name, kind, start, end in columns]
    )


# -- decode --------------------------------------------------------------------------------------------------


def decode_entries(members: dict[str, Json], data_start: int, file: int) -> tuple[StoredTable, int]:
    """The tensors by position; each must begin where the one before it ends. Empties `members`."""
    table = _decode_columns(members, data_start)
    if table is None:
        # An entry is several times as large as its text: it is let go as soon as it has become a tensor.
        table = TensorTable.of([_decode_entry(name, members.pop(name), data_start) for name in list(members)])
    order = np.lexsort((table.sizes, table.offsets))
    if (np.diff(order) < 0).any():
        table = table.take(order.tolist())
    expected, end = lay_out_sizes(table.sizes, data_start, 1)
    wrong = np.flatnonzero(table.offsets != expected)
    if len(wrong):
        name = table.names[wrong[0]]
        found, position = int(table.offsets[wrong[0]]), int(expected[wrong[0]])
        kind = "overlaps the one before it" if found < position else "leaves a hole before it"
        raise LayoutError(
            f"tensor {name!r} {kind}: it begins at {found - data_start} of the data, "
            f"not at {position - data_start}"
        )
    return StoredTable(table, table.offsets, file), end - data_start


def _decode_columns(members: dict[str, Json], data_start: int) -> TensorTable | None:
    """The tensors, where every entry is what it should be. Empties `members`."""
    names = list(members)
    try:
        tags, shapes, places = zip(*map(_ENTRY, members.values()), strict=True) if members else [()] * 3
        starts, ends = zip(*places, strict=True) if members else [()] * 2
        kinds = list(zip(tags, map(tuple, shapes), strict=True))
        distinct = {kind: kind[1] for kind in kinds}
        dtypes = {tag: _DTYPES[tag] for tag in set(tags)}
    except (KeyError, TypeError, ValueError):
        return None
    # The types of all of them, not of the distinct ones: 1 == 1.0 == True.
    numbers = chain(starts, ends, chain.from_iterable(shapes))
    if not _INTEGERS.issuperset(map(type, numbers)) or not _LISTS.issuperset(map(type, shapes)):
        return None
    if not all(map(is_unicode, names)):
        return None
    for shape in distinct.values():
        if len(shape) > MAX_RANK or not all(0 <= n < 1 << 63 for n in shape):
            return None
    sizes = {kind: byte_size(dtypes[kind[0]], kind[1]) for kind in distinct}
    found = [sizes[kind] for kind in kinds]
    if min(starts, default=0) < 0 or max(ends, default=0) >= 1 << 62:
        return None
    if [start + size for start, size in zip(starts, found, strict=True)] != list(ends):
        return None
    members.clear()
    return TensorTable(
        names,
        [dtypes[tag] for tag, _ in kinds],
        [distinct[kind] for kind in kinds],
        sizes_column(found),
        np.array(starts, np.int64) + data_start,
    )


def _decode_entry(name: str, entry: Json, data_start: int) -> TensorMetadata:
    if not is_unicode(name):
        raise LayoutError(f"a tensor has the name {name[:80]!a}, which is no Unicode")
    try:
        tag, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise LayoutError(f"tensor {name!r} lacks its dtype, shape or two data_offsets") from None
    if type(shape) is not list or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise LayoutError(f"tensor {name!r} has the shape {str(shape)[:80]}")
    if len(shape) > MAX_RANK:
        raise LimitExceededError(f"tensor {name!r} has {len(shape)} dimensions, at most {MAX_RANK} are read")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise LayoutError(f"tensor {name!r} has the data_offsets [{str(start)[:40]}, {str(end)[:40]}]")
    offset = data_start + start
    tensor = TensorMetadata(name, _decode_dtype(name, tag), tuple(shape), offset)
    if tensor.size != end - start:
        raise LayoutError(
            f"tensor {name!r} of shape {shape} and dtype {tag} has {tensor.size} bytes, "
            f"the file says {end - start}"
        )
    return tensor


def _decode_dtype(name: str, tag: Json) -> str:
    dtype = _DTYPES.get(tag) if isinstance(tag, str) else None
    if dtype is not None:
        return dtype
    if isinstance(tag, str) and tag in _PACKED:
        raise UnsupportedDtypeError(
            f"tensor {name!r} is {tag}, packed in {_PACKED[tag]} bits an item, which no array here can hold"
        )
    raise UnsupportedDtypeError(f"tensor {name!r} has the unknown dtype {str(tag)[:40]!r}")
