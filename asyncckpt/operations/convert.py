"""`convert` and `migrate`: from any format and storage to any other, tensor by tensor, never whole in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncckpt._aio import ByteBudget, WorkerThreads, gc_paused
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import MismatchError
from asyncckpt.formats.base import ICheckpointFormat, refuse_losses
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.formats.kit.plan import Content
from asyncckpt.model.checksums import Buffer, Checksums
from asyncckpt.model.metadata import TensorMetadata
from asyncckpt.model.state.prune import prune
from asyncckpt.model.state.tree import check_tree, with_values
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint
from asyncckpt.operations.location import Location, StorageOptions, resolve, with_options
from asyncckpt.operations.runtime import (
    DEFAULT_MEMORY_BYTES,
    WORKER_NICENESS,
    WORKERS,
    Meter,
    Operation,
    let_go,
    reporting_retries_to,
)
from asyncckpt.operations.save import choose_format
from asyncckpt.operations.writing.commit import writing
from asyncckpt.operations.writing.session import Destination
from asyncckpt.operations.writing.source import TensorSource
from asyncckpt.operations.writing.staging.stage import Staged
from asyncckpt.operations.writing.staging.stager import HandedOver
from asyncckpt.progress import ProgressCallback, ProgressReporter


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What was written, and what the target format could not hold."""

    key: str
    source_format: str
    source_version: str
    format: str
    tensors: int
    size: int
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@checked
async def convert(
    source: Location,
    target: Location,
    *,
    to: str | ICheckpointFormat | None = None,
    allow_loss: bool = False,
    overwrite: bool = False,
    memory_bytes: AtLeastOne = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> ConvertReport:
    """Write a checkpoint again in another format, or on another storage; every byte is verified on the way.

    `to` is a name or a format; None means by the target's extension. What the target can't hold is an error that
    lists all of it, unless `allow_loss`: then it is left out and reported. That the source is encrypted or signed and
    the target is not counts as such a loss. `storage_options` hold for both; give one that needs others, or a format
    that its bytes do not tell, as `asyncckpt.at(location, storage_options=…, format=…)`.

    Raises InvalidArgumentError, NotRepresentableError, CheckpointNotFoundError, CheckpointExistsError, FormatError and
    StorageError subclasses, OperationCancelledError.
    """
    target, target_options, to = with_options(target, storage_options, to)
    with ProgressReporter(progress) as report, reporting_retries_to(meter := Meter(report)):
        async with (
            cancel_scope(cancellation) as scope,
            open_checkpoint(source, memory_bytes=memory_bytes, storage_options=storage_options) as checkpoint,
            resolve(target, target_options, writing=True) as location,
            WorkerThreads(WORKERS, name="convert", nice=WORKER_NICENESS) as threads,
        ):
            chosen = await threads.run(choose_format, to, location.name)
            # What can't be stored beside the tensors is text in the tree, and has to be there when it is planned.
            inlined = {} if chosen.has_payloads else await checkpoint.read_many(list(checkpoint.payloads))
            content, numbers, losses = await threads.run(
                gc_paused()(_content), checkpoint, chosen, allow_loss, inlined
            )
            tensors = len(content.tensors) - len(checkpoint.payloads.keys() - inlined.keys())
            staged = Staged(content, HandedOver(CheckpointSource(checkpoint, numbers)), tensors)
            operation = Operation(threads, ByteBudget(memory_bytes), scope, meter)
            async with writing(staged, Destination(location, chosen, overwrite), operation) as written:
                committed = await written.commit()
            await let_go(threads, content.tree)
            return ConvertReport(
                key=committed.info.key,
                source_format=checkpoint.format,
                source_version=checkpoint.version,
                format=chosen.name,
                tensors=tensors,
                size=committed.size,
                losses=tuple(losses),
                warnings=checkpoint.warnings,
            )


@checked
async def migrate(
    source: Location,
    target: Location,
    *,
    overwrite: bool = False,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> ConvertReport:
    """Rewrite a checkpoint of an older version of its format as the current one.

    Raises as `convert` does; UnsupportedVersionError for a version that is newer than this release.
    """
    async with open_checkpoint(source, storage_options=storage_options, cancellation=cancellation) as opened:
        name = opened.format
    return await convert(
        source,
        target,
        to=name,
        overwrite=overwrite,
        cancellation=cancellation,
        progress=progress,
        storage_options=storage_options,
    )


class CheckpointSource(TensorSource):
    """The tensors of an open checkpoint, read as they are written."""

    in_memory = False

    def __init__(self, checkpoint: Checkpoint, stored: Sequence[StoredTensor]) -> None:
        self._checkpoint = checkpoint
        self._stored = stored
        self._loop = asyncio.get_running_loop()

    async def fetch(self, tensor: int, start: int, end: int) -> Buffer:
        return await self._checkpoint.read_bytes(self._stored[tensor].name, start, end)

    def read(self, tensor: int, start: int, end: int) -> Buffer:
        return asyncio.run_coroutine_threadsafe(self._fetch(tensor, start, end), self._loop).result()

    async def _fetch(self, tensor: int, start: int, end: int) -> Buffer:
        return await self.fetch(tensor, start, end)

    def known_checksums(self, tensor: int, chunk_bytes: int) -> Checksums | None:
        stored = self._stored[tensor]
        same = stored.chunk_bytes == chunk_bytes and stored.order == "C"
        return stored.checksums if same else None


def _content(
    checkpoint: Checkpoint, chosen: ICheckpointFormat, allow_loss: bool, inlined: Mapping[str, np.ndarray]
) -> tuple[Content, list[StoredTensor], list[str]]:
    """What is to be written, without what the format can't hold; `inlined` are payloads that become text.

    Raises as `convert` does.
    """
    index = checkpoint.index
    # What `load` would refuse is not handed on to a file that looks sound.
    check_tree(index.tree)
    tree = with_values(index.tree, inlined) if inlined else index.tree
    # What is lost whichever tensors are kept is not a reason to drop one.
    general = chosen.losses(Content((), (0,), index.metadata, tree))
    unsealed = [
        f"the source is {seal}, the {chosen.name} file would not be"
        for seal in sorted(index.seals - chosen.seals)
    ]
    kept, losses = [], [*unsealed, *general]
    for stored in index.tensors:
        if stored.name in inlined:
            continue
        if stored.absent is not None:
            raise MismatchError(f"tensor {stored.name!r} can't be converted: {stored.absent}")
        alone = Content((stored.metadata,), (1,), index.metadata)
        problems = [line for line in chosen.losses(alone) if line not in general]
        losses += problems
        if not problems or not allow_loss:
            kept.append(stored)
    if unsealed and not allow_loss:
        refuse_losses(losses)
    names = {stored.name for stored in kept}
    shards = tuple(
        replace(
            s, tensors=tuple(t for t in s.tensors if t.name in names), file_path="", file_size=0, checksum=""
        )
        for s in index.metadata.shards
    )
    metadata = replace(index.metadata, shards=(), format="", version="")
    counts = tuple(len(s.tensors) for s in shards) or (len(kept),)
    tree = prune(tree, {t.name for t in index.tensors} - names)
    if len(counts) > 1:
        metadata = replace(metadata, shards=shards)
        by_name = {stored.name: stored for stored in kept}
        kept = [by_name[t.name] for shard in shards for t in shard.tensors]
    content = Content(tuple(_relocated(stored) for stored in kept), counts, metadata, tree)
    return content, kept, losses if allow_loss else []


def _relocated(stored: StoredTensor) -> TensorMetadata:
    return replace(stored.metadata, offset=0, checksum=None)
