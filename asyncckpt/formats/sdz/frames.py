"""Where the DEFLATE frames of an SDZ archive lie: our own record, before the central directory.

It is ZIP's "archive extra data record", which other readers step over. Each central record of ours points to it
through an extra field. Little-endian.

============ ======= =========================================================
part         bytes   content
============ ======= =========================================================
signature    4       50 4B 06 08
length       4       of what follows
magic        8       "ACKPTFRM"
version      4       1
entries      4       number of entries
per entry    4       number of frames, then for each: u32 raw bytes, u32 stored bytes
checksum     4       CRC32C of all since the magic
============ ======= =========================================================

The extra field 0x4B41 of a central record has u64 offset of the record, u32 its length in all, u32 the entry's
number in it, u32 the CRC32C of the entry's bytes as stored. STORED entries have it too, with no record.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncckpt.errors import ChecksumMismatchError, LayoutError, LimitExceededError
from asyncckpt.formats.kit.binary import LE_U32, Cursor
from asyncckpt.formats.kit.index import Need, need_exactly
from asyncckpt.formats.kit.zip import ARCHIVE_EXTRA_SIGNATURE, ZipEntry
from asyncckpt.model.checksums import crc32c

FRAMES_EXTRA = 0x4B41
MAX_FRAME_BYTES = 1 << 30
_MAGIC = b"ACKPTFRM"
_VERSION = 1
_HEAD = struct.Struct("<4sI8sII")
_POINTER = struct.Struct("<QIII")


class FrameSizes(NamedTuple):
    """Of each frame of one entry: raw and stored bytes, and where both begin within the entry."""

    raw: NDArray[np.int64]
    stored: NDArray[np.int64]
    raw_start: NDArray[np.int64]
    stored_start: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: NDArray[np.int64]) -> FrameSizes:
        ends = np.cumsum(pairs, axis=0)
        starts = ends - pairs
        return cls(pairs[:, 0], pairs[:, 1], starts[:, 0], starts[:, 1])


def encode_record(entries: Sequence[Sequence[tuple[int, int]]]) -> bytes:
    """The record of archives whose entries have frames of (raw, stored) bytes."""
    body = b"".join(
        LE_U32.pack(len(frames)) + np.asarray(frames, "<u4").reshape(-1).tobytes() for frames in entries
    )
    inner = _MAGIC + struct.pack("<II", _VERSION, len(entries)) + body
    data = inner + LE_U32.pack(crc32c(inner))
    return ARCHIVE_EXTRA_SIGNATURE + LE_U32.pack(len(data)) + data


class FramePointer(NamedTuple):
    """Our own extra field of a central record."""

    record_offset: int
    record_bytes: int
    number: int
    crc32c: int

    def encode(self) -> bytes:
        return _POINTER.pack(*self)

    @classmethod
    def of(cls, entry: ZipEntry) -> FramePointer | None:
        """The field of an entry that we wrote; None for any other. Raises LayoutError."""
        data = entry.extra.get(FRAMES_EXTRA)
        if data is None:
            return None
        if len(data) != _POINTER.size:
            raise LayoutError(f"the frame pointer of {entry.name!r} has {len(data)} bytes")
        return cls(*_POINTER.unpack(data))


def read_record(pointer: FramePointer, archive_bytes: int) -> Generator[Need, memoryview, list[FrameSizes]]:
    """The frames of all entries. Raises FormatError subclasses."""
    offset, length = pointer.record_offset, pointer.record_bytes
    if length < _HEAD.size + 4 or offset + length > archive_bytes:
        raise LayoutError(f"the frame record can't have {length} bytes at {offset}")
    record = yield from need_exactly(offset, length, "the frame record")
    signature, inner_length, magic, version, count = _HEAD.unpack(record[: _HEAD.size])
    if (signature, magic, version, inner_length) != (ARCHIVE_EXTRA_SIGNATURE, _MAGIC, _VERSION, length - 8):
        raise LayoutError(f"there is no frame record at {offset}")
    if crc32c(record[8:-4]) != LE_U32.unpack(record[-4:])[0]:
        raise ChecksumMismatchError("the frame record of the archive is damaged")
    cursor = Cursor(record[:-4], _HEAD.size, what="the frame record")
    tables = [_frames(cursor) for _ in range(min(count, cursor.remaining // 4))]
    if len(tables) != count or cursor.remaining:
        raise LayoutError("the frame record has another number of entries than it says")
    return tables


def _frames(cursor: Cursor) -> FrameSizes:
    count = cursor.number(LE_U32)
    pairs = np.frombuffer(cursor.take(8 * count), "<u4").astype(np.int64).reshape(-1, 2)
    if count and int(pairs[:, 0].max()) > MAX_FRAME_BYTES:
        raise LimitExceededError(f"a frame has more than {MAX_FRAME_BYTES} bytes")
    return FrameSizes.of(pairs)
