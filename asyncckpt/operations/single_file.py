"""`SingleFileSaver` and `SingleFileLoader`: shards in, one file out, as the first format's documents have it."""

from __future__ import annotations

from collections.abc import Sequence

from asyncckpt._aio import ByteBudget, WorkerThreads
from asyncckpt.arguments import checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.formats.base import ICheckpointFormat, content_of
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.operations.checkpoint import open_checkpoint
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import DEFAULT_MEMORY_BYTES, WORKERS, Meter, Operation
from asyncckpt.operations.writing.commit import writing
from asyncckpt.operations.writing.session import Destination
from asyncckpt.operations.writing.source import MemorySource
from asyncckpt.operations.writing.staging.stage import Staged
from asyncckpt.operations.writing.staging.stager import HandedOver
from asyncckpt.progress import ProgressReporter
from asyncckpt.storage.base import ICheckpointStorage


class SingleFileSaver:
    """Gathers shards into one file of a format, on a storage."""

    @checked
    def __init__(self, format: ICheckpointFormat, storage: ICheckpointStorage) -> None:
        self._format = format
        self._storage = storage

    @checked
    async def save(
        self,
        prefix: str,
        shards: Sequence[ShardData],
        metadata: CheckpointMetadata,
        *,
        overwrite: bool = False,
        cancellation: CancellationToken | None = None,
    ) -> str:
        """Write `prefix` + the format's extension, in parts, never joined in memory; returns the key.

        Raises CheckpointExistsError, LayoutError when the metadata lists other shards, StorageError subclasses.
        """
        key = f"{prefix}{self._format.extension}"
        location = ObjectLocation(self._storage, key, f"{self._storage!r}/{key}")
        content, views = content_of(shards, metadata)
        with ProgressReporter(None) as report:
            async with cancel_scope(cancellation) as scope, WorkerThreads(WORKERS, name="save") as threads:
                operation = Operation(threads, ByteBudget(DEFAULT_MEMORY_BYTES), scope, Meter(report))
                staged = Staged(content, HandedOver(MemorySource(views)), len(views))
                destination = Destination(location, self._format, overwrite)
                async with writing(staged, destination, operation) as written:
                    await written.commit()
        return key


class SingleFileLoader:
    """Reads the shards of one file, verified."""

    @checked
    def __init__(self, format: ICheckpointFormat, storage: ICheckpointStorage) -> None:
        self._format = format
        self._storage = storage

    @checked
    async def load(
        self, key: str, *, cancellation: CancellationToken | None = None
    ) -> tuple[list[ShardData], CheckpointMetadata]:
        """The shards and the metadata. Raises CheckpointNotFoundError, FormatError and StorageError subclasses."""
        async with open_checkpoint(
            (self._storage, key), format=self._format, cancellation=cancellation
        ) as checkpoint:
            stored = checkpoint.index.tensors
            arrays = {s.name: await checkpoint.read_stored(s.name) for s in stored}
            metadata = checkpoint.metadata
        shards = metadata.shards or (ShardMetadata(tensors=tuple(s.metadata for s in stored)),)
        made = []
        for shard in shards:
            own = ShardData.from_arrays({t.name: arrays[t.name] for t in shard.tensors}, shard.rank)
            made.append(ShardData(shard, own.views))
        return made, metadata
