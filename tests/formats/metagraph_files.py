"""METAGRAPH bundles for tests: made from arrays, read back whole, and resealed after an edit.

A bundle whose bytes were changed is refused by its checksums, long before a parser sees the change. `resealed` makes
all of them right again, as an attacker would.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asyncckpt.formats.base import content_of
from asyncckpt.formats.index import Index, SourceInfo, parse_bytes
from asyncckpt.formats.metagraph import MetagraphFormat
from asyncckpt.formats.metagraph_hash import hash_of, root_of, short_hash
from asyncckpt.formats.metagraph_header import HEADER_BYTES, Header, Section, decode_header, decode_sections
from asyncckpt.formats.plan import StreamPlan
from asyncckpt.formats.render import render
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from tests.formats.state_files import arrays_of

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
    content, views = content_of([ShardData.from_arrays(arrays)], metadata or CheckpointMetadata())
    (plan,) = fmt.plan(content, name=name)
    data = render(plan, lambda tensor, start, end: views[tensor][start:end])
    assert len(data) <= (plan.size_bound if isinstance(plan, StreamPlan) else plan.size)
    return data


def parsed(fmt: MetagraphFormat, data: bytes, siblings: Mapping[str, bytes] | None = None) -> Index:
    views = {name: memoryview(content) for name, content in (siblings or {}).items()}
    return parse_bytes(fmt.parse(SourceInfo(NAME, len(data))), memoryview(data), views)


def read_back(
    fmt: MetagraphFormat, data: bytes, siblings: Mapping[str, bytes] | None = None
) -> dict[str, np.ndarray]:
    return arrays_of(parsed(fmt, data, siblings), data, siblings)


def read_all(
    fmt: MetagraphFormat, data: bytes, siblings: Mapping[str, bytes] | None = None
) -> tuple[Any, ...]:
    """Everything a bundle says, comparable bit by bit."""
    index = parsed(fmt, data, siblings)
    tensors = arrays_of(index, data, siblings)
    listed = {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in tensors.items()}
    return index.tree, index.metadata, listed


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
        size = struct.calcsize(layout)
        number = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        old = self.sections[section]
        self.sections[section] = old[:at] + number + old[at + size :]

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
