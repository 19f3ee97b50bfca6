"""`add_metadata`: metadata for an SDNB file that exists, while its arrays stay where they are.

The file is replaced in one step: a reader sees the old one or the new one. What was there is copied by the storage
itself (on the server's side, or by the kernel); only header, graph and manifest are sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from asyncckpt._aio import WorkerThreads, fan_out
from asyncckpt.arguments import checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import (
    CheckpointNotFoundError,
    ObjectChangedError,
    ObjectNotFoundError,
)
from asyncckpt.formats.sdnb.amend import Amendment, amend
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.model.checksums import Buffer
from asyncckpt.operations.location import Location, ObjectLocation, StorageOptions, resolve
from asyncckpt.operations.reading.files import find_leader
from asyncckpt.operations.reading.open_file import FIRST_BYTES, OpenFile, parse_object
from asyncckpt.operations.writing.file import SMALL_FILE_BYTES
from asyncckpt.storage.base import ObjectInfo, ObjectReader, ObjectWriter


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
            file = OpenFile(found, reader)
            async with WorkerThreads(1, name="amend") as threads:
                change = await parse_object(amend(file.source, metadata), file, threads)
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
