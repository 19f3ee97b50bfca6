"""MLDF as a table of samples × fields: partial reads of one field of one sample, and a validation summary.

async with open_table_writer(location, [Field("label", TypeId.INT), array_field("x", "float32", (-1,))]) as table:
    await table.write({"label": 3, "x": array})
async with open_table(location) as table:
    array = await table.read(0, "x")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from asyncckpt._aio import WorkerThreads
from asyncckpt.arguments import checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import FormatError, TensorNotFoundError
from asyncckpt.formats.mldf.cells import (
    Audio,
    Cell,
    Image,
    array_field,
    decode_cell,
    decode_value,
    has_payload,
)
from asyncckpt.formats.mldf.header import DESCRIPTOR, Flags, Header, TypeId
from asyncckpt.formats.mldf.schema import Field, Layout, parse_layout, parse_schema
from asyncckpt.formats.mldf.table import visible
from asyncckpt.formats.mldf.validate import TableReport, Validation
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.location import Location, StorageOptions, resolve
from asyncckpt.operations.reading.open_file import FIRST_BYTES, OpenFile, parse_object
from asyncckpt.operations.tables.writer import TableWriter, open_table_writer
from asyncckpt.storage.base import ObjectReader

__all__ = [
    "Audio",
    "Field",
    "Image",
    "TableReader",
    "TableReport",
    "TableWriter",
    "TypeId",
    "array_field",
    "open_table",
    "open_table_writer",
]

_ROWS_BYTES = 64 * 1024
"""Rows are read in runs of about this size; the last ones are kept."""
_KEPT_RUNS = 8
_WINDOW_BYTES = 1024 * 1024
_DECODE_ON_THE_LOOP = 16 * 1024


@checked
@asynccontextmanager
async def open_table(
    location: Location,
    *,
    storage_options: StorageOptions | None = None,
    cancellation: CancellationToken | None = None,
) -> AsyncIterator[TableReader]:
    """A table for reading; one or two small reads. Raises FormatError subclasses, ObjectNotFoundError."""
    async with (
        cancel_scope(cancellation),
        resolve(location, storage_options) as resolved,
        WorkerThreads(1, name="table") as threads,
        resolved.storage.open_reader(resolved.key, first_bytes=FIRST_BYTES) as reader,
    ):
        file = OpenFile(resolved, reader)
        try:
            layout = await parse_object(parse_layout(file.source), file, threads)
            fields, _ = await parse_object(parse_schema(layout), file, threads)
        except FormatError as error:
            error.locate(resolved.display)
            raise
        yield TableReader(reader, threads, layout, fields)


class TableReader:
    """An open table. Get one from `open_table`."""

    def __init__(
        self, reader: ObjectReader, threads: WorkerThreads, layout: Layout, fields: Sequence[Field]
    ) -> None:
        self._reader = reader
        self._threads = threads
        self._layout = layout
        self._all = fields
        self._numbers = visible(fields, layout.descriptors)
        self._runs: dict[int, bytes] = {}

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, without asyncckpt's own."""
        return tuple(self._all[number] for number in self._numbers.values())

    @property
    def header(self) -> Header:
        return self._layout.header

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._layout.header.warnings

    def __len__(self) -> int:
        return self._layout.header.num_samples

    async def read(self, sample: int, field: str) -> Any:
        """One field of one sample, and nothing else; None where it has no value.

        Raises IndexError, TensorNotFoundError, FormatError subclasses.
        """
        number = self._numbers.get(field)
        if number is None:
            known = ", ".join(list(self._numbers)[:10])
            raise TensorNotFoundError(f"the table has no field {field[:80]!r}; it has {known}")
        return await self._value(number, await self._row(sample))

    async def read_sample(self, sample: int) -> dict[str, Any]:
        """All fields of one sample. Raises as `read` does."""
        row = await self._row(sample)
        return {name: await self._value(number, row) for name, number in self._numbers.items()}

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Every sample, in order."""
        for sample in range(len(self)):
            yield await self.read_sample(sample)

    async def validate(self) -> TableReport:
        """Look at every byte: pointers, the allocation table, and all checksums there are."""
        header, size = self._layout.header, self._reader.info.size
        check = Validation(self._layout, self._all)
        check.descriptors(
            await self._reader.read_range(
                header.field_desc_ptr, header.field_desc_ptr + header.num_fields * DESCRIPTOR.size
            )
        )
        width = self._layout.row_bytes
        await self._feed(check.rows, header.metadata_ptr, header.num_samples * width, unit=width)
        await self._feed(check.entries, header.alloc_table_ptr, size - header.alloc_table_ptr, unit=16)
        if header.flags & Flags.CRC32:
            await self._feed(check.data, header.data_ptr, header.alloc_table_ptr - header.data_ptr, unit=1)
        return check.report(self.fields)

    async def _feed(self, check: Callable[[bytes], None], start: int, size: int, *, unit: int) -> None:
        """Hand a run of the file over in windows of whole units."""
        step = max(unit, _WINDOW_BYTES // unit * unit)
        for offset in range(start, start + size, step):
            data = await self._reader.read_range(offset, min(offset + step, start + size))
            await self._threads.run(check, data)

    async def _row(self, sample: int) -> bytes:
        count, width = len(self), self._layout.row_bytes
        if not -count <= sample < count:
            raise IndexError(f"sample {sample} of a table of {count}")
        per_run = max(1, _ROWS_BYTES // width)
        run, inside = divmod(sample % count, per_run)
        data = self._runs.get(run)
        if data is None:
            start = self._layout.header.metadata_ptr + run * per_run * width
            rows = min(per_run, count - run * per_run)
            data = await self._reader.read_range(start, start + rows * width)
            while len(self._runs) >= _KEPT_RUNS:
                self._runs.pop(next(iter(self._runs)), None)
            self._runs[run] = data
        return data[inside * width : (inside + 1) * width]

    async def _value(self, number: int, row: bytes) -> Any:
        field, offsets = self._all[number], self._layout.offsets
        cell = decode_cell(field, row[offsets[number] : offsets[number + 1]])
        if not has_payload(field):
            return decode_value(field, cell, bytearray())
        if cell.start == 0:
            return None
        self._layout.require_payload(cell.start, cell.size, f"field {field.name[:80]!r}")
        return await self._decode(field, cell)

    async def _decode(self, field: Field, cell: Cell) -> Any:
        wanted = ByteRange(cell.start, cell.start + cell.size)
        if wanted.size <= _DECODE_ON_THE_LOOP:
            data = bytearray(wanted.size)
            await self._reader.read_ranges([wanted], [memoryview(data)])
            return decode_value(field, cell, data)
        data = await self._threads.run(bytearray, wanted.size)
        await self._reader.read_ranges([wanted], [memoryview(data)])
        return await self._threads.run(decode_value, field, cell, data)
