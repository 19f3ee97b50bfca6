"""Validation of MLDF tables: pointers, the allocation table, and the checksums, in one pass over each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt.formats.mldf.cells import has_payload
from asyncckpt.formats.mldf.header import ALLOCATION, Flags, TypeId
from asyncckpt.formats.mldf.schema import Field, Layout
from asyncckpt.formats.mldf.table import structure_crc32_start
from asyncckpt.model.checksums import crc32


@dataclass(frozen=True, slots=True)
class TableReport:
    """What `validate` found. `unchecked` are things that the file has no checksum for."""

    version: str
    flags: int
    samples: int
    fields: tuple[Field, ...]
    page_bytes: int
    pointers: dict[str, int]
    payloads: int
    payload_bytes: int
    problems: tuple[str, ...]
    unchecked: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


class Validation:
    """Collects what is wrong; fed with windows of the file, from a worker thread."""

    def __init__(self, layout: Layout, fields: Sequence[Field]) -> None:
        self._layout = layout
        self._header = layout.header
        self._columns = [
            (field, layout.offsets[number] // 8) for number, field in enumerate(fields) if has_payload(field)
        ]
        self._payloads = self._payload_bytes = 0
        self._data_crc32 = self._structure_crc32 = 0
        self._end = 0
        self._problems: dict[str, int] = {}

    def rows(self, data: bytes) -> None:
        """Every payload lies in the data region."""
        self._structure_crc32 = crc32(data, self._structure_crc32)
        table = np.frombuffer(data, "<u8").reshape(-1, self._layout.row_bytes // 8)
        for field, column in self._columns:
            starts, sizes = table[:, column], table[:, column + 1]
            if field.type_id != TypeId.NDARRAY:
                sizes = sizes & np.uint64(0xFFFFFFFF)
            there = starts != 0
            first, end = np.uint64(self._header.data_ptr), np.uint64(self._header.alloc_table_ptr)
            inside = (starts >= first) & (starts <= end) & (sizes <= end - np.minimum(starts, end))
            outside = int((there & ~inside).sum())
            if outside:
                self._note(f"payloads of field {field.name[:80]!r} lie outside the data", outside)
            self._payloads += int(there.sum())
            self._payload_bytes += sum(sizes[there & inside].tolist())

    def entries(self, data: bytes) -> None:
        """The allocation table is sorted, and its entries lie in the data region, apart from each other."""
        self._structure_crc32 = crc32(data, self._structure_crc32)
        for start, size, _ in ALLOCATION.iter_unpack(data):
            if start < max(self._end, self._header.data_ptr) or start + size > self._header.alloc_table_ptr:
                self._note("entries of the allocation table are not in order, or lie outside the data", 1)
            self._end = max(self._end, start + size)

    def data(self, data: bytes) -> None:
        self._data_crc32 = crc32(data, self._data_crc32)

    def descriptors(self, data: bytes) -> None:
        """The first of the structure; rows and entries follow."""
        self._structure_crc32 = structure_crc32_start(self._header, data)

    def _note(self, problem: str, count: int) -> None:
        self._problems[problem] = self._problems.get(problem, 0) + count

    def report(self, fields: tuple[Field, ...]) -> TableReport:
        header = self._header
        problems = [f"{count} {problem}" for problem, count in self._problems.items()]
        unchecked = []
        if not header.flags & Flags.CRC32:
            unchecked.append("the data has no CRC32 (flag 4)")
        elif self._data_crc32 != header.data_crc32:
            problems.append(
                f"the data is damaged: its CRC32 is {self._data_crc32:08x}, the file says {header.data_crc32:08x}"
            )
        if not header.structure_crc32:
            unchecked.append("the structure has no CRC32")
        elif self._structure_crc32 != header.structure_crc32:
            problems.append(
                f"the structure is damaged: its CRC32 is {self._structure_crc32:08x}, "
                f"the file says {header.structure_crc32:08x}"
            )
        return TableReport(
            version=header.version,
            flags=header.flags,
            samples=header.num_samples,
            fields=fields,
            page_bytes=header.page_size,
            pointers={
                "field_desc": header.field_desc_ptr,
                "metadata": header.metadata_ptr,
                "data": header.data_ptr,
                "alloc_table": header.alloc_table_ptr,
            },
            payloads=self._payloads,
            payload_bytes=self._payload_bytes,
            problems=tuple(problems),
            unchecked=tuple(unchecked),
            warnings=header.warnings,
        )
