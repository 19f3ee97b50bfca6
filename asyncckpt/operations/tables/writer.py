"""Writing an MLDF table, sample by sample, in bounded memory, without knowing how many there will be.

Rows and allocation entries wait in spools until the payloads are over. The first part, which has the header, is
written last; storages that take parts in order only get everything from a spool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import IO, Any

from asyncckpt._aio import WorkerThreads, run_shielded
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import InvalidArgumentError, LayoutError, NotRepresentableError
from asyncckpt.formats.mldf.header import HEADER_END, PAGE_BYTES, allocations, encode_allocations
from asyncckpt.formats.mldf.schema import Field
from asyncckpt.formats.mldf.table import TableDraft, structure_crc32_start
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import crc32, crc32c
from asyncckpt.operations.location import Location, StorageOptions, resolve
from asyncckpt.operations.writing.head_last import PART_BYTES, PIECE_BYTES, HeadLast, new_spool
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectWriter

_MANY_SAMPLES = 256
"""Samples that `write_many` hands to the worker thread at once."""


@checked
@asynccontextmanager
async def open_table_writer(
    location: Location,
    fields: Sequence[Field],
    *,
    overwrite: bool = False,
    page_bytes: AtLeastOne = PAGE_BYTES,
    part_bytes: AtLeastOne = PART_BYTES,
    storage_options: StorageOptions | None = None,
    cancellation: CancellationToken | None = None,
) -> AsyncIterator[TableWriter]:
    """A table that is visible after a clean exit from the block, and leaves nothing after any other.

    Memory is bounded by two parts and the spools, whatever the number of samples. Raises LayoutError and
    LimitExceededError for impossible fields, StorageError subclasses, ObjectExistsError without `overwrite`.
    """
    if isinstance(location, bytes | bytearray | memoryview):
        raise InvalidArgumentError("a table can't be written to bytes: use (storage, key), a URL or a path")
    draft = TableDraft(fields, page_bytes)
    async with cancel_scope(cancellation), resolve(location, storage_options) as resolved:
        in_order = not resolved.storage.capabilities.any_order
        async with (
            WorkerThreads(1, name="table") as threads,
            resolved.storage.open_writer(
                resolved.key, exclusive=not overwrite, part_bytes=part_bytes, cancellation=cancellation
            ) as writer,
        ):
            maker = _Maker(draft, writer.part_bytes, in_order=in_order)
            table = TableWriter(maker, writer, threads)
            try:
                yield table
                await table._finish()
            finally:
                await run_shielded(threads.run(maker.close), timeout=CLEANUP_TIMEOUT)


class TableWriter:
    """Takes samples. Get one from `open_table_writer`."""

    def __init__(self, maker: _Maker, writer: ObjectWriter, threads: WorkerThreads) -> None:
        self._maker = maker
        self._writer = writer
        self._threads = threads
        self._lock = asyncio.Lock()
        self._broken = False

    @property
    def samples(self) -> int:
        """How many there are so far."""
        return self._maker.draft.samples

    async def write(self, sample: Mapping[str, Any]) -> None:
        """Append one sample; a field that is left out has no value.

        Raises NotRepresentableError when a field can't hold its value; the table is then as it was before.
        """
        await self.write_many([sample])

    async def write_many(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Append samples in fewer steps. Those before one that is refused stay."""
        async with self._lock:
            waiting = iter(samples)
            while batch := [sample for sample, _ in zip(waiting, range(_MANY_SAMPLES), strict=False)]:
                await self._run(self._maker.add(batch))

    async def _finish(self) -> None:
        async with self._lock:
            await self._run(self._maker.end())

    async def _run(self, parts: Iterator[tuple[int, Buffer]]) -> None:
        """Write the parts that become full. Whatever interrupts a part leaves no table that could go on."""
        if self._broken:
            raise LayoutError("an earlier write of this table was interrupted: write it again")
        try:
            while (part := await self._threads.run(_next_part, parts)) is not None:
                index, data, checksum = part
                await self._writer.write_part(index, [data], crc32c=checksum)
        except NotRepresentableError:
            # Refused before any of its bytes went anywhere.
            raise
        except BaseException:
            self._broken = True
            raise


def _next_part(parts: Iterator[tuple[int, Buffer]]) -> tuple[int, Buffer, int] | None:
    part = next(parts, None)
    return None if part is None else (*part, crc32c(part[1]))


class _Maker:
    """Makes the bytes of the file, part by part; used by one worker thread at a time."""

    def __init__(self, draft: TableDraft, part_bytes: int, *, in_order: bool) -> None:
        if part_bytes < HEADER_END:
            raise LayoutError(f"parts of {part_bytes} bytes are smaller than the header, {HEADER_END} bytes")
        self.draft = draft
        self._cut = HeadLast(part_bytes, HEADER_END, in_order=in_order)
        self._rows = new_spool()
        self._entries = new_spool()
        self._data_crc32 = 0
        self._begun = False

    def close(self) -> None:
        for spool in (self._rows, self._entries, self._cut):
            spool.close()

    def add(self, samples: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Buffer]]:
        """Append samples; yields the parts that became full."""
        yield from self._begin()
        for sample in samples:
            added = self.draft.add(sample)
            self._rows.write(added.row)
            self._entries.write(encode_allocations(allocations(added.entries)))
            for buffer in added.buffers:
                yield from self._add_data(buffer)

    def end(self) -> Iterator[tuple[int, Buffer]]:
        """The metadata table, the allocation table, and at last the part with the header."""
        yield from self._begin()
        table_bytes = self._rows.tell()
        padding, header = self.draft.end(table_bytes)
        yield from self._add_data(bytes(padding))
        structure = structure_crc32_start(header, self.draft.descriptors)
        for piece in _pieces(self._rows):
            structure = crc32(piece, structure)
            yield from self._add_data(piece)
        for piece in _pieces(self._entries):
            structure = crc32(piece, structure)
            yield from self._cut.add(piece)
        sealed = replace(header, data_crc32=self._data_crc32, structure_crc32=structure).encode()
        yield from self._cut.end(sealed)

    def _begin(self) -> Iterator[tuple[int, Buffer]]:
        if self._begun:
            return
        self._begun = True
        self._entries.write(encode_allocations(self.draft.schema_entries()))
        front, schema = self.draft.front()
        yield from self._cut.add(front)
        yield from self._add_data(schema)

    def _add_data(self, data: Buffer) -> Iterator[tuple[int, Buffer]]:
        """Append bytes of the data region."""
        self._data_crc32 = crc32(data, self._data_crc32)
        yield from self._cut.add(data)


def _pieces(spool: IO[bytes]) -> Iterator[bytes]:
    spool.seek(0)
    while piece := spool.read(PIECE_BYTES):
        yield piece
