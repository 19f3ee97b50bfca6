"""The fixed structures of MLDF: magic, header, field descriptors, allocation table, and each type's cell.

Little-endian throughout; u2, u4 and u8 are 2, 4 and 8 bytes.

====== ===== ================= =====================================================================
offset bytes header field      meaning
====== ===== ================= =====================================================================
0      9     magic             89 4D 4C 44 46 0D 0A 1A 0A
9      2     version_major     1; another one is refused
11     2     version_minor     0; a newer one is a warning
13     4     flags             1 little-endian, 2 compressed, 4 CRC32, 8 encrypted
17     8     num_samples       rows of the metadata table
25     2     num_fields        columns; at most 65 535
27     2     pad
29     4     page_size         what the data region is aligned to
33     8     field_desc_ptr
41     8     metadata_ptr
49     8     data_ptr
57     8     alloc_table_ptr   the table's count is (end of file - this) / 16
65     4     data CRC32        with flag 4: of [data_ptr, alloc_table_ptr)
69     4     structure CRC32   tables of ours: of everything else (table.py); otherwise 0
====== ===== ================= =====================================================================

A descriptor has 204 bytes: name 64 (NUL padded), u2 type, u2 flags, u4 metadata_size, u4 pad, 128 arguments. The
metadata table has one row for each sample: the fields' cells, one after another, of these kinds:

====== ======================= ==========================================================================
bytes  types                   cell
====== ======================= ==========================================================================
8      INT, FLOAT              i8, or f8: the value itself
16     BYTES, JSON, others     u8 data_ptr, u4 data_size, u4 pad
24     NDARRAY (ours)          u8 data_ptr, u8 data_size, u8 crc32
24     IMAGE_*                 u8 data_ptr, u4 data_size, u2 height, u2 width, u1 channels, u1 mode, 6 pad
24     AUDIO_*                 u8 data_ptr, u4 data_size, u4 num_samples, u4 sample_rate, u2 num_channels,
                               u1 bit_depth, u1 codec
16     TEXT_RAW, TOKENIZED     u8 data_ptr, u4 data_size, u2 num_tokens, u1 encoding, u1 pad
====== ======================= ==========================================================================

A cell whose data_ptr is 0 holds nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError, UnsupportedVersionError
from asyncckpt.formats.kit.binary import decode_utf8, encode_utf8

MAGIC = bytes.fromhex("894d4c44460d0a1a0a")
VERSION_MAJOR = 1
VERSION_MINOR = 0
HEADER = struct.Struct("<HHIQHHIQQQQII")
HEADER_START = len(MAGIC)
HEADER_END = HEADER_START + HEADER.size
DATA_CRC_AT = HEADER_START + 56
"""Where the four bytes of the data's CRC32 stand in the file."""
DESCRIPTOR = struct.Struct("<64sHHII128s")
PADDED_DESCRIPTOR = struct.Struct("<64sHHII128s4x")
ALLOCATION = struct.Struct("<QII")
MAX_FIELDS = 2**16 - 1
MAX_NAME_BYTES = 63
MAX_ARGUMENT_BYTES = 128
MAX_ALLOCATION_BYTES = 2**32 - 1
PAGE_BYTES = 4096
TABLE_ALIGNMENT = 64


class Flags(IntFlag):
    LITTLE_ENDIAN = 1
    COMPRESSED = 2
    CRC32 = 4
    ENCRYPTED = 8


class TypeId(IntEnum):
    """The types that the format names; a file may have others, whose cells are those of BYTES."""

    INT = 1
    FLOAT = 2
    BYTES = 3
    NDARRAY = 4
    JSON = 5
    IMAGE_RAW = 10
    IMAGE_JPEG = 11
    IMAGE_PNG = 12
    AUDIO_WAVEFORM = 20
    AUDIO_COMPRESSED = 21
    AUDIO_SPECTROGRAM = 22
    AUDIO_CODEC_TOKENS = 23
    VIDEO_FRAMES = 30
    VIDEO_COMPRESSED = 31
    VIDEO_OPTICAL_FLOW = 32
    TEXT_RAW = 40
    TEXT_TOKENIZED = 41
    TEXT_PACKED = 42
    TEXT_HIERARCHICAL = 43
    MULTIMODAL_SAMPLE = 50


INT_CELL = struct.Struct("<q")
FLOAT_CELL = struct.Struct("<d")
BYTES_CELL = struct.Struct("<QI4x")
NDARRAY_CELL = struct.Struct("<QQQ")
IMAGE_CELL = struct.Struct("<QIHHBB6x")
AUDIO_CELL = struct.Struct("<QIIIHBB")
TEXT_CELL = struct.Struct("<QIHBx")

_CELLS = {
    TypeId.INT: INT_CELL,
    TypeId.FLOAT: FLOAT_CELL,
    TypeId.NDARRAY: NDARRAY_CELL,
    TypeId.IMAGE_RAW: IMAGE_CELL,
    TypeId.IMAGE_JPEG: IMAGE_CELL,
    TypeId.IMAGE_PNG: IMAGE_CELL,
    TypeId.AUDIO_WAVEFORM: AUDIO_CELL,
    TypeId.AUDIO_COMPRESSED: AUDIO_CELL,
    TypeId.AUDIO_SPECTROGRAM: AUDIO_CELL,
    TypeId.AUDIO_CODEC_TOKENS: AUDIO_CELL,
    TypeId.TEXT_RAW: TEXT_CELL,
    TypeId.TEXT_TOKENIZED: TEXT_CELL,
}


def cell_of(type_id: int) -> struct.Struct:
    """The layout of a type's cell in the metadata table."""
    return _CELLS.get(type_id, BYTES_CELL)  # type: ignore[call-overload, no-any-return]


# -- the header ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """The 64 bytes after the magic."""

    num_samples: int
    num_fields: int
    page_size: int
    field_desc_ptr: int
    metadata_ptr: int
    data_ptr: int
    alloc_table_ptr: int
    flags: int = Flags.LITTLE_ENDIAN | Flags.CRC32
    data_crc32: int = 0
    structure_crc32: int = 0
    version_major: int = VERSION_MAJOR
    version_minor: int = VERSION_MINOR

    def encode(self) -> bytes:
        """The magic and the header, as they stand at the start of the file."""
        return MAGIC + HEADER.pack(
            self.version_major,
            self.version_minor,
            self.flags,
            self.num_samples,
            self.num_fields,
            0,
            self.page_size,
            self.field_desc_ptr,
            self.metadata_ptr,
            self.data_ptr,
            self.alloc_table_ptr,
            self.data_crc32,
            self.structure_crc32,
        )

    @classmethod
    def decode(cls, data: memoryview, file_bytes: int) -> Header:
        """Raises LayoutError, UnsupportedVersionError and TruncatedError."""
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise LayoutError(f"not an MLDF file: it begins with {bytes(data[:9]).hex(' ')}")
        if len(data) < HEADER_END:
            raise TruncatedError(f"the header needs {HEADER_END} bytes, the file has {file_bytes}")
        major, minor, flags, samples, fields, _, page, *rest = HEADER.unpack(data[HEADER_START:HEADER_END])
        descriptors, metadata, data_ptr, alloc, data_crc32, structure_crc32 = rest
        header = cls(
            samples,
            fields,
            page,
            descriptors,
            metadata,
            data_ptr,
            alloc,
            flags,
            data_crc32,
            structure_crc32,
            major,
            minor,
        )
        header.require_readable()
        if not HEADER_END <= data_ptr <= alloc <= file_bytes:
            raise LayoutError(
                f"the data lies at [{data_ptr}, {alloc}), outside the file, which has {file_bytes} bytes"
            )
        if (file_bytes - alloc) % ALLOCATION.size:
            raise LayoutError(f"the allocation table has {file_bytes - alloc} bytes, no multiple of 16")
        return header

    def require_readable(self) -> None:
        """Raises UnsupportedVersionError for another major version, LayoutError for flags we can't read."""
        if self.version_major != VERSION_MAJOR:
            advice = "upgrade asyncckpt" if self.version_major > VERSION_MAJOR else "use an older reader"
            raise UnsupportedVersionError(
                f"MLDF version {self.version} is not supported, only {VERSION_MAJOR}.x: {advice}"
            )
        if self.flags & Flags.COMPRESSED:
            raise LayoutError("the data is compressed (flag 2), which asyncckpt can't read")
        if self.flags & Flags.ENCRYPTED:
            raise LayoutError("the data is encrypted (flag 8), which asyncckpt can't read")
        if not self.flags & Flags.LITTLE_ENDIAN:
            raise LayoutError("flag 1 is not set: the file is not little-endian, which asyncckpt can't read")
        if self.num_fields == 0:
            raise LayoutError("the file has no fields")

    @property
    def version(self) -> str:
        return f"{self.version_major}.{self.version_minor}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a newer minor version or an unknown flag may mean that this release does not know."""
        found = []
        if self.version_minor > VERSION_MINOR:
            found.append(f"written as MLDF {self.version}, read as {VERSION_MAJOR}.{VERSION_MINOR}")
        unknown = self.flags & ~15
        if unknown:
            found.append(f"the unknown flags {unknown:#x} were ignored")
        return tuple(found)


# -- field descriptors -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One field as its descriptor has it; `arguments` without the NULs behind them."""

    name: str
    type_id: int
    arguments: bytes = b""
    flags: int = 0

    @property
    def cell_bytes(self) -> int:
        return cell_of(self.type_id).size

    def encode(self) -> bytes:
        """204 bytes. Raises LimitExceededError for a name or arguments that do not fit."""
        name = encode_utf8(self.name, "a field's name")
        if not 0 < len(name) <= MAX_NAME_BYTES or len(self.arguments) > MAX_ARGUMENT_BYTES:
            raise LimitExceededError(
                f"field {self.name[:80]!r} has a name of {len(name)} bytes and arguments of "
                f"{len(self.arguments)}; {MAX_NAME_BYTES} and {MAX_ARGUMENT_BYTES} fit"
            )
        return DESCRIPTOR.pack(name, self.type_id, self.flags, self.cell_bytes, 0, self.arguments)


def descriptor_bytes(header: Header, file_bytes: int) -> int:
    """How many bytes of descriptors to read: those of the wider stride, where the file is long enough.

    Raises TruncatedError when not even the narrower one fits.
    """
    least = header.num_fields * DESCRIPTOR.size
    left = file_bytes - header.field_desc_ptr
    if header.field_desc_ptr < HEADER_END or least > left:
        raise TruncatedError(
            f"{header.num_fields} field descriptors at {header.field_desc_ptr} do not fit the file, "
            f"which has {file_bytes} bytes"
        )
    return min(header.num_fields * PADDED_DESCRIPTOR.size, left)


def decode_descriptors(data: memoryview, count: int) -> list[Descriptor]:
    """The descriptors, 204 bytes each, or 208 where only that makes sense. Raises LayoutError."""
    try:
        return _decode_stride(data[: count * DESCRIPTOR.size], DESCRIPTOR)
    except LayoutError:
        if count < 2 or len(data) < count * PADDED_DESCRIPTOR.size:
            raise
        try:
            return _decode_stride(data[: count * PADDED_DESCRIPTOR.size], PADDED_DESCRIPTOR)
        except LayoutError:
            pass
        raise


def _decode_stride(data: memoryview, layout: struct.Struct) -> list[Descriptor]:
    descriptors = []
    for number, (raw, type_id, flags, cell_bytes, _, arguments) in enumerate(layout.iter_unpack(data)):
        text = raw.rstrip(b"\0")
        if not text or b"\0" in text:
            raise LayoutError(f"field {number} has no proper name: {raw[:16].hex(' ')} …")
        name = decode_utf8(text, f"the name of field {number}")
        if type_id == 0 or cell_bytes != cell_of(type_id).size:
            raise LayoutError(
                f"field {name!r} of type {type_id} has cells of {cell_bytes} bytes, "
                f"{cell_of(type_id).size} were expected"
            )
        descriptors.append(Descriptor(name, type_id, arguments.rstrip(b"\0"), flags))
    if len({d.name for d in descriptors}) != len(descriptors):
        raise LayoutError("two fields have the same name")
    return descriptors


def row_offsets(descriptors: Iterable[Descriptor]) -> list[int]:
    """Where each field's cell begins in a row; the last number is the size of a row."""
    offsets = [0]
    for descriptor in descriptors:
        offsets.append(offsets[-1] + descriptor.cell_bytes)
    return offsets


def require_table(header: Header, row_bytes: int, file_bytes: int) -> int:
    """The size of the metadata table. Raises TruncatedError when it leaves the file."""
    size = header.num_samples * row_bytes
    if header.metadata_ptr < HEADER_END or header.metadata_ptr + size > file_bytes:
        raise TruncatedError(
            f"the metadata table of {header.num_samples} samples × {row_bytes} bytes at {header.metadata_ptr} "
            f"does not fit the file, which has {file_bytes} bytes"
        )
    return size


# -- the allocation table --------------------------------------------------------------------------------------


def allocations(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(ptr, size) entries for payloads, sorted; one of 4 GiB or more is split over several, as u4 demands."""
    entries = []
    for start, size in sorted(spans):
        offset, left = start, size
        while left > 0:
            piece = min(left, MAX_ALLOCATION_BYTES)
            entries.append((offset, piece))
            offset, left = offset + piece, left - piece
    return entries


def encode_allocations(entries: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(ALLOCATION.pack(ptr, size, 0) for ptr, size in entries)
