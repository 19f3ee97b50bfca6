"""The entries of GPTRSCHK and GPTRSTEN: the index of version 2, and version 1, whose data stand between its entries.

Little-endian. An entry of version 2; [in brackets] what GPTRSCHK alone has:

============== ======== ====================================================================
part           bytes    content
============== ======== ====================================================================
name length    4        u32
name           n        UTF-8; ASCII in what gpt-rs and we write
[base id]      16       u128, the first 16 bytes of BLAKE3(name); 0 = not stored
rank           4        u32
dims           8 × rank u64
dtype          4        u32: F32 0, F16 1, BF16 2, I32 3
requires_grad  1        0 or 1
offset         8        u64, counted from the file's start
length         8        u64, bytes
============== ======== ====================================================================

Version 1 has neither base ids nor offsets: the tensor's bytes follow its entry.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import prod

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError, UnsupportedDtypeError
from asyncckpt.formats.gptrs.ids import ID_BYTES, base_param_ids
from asyncckpt.formats.kit.binary import LE_U32, Cursor
from asyncckpt.formats.kit.index import Need, need_exactly
from asyncckpt.model.dtype import item_size

MAX_RANK = 64
MAX_V1_NAME_BYTES = 65_536
V1_WINDOW_BYTES = 64 * 1024

_TAGS = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3}
_DTYPES = tuple(_TAGS)
DTYPES = frozenset(_TAGS)
_TAIL = struct.Struct("<IBQQ")
_V1_TAIL = struct.Struct("<IBQ")
_SMALLEST_V1_ENTRY = LE_U32.size + LE_U32.size + _V1_TAIL.size


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor as the file lists it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    offset: int
    size: int


# -- encode ----------------------------------------------------------------------------------------------------


def encode_index(entries: Sequence[Entry], *, with_ids: bool) -> bytes:
    """The index. Its length does not depend on the offsets. Raises MissingExtraError where ids are to be stored."""
    ids = base_param_ids(entry.name for entry in entries) if with_ids else {}
    id_bytes = ID_BYTES if with_ids else 0
    parts = [LE_U32.pack(len(entries))]
    for entry in entries:
        name = entry.name.encode("ascii")
        rank = len(entry.shape)
        parts.append(
            struct.pack(
                f"<I{len(name)}s{id_bytes}sI{rank}QIBQQ",
                len(name),
                name,
                ids.get(entry.name, 0).to_bytes(ID_BYTES, "little")[:id_bytes],
                rank,
                *entry.shape,
                _TAGS[entry.dtype],
                entry.requires_grad,
                entry.offset,
                entry.size,
            )
        )
    return b"".join(parts)


# -- decode ----------------------------------------------------------------------------------------------------


def decode_index(index: memoryview, *, with_ids: bool) -> list[Entry]:
    """Raises FormatError subclasses, and MissingExtraError where ids are stored and can't be checked."""
    cursor = Cursor(index, what="the index")
    count = cursor.number(LE_U32)
    entries = []
    ids: dict[str, int] = {}
    for _ in range(count):
        name = cursor.text(cursor.number(LE_U32), "a name of the index")
        if with_ids:
            stored_id = int.from_bytes(cursor.take(ID_BYTES), "little")
            if stored_id:
                ids[name] = stored_id
        shape = decode_shape(cursor.take(8 * checked_rank(name, cursor.number(LE_U32))), name)
        tag, requires_grad, offset, size = cursor.unpack(_TAIL)
        entries.append(checked_entry(name, tag, shape, bool(requires_grad), offset, size))
    if cursor.remaining:
        raise LayoutError(f"{cursor.remaining} bytes are left over after the {count} entries of the index")
    _check_ids(ids)
    return entries


def _check_ids(stored: dict[str, int]) -> None:
    if not stored:
        return
    computed = base_param_ids(stored)
    for name, stored_id in stored.items():
        if computed[name] != stored_id:
            raise LayoutError(
                f"tensor {name!r} has the base id {stored_id:#034x}, its name gives {computed[name]:#034x}"
            )


def checked_rank(name: str, rank: int) -> int:
    """Raises LimitExceededError for more dimensions than an array can have."""
    if rank > MAX_RANK:
        raise LimitExceededError(f"tensor {name[:80]!r} has {rank} dimensions, at most {MAX_RANK} are read")
    return rank


def decode_shape(data: memoryview, name: str) -> tuple[int, ...]:
    """Raises LayoutError for a dimension beyond 63 bits."""
    shape: tuple[int, ...] = struct.unpack(f"<{len(data) // 8}Q", data)
    if any(n >= 1 << 63 for n in shape):
        raise LayoutError(f"tensor {name[:80]!r} has the shape {list(shape)}")
    return shape


def checked_entry(
    name: str, tag: int, shape: tuple[int, ...], requires_grad: bool, offset: int, size: int
) -> Entry:
    """Raises UnsupportedDtypeError, and LayoutError when shape and size do not fit."""
    if tag >= len(_DTYPES):
        raise UnsupportedDtypeError(f"tensor {name[:80]!r} has the unknown dtype tag {tag}")
    dtype = _DTYPES[tag]
    needed = prod(shape) * item_size(dtype)
    if needed != size:
        raise LayoutError(
            f"tensor {name[:80]!r} of shape {list(shape)} and dtype {dtype} has {needed} bytes, "
            f"the file says {size}"
        )
    return Entry(name, dtype, shape, requires_grad, offset, size)


class _Window:
    """The last bytes that were asked for; entries of small tensors come many at a time."""

    def __init__(self, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._start = 0
        self._data = memoryview(b"")

    def take(self, position: int, size: int) -> Generator[Need, memoryview, memoryview]:
        """Raises TruncatedError."""
        left = self._file_bytes - position
        if size > left:
            raise TruncatedError(
                f"an entry needs {size} bytes at {position}, the file has {self._file_bytes}"
            )
        if position + size > self._start + len(self._data):
            self._data = yield from need_exactly(position, min(left, max(size, V1_WINDOW_BYTES)), "an entry")
            self._start = position
        begin = position - self._start
        return self._data[begin : begin + size]


def parse_v1_entries(position: int, file_bytes: int) -> Generator[Need, memoryview, list[Entry]]:
    """The entries of version 1, from their count on, to the end of the file. Raises FormatError subclasses."""
    window = _Window(file_bytes)
    count = LE_U32.unpack((yield from window.take(position, 4)))[0]
    position += 4
    if count * _SMALLEST_V1_ENTRY > file_bytes - position:
        raise TruncatedError(f"{count} tensors do not fit the {file_bytes - position} bytes that are left")
    entries = []
    for _ in range(count):
        name_bytes = LE_U32.unpack((yield from window.take(position, 4)))[0]
        if name_bytes > MAX_V1_NAME_BYTES:
            raise LimitExceededError(f"a name has {name_bytes} bytes, at most {MAX_V1_NAME_BYTES} are read")
        cursor = Cursor((yield from window.take(position, 4 + name_bytes + 4)), 4, what="an entry")
        name = cursor.text(name_bytes, "a name")
        rank = checked_rank(name, cursor.number(LE_U32))
        position += cursor.position
        cursor = Cursor((yield from window.take(position, 8 * rank + _V1_TAIL.size)))
        shape = decode_shape(cursor.take(8 * rank), name)
        tag, requires_grad, size = cursor.unpack(_V1_TAIL)
        position += cursor.position
        entries.append(checked_entry(name, tag, shape, bool(requires_grad), position, size))
        position += size
        if position > file_bytes:
            raise TruncatedError(f"tensor {name[:80]!r} ends at {position}, the file has {file_bytes} bytes")
    if position != file_bytes:
        raise LayoutError(f"{file_bytes - position} bytes are left over after the last tensor")
    return entries
