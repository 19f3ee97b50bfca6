"""`add_metadata`: metadata for an SDNB file that exists, while its arrays stay where they are.

The file is replaced in one step: a reader sees the old one or the new one. What was there is copied by the storage
itself (on the server's side, or by the kernel); only header, graph and manifest are sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from asyncckpt._aio import fan_out, run_in_thread
from asyncckpt.arguments import checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import (
    CheckpointNotFoundError,
    ObjectChangedError,
    ObjectNotFoundError,
)
from asyncckpt.formats.kit.index import FileInfo, Need
from asyncckpt.formats.sdnb.amend import Amendment, amend
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.model.checksums import Buffer
from asyncckpt.operations.location import Location, ObjectLocation, StorageOptions, resolve
from asyncckpt.operations.reading.leader import find_leader
from asyncckpt.storage.base import ObjectInfo, ObjectReader, ObjectWriter

FIRST_BYTES = 128 * 1024
SMALL_FILE_BYTES = 8 * 1024 * 1024
"""A file up to this size is written as one object, in one request."""
T = TypeVar("T")


@checked
async def add_metadata(
    location: Location,
    metadata: Mapping[str, str],
    *,
    cancellation: CancellationToken | None = None,
    storage_options: StorageOptions | None = None,
) -> ObjectInfo:
    """Add texts to the metadata of an SDNB file, or of the set that it leads; equal keys are replaced.

    Raises CheckpointNotFoundError, FormatError subclasses (a damaged file is left alone), ObjectChangedError when
    somebody else replaced the file meanwhile, StorageError subclasses, OperationCancelledError.
    """
    async with cancel_scope(cancellation), resolve(location, storage_options) as resolved:
        async with _open(resolved) as (found, reader):
            source = FileInfo(found.name, reader.info.size)
            change = await _drive(amend(source, metadata), reader)
            return await _replace(found, reader, change)


@asynccontextmanager
async def _open(location: ObjectLocation) -> AsyncIterator[tuple[ObjectLocation, ObjectReader]]:
    """The file, or shard 0 of the set that has its name as a base."""
    if not await location.storage.exists(location.key):
        leader = await find_leader(location, SdnbFormat())
        if leader is None:
            raise CheckpointNotFoundError(f"there is no checkpoint at {location.display}")
        location = leader
    async with location.storage.open_reader(location.key, first_bytes=FIRST_BYTES) as reader:
        yield location, reader


async def _drive(steps: Generator[Need, memoryview, T], reader: ObjectReader) -> T:
    """Answer what a parser asks for; the parser itself runs in a worker thread."""

    def advance(data: memoryview | None) -> tuple[Need | None, T | None]:
        try:
            return (next(steps) if data is None else steps.send(data)), None
        except StopIteration as stop:
            return None, stop.value

    need, result = await run_in_thread(advance, None)
    while need is not None:
        need, result = await run_in_thread(advance, await _answer(need, reader))
    assert result is not None
    return result


async def _answer(need: Need, reader: ObjectReader) -> memoryview:
    start = min(need.start, reader.info.size)
    end = min(reader.info.size, start + need.size)
    if end <= len(reader.first):
        return memoryview(reader.first)[start:end]
    return memoryview(await reader.read_range(start, end))


async def _replace(location: ObjectLocation, reader: ObjectReader, change: Amendment) -> ObjectInfo:
    if change.size <= SMALL_FILE_BYTES:
        kept = await reader.read_range(change.kept_start, change.kept_end)
        await _require_unchanged(location, reader)
        return await location.storage.write(location.key, [change.head, kept, change.tail])
    async with location.storage.open_writer(location.key, size=change.size) as writer:
        copier = _Copier(location, reader, change, writer)
        limit = writer.concurrency if location.storage.capabilities.any_order else 1
        await fan_out(copier.write, range(-(-change.size // writer.part_bytes)), limit=limit)
        await _require_unchanged(location, reader)
    assert writer.committed is not None
    return writer.committed


async def _require_unchanged(location: ObjectLocation, reader: ObjectReader) -> None:
    """Parts were copied from whatever the key meant at that moment: it must still be what was read."""
    try:
        info = await location.storage.stat(location.key)
    except ObjectNotFoundError as error:
        raise ObjectChangedError(f"{location.display} was deleted while metadata was being added") from error
    if info.version != reader.info.version:
        raise ObjectChangedError(f"{location.display} was replaced while metadata was being added")


class _Copier:
    """Writes the parts of the new file: those that hold nothing but arrays are copied."""

    def __init__(
        self, location: ObjectLocation, reader: ObjectReader, change: Amendment, writer: ObjectWriter
    ) -> None:
        self._location = location
        self._reader = reader
        self._change = change
        self._writer = writer

    async def write(self, index: int) -> None:
        start = index * self._writer.part_bytes
        end = min(self._change.size, start + self._writer.part_bytes)
        only_kept = self._change.kept_start <= start and end <= self._change.kept_end
        if only_kept and self._location.storage.capabilities.server_copy:
            await self._writer.copy_part(index, self._location.key, start, end)
            return
        await self._writer.write_part(index, await self._bytes(start, end))

    async def _bytes(self, start: int, end: int) -> list[Buffer]:
        change = self._change
        views: list[Buffer] = [memoryview(change.head)[start:end]]
        first, last = max(start, change.kept_start), min(end, change.kept_end)
        if first < last:
            views.append(await self._reader.read_range(first, last))
        if end > change.kept_end:
            views.append(memoryview(change.tail)[max(0, start - change.kept_end) : end - change.kept_end])
        return views
