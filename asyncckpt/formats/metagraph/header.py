"""The header of a METAGRAPH bundle and the section index behind it.

====== ===== ================= =======================================================================
offset bytes field             content
====== ===== ================= =======================================================================
0      8     magic             "METAGRAP"; "HYPERDAG", the older name, is read too
8      16    format_uuid       55 0e 84 00 e2 9b 41 d4 a7 16 44 66 55 44 00 00
24     4     format_version    1
28     4     api_version       major << 16 | minor; 0.1
32     4     flags             1 COMPRESSED, 2 ENCRYPTED, 4 SIGNED, 8 DELTA
36     4     reserved_flags    0
40     8     total_size        of the file
48     8     creation_time     seconds since 1970, UTC; 0 where it is not known
56     8     bundle_id
64     8     header_checksum   BLAKE3 of these 104 bytes, this field counted as zeros
72     8     bundle_checksum   of the root
80     4     section_count
84     4     delta_base_id     low 32 bits of the base's bundle_id; 0 in a full bundle
88     16    reserved          0
====== ===== ================= =======================================================================

A section has 40 bytes: u32 type, u32 flags, u64 offset, u64 size, u64 checksum, u32 item_count, u32 reserved.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from asyncckpt.errors import ChecksumMismatchError, LayoutError, LimitExceededError, UnsupportedVersionError
from asyncckpt.formats.metagraph.hashing import hash_of, short_hash

MAGIC = b"METAGRAP"
OLD_MAGIC = b"HYPERDAG"
FORMAT_UUID = bytes.fromhex("550e8400e29b41d4a716446655440000")
FORMAT_VERSION = 1
API_VERSION = (0, 1)
SECTION_ALIGNMENT = 64
STORE_ALIGNMENT = 4096
MAX_SECTIONS = 1024

_HEADER = struct.Struct("<8s16s4I5Q2I2Q")
_SECTION = struct.Struct("<2I3Q2I")
HEADER_BYTES = _HEADER.size
SECTION_BYTES = _SECTION.size
CHECKSUM_SPAN = (64, 72)


class Flag(IntFlag):
    """What a bundle is; COMPRESSED and ENCRYPTED are flags of single sections too."""

    COMPRESSED = 1
    ENCRYPTED = 2
    SIGNED = 4
    DELTA = 8


class SectionType(IntEnum):
    NODES = 1
    EDGES = 2
    STORE = 3
    INDEX = 4
    METADATA = 5
    SIGNATURE = 6


KNOWN_TYPES = frozenset(map(int, SectionType))
REQUIRED_SECTIONS = (SectionType.NODES, SectionType.STORE, SectionType.INDEX, SectionType.METADATA)
_ALL_FLAGS = 15
_SECTION_FLAGS = 3


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of the header; its checksum is made by `encode` and checked by `decode`."""

    flags: int
    total_size: int
    creation_time: int
    bundle_id: int
    bundle_checksum: int
    section_count: int
    delta_base_id: int = 0
    magic: bytes = MAGIC
    format_version: int = FORMAT_VERSION
    api_version: tuple[int, int] = API_VERSION
    reserved: tuple[int, int] = (0, 0)

    def encode(self) -> bytes:
        blank = self._pack(0)
        return self._pack(short_hash(hash_of(blank)))

    def _pack(self, checksum: int) -> bytes:
        return _HEADER.pack(
            self.magic,
            FORMAT_UUID,
            self.format_version,
            self.api_version[0] << 16 | self.api_version[1],
            self.flags,
            0,
            self.total_size,
            self.creation_time,
            self.bundle_id,
            checksum,
            self.bundle_checksum,
            self.section_count,
            self.delta_base_id,
            *self.reserved,
        )

    @property
    def sections_end(self) -> int:
        return HEADER_BYTES + self.section_count * SECTION_BYTES

    def warnings(self) -> list[str]:
        """What a reader should be told about a bundle that is readable all the same."""
        found = []
        if self.magic == OLD_MAGIC:
            found.append("written under the older name HYPERDAG")
        if self.api_version != API_VERSION:
            age = "newer" if self.api_version > API_VERSION else "older"
            found.append(
                f"written for the {age} API {self.api_version[0]}.{self.api_version[1]}, read as "
                f"{API_VERSION[0]}.{API_VERSION[1]}"
            )
        if self.reserved != (0, 0):
            found.append("the header uses reserved fields, which were not read")
        return found


def decode_header(data: memoryview) -> Header:
    """The first 104 bytes, checked.

    Raises LayoutError, UnsupportedVersionError, ChecksumMismatchError, LimitExceededError.
    """
    (magic, uuid, version, api, flags, more_flags, size, created, bundle_id, checksum, root, count, base, *rest) = (
        _HEADER.unpack(data)
    )  # fmt: skip
    if magic not in (MAGIC, OLD_MAGIC):
        raise LayoutError(f"not a METAGRAPH bundle: it begins with {magic.hex(' ')}")
    if uuid != FORMAT_UUID:
        raise UnsupportedVersionError(
            f"the bundle has the format uuid {uuid.hex()}, this release reads {FORMAT_UUID.hex()} only"
        )
    _require_known(version, api, flags, more_flags)
    expected = short_hash(hash_of(_blanked(data)))
    if checksum != expected:
        raise ChecksumMismatchError(
            f"the header is damaged: its BLAKE3 is {expected:016x}, the file says {checksum:016x}"
        )
    if count > MAX_SECTIONS:
        raise LimitExceededError(f"the bundle has {count} sections, at most {MAX_SECTIONS} are read")
    return Header(
        flags, size, created, bundle_id, root, count, base, magic, version, (api >> 16, api & 0xFFFF), tuple(rest)
    )  # fmt: skip


def _blanked(data: memoryview) -> bytes:
    start, end = CHECKSUM_SPAN
    return bytes(data[:start]) + bytes(end - start) + bytes(data[end:])


def _require_known(version: int, api: int, flags: int, reserved_flags: int) -> None:
    if version != FORMAT_VERSION:
        advice = (
            "upgrade asyncckpt to read it" if version > FORMAT_VERSION else "no such version was released"
        )
        raise UnsupportedVersionError(f"METAGRAPH format version {version} is not supported: {advice}")
    if api >> 16 > API_VERSION[0]:
        raise UnsupportedVersionError(
            f"the bundle needs the METAGRAPH API {api >> 16}.{api & 0xFFFF}: upgrade asyncckpt to read it"
        )
    if flags & ~_ALL_FLAGS or reserved_flags:
        raise UnsupportedVersionError(
            f"the bundle has the unknown flags {flags & ~_ALL_FLAGS:#x} and {reserved_flags:#x}: "
            "upgrade asyncckpt to read it"
        )


@dataclass(frozen=True, slots=True)
class Section:
    """One row of the section index. `type` is a number, because unknown ones are skipped, not refused."""

    type: int
    flags: int
    offset: int
    size: int
    checksum: int
    item_count: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def name(self) -> str:
        return section_name(self.type)

    def encode(self) -> bytes:
        return _SECTION.pack(self.type, self.flags, self.offset, self.size, self.checksum, self.item_count, 0)

    def with_hash(self, digest: bytes) -> Section:
        return replace(self, checksum=short_hash(digest))


def section_name(number: int) -> str:
    return SectionType(number).name if number in KNOWN_TYPES else f"type {number}"


def decode_sections(data: memoryview, header: Header) -> tuple[Section, ...]:
    """The section index, checked for its own sense. Raises LayoutError, UnsupportedVersionError."""
    sections = tuple(Section(*row[:6]) for row in _SECTION.iter_unpack(data))
    _check_places(sections, header)
    types = [section.type for section in sections]
    for section in sections:
        if section.type in KNOWN_TYPES and types.count(section.type) > 1:
            raise LayoutError(f"the bundle has two sections {section.name}")
    missing = [wanted.name for wanted in REQUIRED_SECTIONS if wanted not in types]
    if missing:
        raise LayoutError(f"the bundle lacks the section {missing[0]}")
    signed = SectionType.SIGNATURE in types
    if signed != bool(header.flags & Flag.SIGNED) or (signed and types[-1] != SectionType.SIGNATURE):
        raise LayoutError("the flag SIGNED and a last section SIGNATURE must come together")
    for section in sections:
        _check_flags(section, header)
    return sections


def _check_places(sections: Sequence[Section], header: Header) -> None:
    position = header.sections_end
    for section in sorted(sections, key=lambda section: (section.offset, section.size)):
        alignment = STORE_ALIGNMENT if section.type == SectionType.STORE else SECTION_ALIGNMENT
        if section.offset % alignment:
            raise LayoutError(
                f"section {section.name} begins at {section.offset}, no multiple of {alignment}"
            )
        if section.offset < position:
            raise LayoutError(f"section {section.name} at {section.offset} overlaps what ends at {position}")
        position = section.end
    if position != header.total_size:
        raise LayoutError(f"the last section ends at {position}, the bundle at {header.total_size}")


def _check_flags(section: Section, header: Header) -> None:
    if section.type not in KNOWN_TYPES:
        return
    if section.flags & ~_SECTION_FLAGS:
        raise UnsupportedVersionError(f"section {section.name} has the unknown flags {section.flags:#x}")
    sealed = section.type != SectionType.SIGNATURE and header.flags & Flag.ENCRYPTED
    if bool(section.flags & Flag.ENCRYPTED) != bool(sealed):
        raise LayoutError(f"the bundle and its section {section.name} disagree on being encrypted")
    if section.flags & Flag.COMPRESSED and not header.flags & Flag.COMPRESSED:
        raise LayoutError(f"section {section.name} is compressed, the bundle is not")
