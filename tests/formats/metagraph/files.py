"""METAGRAPH bundles for tests: made from arrays, read back whole, and resealed after an edit.

A bundle whose bytes were changed is refused by its checksums, long before a parser sees the change. `resealed` makes
all of them right again, as an attacker would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asyncckpt.formats.kit.index import Index
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.metagraph.hashing import hash_of, root_of, short_hash
from asyncckpt.formats.metagraph.header import HEADER_BYTES, Header, Section, decode_header, decode_sections
from asyncckpt.model.metadata import CheckpointMetadata
from tests.formats.attacks import with_number
from tests.formats.state_files import arrays_of, encode_arrays, parse

NAME = "model.mgb"
METADATA = 5
SIGNATURE = 6


def made(
    fmt: MetagraphFormat,
    arrays: Mapping[str, np.ndarray],
    metadata: CheckpointMetadata | None = None,
    *,
    name: str = NAME,
) -> bytes:
    """The bundle of one shard."""
    return encode_arrays(fmt, arrays, metadata, name=name)


def parsed(fmt: MetagraphFormat, data: bytes, siblings: Mapping[str, bytes] | None = None) -> Index:
    return parse(fmt, data, siblings, name=NAME)


def read_back(
    fmt: MetagraphFormat, data: bytes, siblings: Mapping[str, bytes] | None = None
) -> dict[str, np.ndarray]:
    return arrays_of(parsed(fmt, data, siblings), data, siblings)


@dataclass
class Opened:
    """A bundle taken apart. Edit the fields; `sealed` puts it together again, with every checksum right."""

    header: Header
    rows: list[Section]
    sections: dict[int, bytes]
    data: bytes

    @classmethod
    def of(cls, data: bytes) -> Opened:
        view = memoryview(data)
        header = decode_header(view[:HEADER_BYTES])
        rows = list(decode_sections(view[HEADER_BYTES : header.sections_end], header))
        return cls(header, rows, {r.type: data[r.offset : r.end] for r in rows}, data)

    def put(self, section: int, at: int, layout: str, value: int) -> None:
        """Overwrite one number of a section, cut to its width."""
        self.sections[section] = with_number(self.sections[section], at, layout, value)

    def change_row(self, section: int, **changes: int) -> None:
        self.rows = [replace(row, **changes) if row.type == section else row for row in self.rows]

    def sealed(self) -> bytes:
        before = {row.type: self.data[row.offset : row.end] for row in Opened.of(self.data).rows}
        for number, content in self.sections.items():
            if number in before and number not in (METADATA, SIGNATURE):
                old, new = hash_of(before[number]).hex().encode(), hash_of(content).hex().encode()
                self.sections[METADATA] = self.sections[METADATA].replace(old, new)
        hashes = {number: hash_of(content) for number, content in self.sections.items()}
        rows = [
            row if row.type == SIGNATURE else replace(row, checksum=short_hash(hashes[row.type]))
            for row in self.rows
        ]
        index = b"".join(row.encode() for row in rows)
        root = root_of(index, [hashes[row.type] for row in rows if row.type != SIGNATURE])
        header = replace(self.header, bundle_checksum=short_hash(root)).encode()
        data = bytearray(self.data)
        for row in Opened.of(self.data).rows:
            content = self.sections.get(row.type, b"")
            data[row.offset : row.offset + len(content)] = content
        data[:HEADER_BYTES] = header
        data[HEADER_BYTES : HEADER_BYTES + len(index)] = index
        return bytes(data)


def resealed(data: bytes, section: int, at: int, layout: str, value: int) -> bytes:
    """The bundle with one number of a section replaced, and all checksums right."""
    opened = Opened.of(data)
    opened.put(section, at, layout, value)
    return opened.sealed()


def with_header(data: bytes, **changes: Any) -> bytes:
    """The bundle with other fields in its header, and the header's checksum right."""
    opened = Opened.of(data)
    opened.header = replace(opened.header, **changes)
    return opened.sealed()


def with_same_crc(data: bytes) -> bytes:
    """Other bytes with the same CRC32C: what an attacker writes over a tensor."""
    generator = 0x11EDC6F41  # CRC32C's own polynomial: adding it changes no remainder
    mask = int(f"{generator:033b}"[::-1], 2)
    number = int.from_bytes(data, "little") ^ mask << 8
    return number.to_bytes(len(data), "little")
