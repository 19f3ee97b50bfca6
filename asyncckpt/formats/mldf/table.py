"""The layout of MLDF tables that grow, sample by sample. Pure: the bytes are moved by operations/tables.

A table whose number of samples is not known before its end has its metadata table behind the payloads:
descriptors, data region (schema, payloads, metadata table), allocation table. The header's two CRC32 are those of
the data region, and of everything that is structure: bytes 0 to 64, eight zeros, descriptors, metadata table,
allocation table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncckpt.errors import LayoutError, NotRepresentableError
from asyncckpt.formats.kit.plan import aligned
from asyncckpt.formats.mldf.cells import ARRAY_ALIGNMENT, encode_value
from asyncckpt.formats.mldf.header import (
    BYTES_CELL,
    DESCRIPTOR,
    HEADER_END,
    PAGE_BYTES,
    Descriptor,
    Header,
    TypeId,
    cell_of,
)
from asyncckpt.formats.mldf.schema import OWN_FIELDS, SCHEMA_FIELD, Field, encode_fields
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import crc32


class TableDraft:
    """The layout of a table that grows: where the next payload goes, and what row and entries it leaves."""

    def __init__(self, fields: Sequence[Field], page_bytes: int = PAGE_BYTES) -> None:
        """Raises LayoutError for duplicate names, LimitExceededError for too many fields."""
        if not fields or len({field.name for field in fields}) != len(fields):
            raise LayoutError("a table needs fields, each with a name of its own")
        if page_bytes < 1 or page_bytes >= 1 << 32:
            raise LayoutError(f"a page of {page_bytes} bytes is impossible")
        self.fields = tuple(fields)
        self.samples = 0
        descriptors, self.schema = encode_fields(fields)
        own = [Descriptor(SCHEMA_FIELD, TypeId.JSON)] if self.schema else []
        self.descriptors = b"".join(descriptor.encode() for descriptor in (*own, *descriptors))
        self.data_ptr = aligned(HEADER_END + len(self.descriptors), page_bytes)
        self._page_bytes = page_bytes
        self._position = self.data_ptr + len(self.schema)
        self._names = {field.name for field in fields}

    def front(self) -> tuple[bytes, bytes]:
        """Everything before the data region, with zeros for the header, and the schema that begins it."""
        head = bytes(HEADER_END) + self.descriptors
        return head.ljust(self.data_ptr, b"\0"), self.schema

    def schema_entries(self) -> list[tuple[int, int]]:
        return [(self.data_ptr, len(self.schema))] if self.schema else []

    def add(self, sample: Mapping[str, Any]) -> AddedSample:
        """Place one sample. Nothing changes when it raises: NotRepresentableError for what does not fit."""
        unknown = sample.keys() - self._names
        if unknown:
            raise NotRepresentableError(f"the table has no field {min(map(str, unknown))[:80]!r}")
        cells = [encode_value(field, sample.get(field.name)) for field in self.fields]
        row, buffers, entries = self._schema_cell(), [], []
        position = self._position
        for field, cell in zip(self.fields, cells, strict=True):
            if cell is None or cell.payload is None:
                row += bytes(cell_of(field.type_id).size) if cell is None else cell.pack(0)
                continue
            start = aligned(position, cell.alignment)
            buffers += [memoryview(bytes(start - position)), cell.payload]
            row += cell.pack(start)
            entries.append((start, cell.payload.nbytes))
            position = start + cell.payload.nbytes
        self._position = position
        self.samples += 1
        return AddedSample(bytes(row), buffers, entries)

    def _schema_cell(self) -> bytearray:
        if not self.schema:
            return bytearray()
        first = self.samples == 0
        return bytearray(BYTES_CELL.pack(self.data_ptr, len(self.schema)) if first else BYTES_CELL.size)

    def end(self, table_bytes: int) -> tuple[int, Header]:
        """The padding before the metadata table, and the header without its checksums.

        Raises LayoutError for an empty table whose field names need a row to be stored in.
        """
        if self.schema and not self.samples:
            raise LayoutError("a table without samples can't keep names or shapes that need a schema")
        metadata_ptr = aligned(self._position, ARRAY_ALIGNMENT)
        header = Header(
            num_samples=self.samples,
            num_fields=len(self.descriptors) // DESCRIPTOR.size,
            page_size=self._page_bytes,
            field_desc_ptr=HEADER_END,
            metadata_ptr=metadata_ptr,
            data_ptr=self.data_ptr,
            alloc_table_ptr=metadata_ptr + table_bytes,
        )
        return metadata_ptr - self._position, header


@dataclass(frozen=True, slots=True)
class AddedSample:
    """What one sample adds: its row, the bytes of its payloads with padding, and their places."""

    row: bytes
    buffers: list[memoryview]
    entries: list[tuple[int, int]]


def structure_crc32_start(header: Header, descriptors: Buffer) -> int:
    """The structure CRC32 up to the metadata table: the header's checksums count as zeros."""
    return crc32(descriptors, crc32(header.encode()[: HEADER_END - 8] + bytes(8)))


def visible(fields: Sequence[Field], descriptors: Sequence[Descriptor]) -> dict[str, int]:
    """The number of each field that a user sees, by name."""
    return {
        field.name: number
        for number, (field, descriptor) in enumerate(zip(fields, descriptors, strict=True))
        if descriptor.name not in OWN_FIELDS
    }
