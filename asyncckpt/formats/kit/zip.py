"""ZIP archives: the central directory read by range from hostile bytes, and the records of archives we write.

Little-endian. Only flat names, methods STORED and DEFLATE, one disk, no encryption. Zip64 from 4 GiB on.

======================= ============ =======================================================================
record                  signature    what follows
======================= ============ =======================================================================
local header            50 4B 03 04  version, flags, method, time, date, CRC32, sizes, lengths; name; extra
data descriptor         50 4B 07 08  CRC32, sizes (8 bytes each where one exceeds 4 GiB)
archive extra data      50 4B 06 08  u32 length, data; stands before the central directory
central record          50 4B 01 02  as the local header, and where that is; name; extra; comment
Zip64 end, locator      50 4B 06 06, 50 4B 06 07
end                     50 4B 05 06  number of records, size and offset of the central directory; comment
======================= ============ =======================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError, UnsupportedVersionError
from asyncckpt.formats.kit.binary import LE_U16, LE_U32, LE_U64, Cursor
from asyncckpt.formats.kit.index import FileInfo, Need, need_exactly
from asyncckpt.model.file_names import is_file_name

MAGIC = b"PK\x03\x04"
STORED, DEFLATED = 0, 8
LIMIT_32 = 0xFFFFFFFF
ZIP64_EXTRA = 0x0001
ALIGNMENT_EXTRA = 0xD935
"""The identifier that Android's zipalign uses for padding."""
DESCRIPTOR_FLAG = 0x0008
_ENCRYPTED_FLAGS = 0x2041
_MAYBE_LARGE = 0xFF000000
"""From here on incompressible data may take more than 4 GiB once it is compressed."""
_DOS_DATE = 0x0021
"""1 January 1980, ZIP's own epoch: the bytes of an archive must not depend on the hour."""

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR_64 = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<HH")
_CENTRAL_SIGNATURE, _END_SIGNATURE = b"PK\x01\x02", b"PK\x05\x06"
_END_64_SIGNATURE, _LOCATOR_SIGNATURE = b"PK\x06\x06", b"PK\x06\x07"
_DESCRIPTOR_SIGNATURE, ARCHIVE_EXTRA_SIGNATURE = b"PK\x07\x08", b"PK\x06\x08"
_TAIL_BYTES = _END.size + 0xFFFF + _LOCATOR_64.size + _END_64.size


@dataclass(frozen=True, slots=True)
class ZipLimits:
    """What a reader bears. Bytes are counted as they come out, never taken from what the archive says."""

    max_entries: int = 10_001
    max_bytes: int = 1 << 40
    max_ratio: int = 200
    free_bytes: int = 64 << 20
    """Up to so many bytes any ratio is fine: a fresh optimiser is nothing but zeros."""

    def check(self, inflated: int, compressed: int) -> None:
        """Raises LimitExceededError."""
        if inflated > self.max_bytes:
            raise LimitExceededError(
                f"the archive inflates to more than {self.max_bytes} bytes: raise max_bytes"
            )
        if inflated > self.free_bytes and inflated > self.max_ratio * max(1, compressed):
            raise LimitExceededError(
                f"{compressed} bytes of the archive inflate to {inflated} or more, beyond 1:{self.max_ratio}: "
                "raise max_ratio if you trust it"
            )


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file of an archive, as the central directory has it."""

    name: str
    method: int
    crc32: int
    compressed: int
    size: int
    header_offset: int
    flags: int = 0
    extra: dict[int, bytes] = field(default_factory=dict)
    data_offset: int = -1
    """Where its bytes begin; known once the local header has been read."""

    @property
    def end(self) -> int:
        return self.data_offset + self.compressed


# -- encode ----------------------------------------------------------------------------------------------------


def extra_field(identifier: int, data: bytes) -> bytes:
    return _EXTRA.pack(identifier, len(data)) + data


def local_header(entry: ZipEntry, *, extra: bytes = b"") -> bytes:
    """With a data descriptor the sizes are left open; the length does not depend on their values."""
    name = entry.name.encode()
    large = _is_large(entry)
    if entry.flags & DESCRIPTOR_FLAG:
        large = entry.size >= _MAYBE_LARGE  # all that is known when the header is written
    crc, compressed, size = entry.crc32, entry.compressed, entry.size
    if entry.flags & DESCRIPTOR_FLAG:
        crc = compressed = size = 0
    if large:
        extra = extra_field(ZIP64_EXTRA, struct.pack("<QQ", size, compressed)) + extra
        compressed = size = LIMIT_32
    version = 45 if large else 20
    return (
        _LOCAL.pack(
            MAGIC,
            version,
            entry.flags,
            entry.method,
            0,
            _DOS_DATE,
            crc,
            compressed,
            size,
            len(name),
            len(extra),
        )
        + name
        + extra
    )


def aligned_extra(position: int, alignment: int) -> bytes:
    """A field of padding after which the next byte is aligned, when it begins at `position`."""
    pad = -(position + _EXTRA.size + 2) % alignment
    return extra_field(ALIGNMENT_EXTRA, LE_U16.pack(alignment) + bytes(pad))


def _is_large(entry: ZipEntry) -> bool:
    return entry.size >= LIMIT_32 or entry.compressed >= LIMIT_32


def data_descriptor(entry: ZipEntry) -> bytes:
    sizes = struct.pack("<QQ" if _is_large(entry) else "<II", entry.compressed, entry.size)
    return _DESCRIPTOR_SIGNATURE + LE_U32.pack(entry.crc32) + sizes


def central_directory(entries: Sequence[ZipEntry], offset: int, *, comment: bytes = b"") -> bytes:
    """The central directory and the end records, to be stored at `offset`."""
    directory = b"".join(map(_central_record, entries))
    count = len(entries)
    records = b""
    if offset >= LIMIT_32 or len(directory) >= LIMIT_32 or count >= 0xFFFF:
        end_64 = _END_64.pack(
            _END_64_SIGNATURE, _END_64.size - 12, 45, 45, 0, 0, count, count, len(directory), offset
        )
        records = end_64 + _LOCATOR_64.pack(_LOCATOR_SIGNATURE, 0, offset + len(directory), 1)
    small = min(count, 0xFFFF)
    return (
        directory
        + records
        + _END.pack(
            _END_SIGNATURE, 0, 0, small, small, min(len(directory), LIMIT_32), min(offset, LIMIT_32),
            len(comment),
        )
        + comment
    )  # fmt: skip


def _central_record(entry: ZipEntry) -> bytes:
    name = entry.name.encode()
    large = [v for v in (entry.size, entry.compressed, entry.header_offset) if v >= LIMIT_32]
    extra = extra_field(ZIP64_EXTRA, struct.pack(f"<{len(large)}Q", *large)) if large else b""
    extra += b"".join(extra_field(identifier, data) for identifier, data in entry.extra.items())
    version = 45 if large else 20
    numbers = (min(v, LIMIT_32) for v in (entry.compressed, entry.size))
    return (
        _CENTRAL.pack(
            _CENTRAL_SIGNATURE, version, version, entry.flags, entry.method, 0, _DOS_DATE, entry.crc32,
            *numbers, len(name), len(extra), 0, 0, 0, 0, min(entry.header_offset, LIMIT_32),
        )
        + name
        + extra
    )  # fmt: skip


# -- decode ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Archive:
    """What an archive's central directory says: the entries by name, with the places of their bytes.

    `tail` is all of the archive from `directory_offset` on.
    """

    entries: dict[str, ZipEntry]
    directory_offset: int
    tail: memoryview
    comment: bytes


def read_archive(source: FileInfo, limits: ZipLimits) -> Generator[Need, memoryview, Archive]:
    """Raises FormatError subclasses."""
    offset, size, count, comment = yield from _find_directory(source)
    if count > limits.max_entries:
        raise LimitExceededError(f"the archive has {count} entries, at most {limits.max_entries} are read")
    if count * _CENTRAL.size > size:
        raise LayoutError(f"the central directory says {count} entries, its {size} bytes can't hold them")
    tail = yield from need_exactly(offset, source.size - offset, "the central directory")
    directory = tail[:size]
    cursor = Cursor(directory, what="the central directory")
    entries: dict[str, ZipEntry] = {}
    for _ in range(count):
        entry = _central_entry(cursor)
        if entry.name in entries:
            raise LayoutError(f"the archive has the entry {entry.name!r} twice")
        entries[entry.name] = yield from _locate(entry, offset)
    if cursor.remaining:
        raise LayoutError(f"{cursor.remaining} bytes are left over in the central directory")
    places = sorted((e.header_offset, e.end, e.name) for e in entries.values())
    for (_, end, first), (start, _, second) in pairwise(places):
        if start < end:
            raise LayoutError(f"the entries {first!r} and {second!r} overlap at byte {start}")
    return Archive(entries, offset, tail, comment)


def _find_directory(source: FileInfo) -> Generator[Need, memoryview, tuple[int, int, int, bytes]]:
    """Offset, size and number of records of the central directory, and the archive's comment."""
    tail_start = max(0, source.size - _TAIL_BYTES)
    tail = yield Need(tail_start, source.size - tail_start)
    data = bytes(tail)
    position = len(data) - _END.size
    while True:
        position = data.rfind(_END_SIGNATURE, 0, position + 4) if position >= 0 else -1
        if position < 0:
            raise TruncatedError("the archive has no end record: it is cut, or it is no ZIP file")
        fields = _END.unpack_from(data, position) if position + _END.size <= len(data) else None
        if fields is not None and position + _END.size + fields[7] == len(data):
            break
        position -= 1
    disks, counts, size, offset = fields[1:3], fields[3:5], fields[5], fields[6]
    end = tail_start + position
    count = counts[1]
    locator = position - _LOCATOR_64.size
    if locator >= 0 and data[locator : locator + 4] == _LOCATOR_SIGNATURE:
        end = _LOCATOR_64.unpack_from(data, locator)[2]
        if end + _END_64.size > tail_start + locator:
            raise LayoutError(f"the Zip64 end record can't lie at {end}")
        raw = yield from need_exactly(end, _END_64.size, "the Zip64 end record")
        signature, _, _, _, disk, start_disk, *counts_64, size, offset = _END_64.unpack(raw)
        if signature != _END_64_SIGNATURE:
            raise LayoutError(f"there is no Zip64 end record at {end}")
        disks, counts, count = (disk, start_disk), tuple(counts_64), counts_64[1]
    if any(disks) or counts[0] != counts[1]:
        raise LayoutError("the archive is spread over several disks, which is not read")
    if offset + size != end:
        raise LayoutError(f"the central directory ends at {offset + size}, the end record begins at {end}")
    return offset, size, count, data[position + _END.size :]


def _central_entry(cursor: Cursor) -> ZipEntry:
    fields = cursor.unpack(_CENTRAL)
    if fields[0] != _CENTRAL_SIGNATURE:
        raise LayoutError(f"the central directory has no record at {cursor.position - _CENTRAL.size}")
    flags, method, crc = fields[3], fields[4], fields[7]
    compressed, size, header_offset = fields[8], fields[9], fields[16]
    name = _flat_name(bytes(cursor.take(fields[10])))
    extra = _extra_fields(cursor.take(fields[11]), name)
    cursor.take(fields[12])
    if ZIP64_EXTRA in extra:
        wide = Cursor(memoryview(extra.pop(ZIP64_EXTRA)), what=f"the Zip64 field of {name!r}")
        size = wide.number(LE_U64) if size == LIMIT_32 else size
        compressed = wide.number(LE_U64) if compressed == LIMIT_32 else compressed
        header_offset = wide.number(LE_U64) if header_offset == LIMIT_32 else header_offset
    if flags & _ENCRYPTED_FLAGS:
        raise UnsupportedVersionError(f"the entry {name!r} is encrypted, which is not read")
    if method not in (STORED, DEFLATED):
        raise UnsupportedVersionError(
            f"the entry {name!r} has the method {method}; STORED and DEFLATE are read"
        )
    if method == STORED and compressed != size:
        raise LayoutError(f"the entry {name!r} is stored, but has {compressed} bytes of {size}")
    return ZipEntry(name, method, crc, compressed, size, header_offset, flags, extra)


def _flat_name(data: bytes) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError:
        name = data.decode("cp437")
    if not is_file_name(name):
        raise LayoutError(
            f"the archive has the entry {name[:80]!r}; only plain names without folders are read"
        )
    return name


def _extra_fields(data: memoryview, name: str) -> dict[int, bytes]:
    cursor = Cursor(data, what=f"the extra field of {name!r}")
    fields: dict[int, bytes] = {}
    while cursor.remaining >= _EXTRA.size:
        identifier, size = cursor.unpack(_EXTRA)
        fields[identifier] = bytes(cursor.take(size))
    return fields


def _locate(entry: ZipEntry, directory: int) -> Generator[Need, memoryview, ZipEntry]:
    """Read the local header, which alone says where the bytes begin."""
    name = entry.name.encode()
    raw = yield from need_exactly(entry.header_offset, _LOCAL.size, f"the local header of {entry.name!r}")
    fields = _LOCAL.unpack(raw)
    if fields[0] != MAGIC or fields[3] != entry.method:
        raise LayoutError(f"there is no local header of {entry.name!r} at {entry.header_offset}")
    name_offset = entry.header_offset + _LOCAL.size
    found = yield from need_exactly(name_offset, fields[9], f"the local name of {entry.name!r}")
    if found != name and found != entry.name.encode("cp437", "replace"):
        raise LayoutError(f"the local header at {entry.header_offset} has another name than {entry.name!r}")
    data_offset = name_offset + fields[9] + fields[10]
    located = replace(entry, data_offset=data_offset)
    if located.end > directory:
        raise TruncatedError(
            f"the entry {entry.name!r} ends at {located.end}, the directory begins at {directory}"
        )
    return located
