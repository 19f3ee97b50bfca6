"""`save`: capture, stage, plan, write, commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from asyncckpt._aio import dismantle, gc_paused
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.metadata_json import encode_metadata
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.registry import format_for_name, get_format
from asyncckpt.model.metadata import CheckpointMetadata, Json, now
from asyncckpt.model.state.capture import CAPTURED, capture
from asyncckpt.model.state.flatten import FlatState, flatten
from asyncckpt.operations.location import Location, StorageOptions, resolve, with_options
from asyncckpt.operations.runtime import (
    DEFAULT_MEMORY_BYTES,
    let_go,
    reporting_retries_to,
    working_threads,
)
from asyncckpt.operations.writing.commit import write_content
from asyncckpt.operations.writing.pool import staging_pool
from asyncckpt.operations.writing.source import MemorySource
from asyncckpt.operations.writing.stage import normalise, stage
from asyncckpt.progress import Phase, ProgressCallback, ProgressReporter

DEFAULT_FORMAT = "mlcp"


@dataclass(frozen=True, slots=True)
class SaveResult:
    """What was written: the object that makes it a checkpoint, and how much there is in all."""

    key: str
    format: str
    size: int
    tensors: int
    version: str
    write_id: str | None
    files: tuple[str, ...]


@checked
async def save(
    state: Any,
    location: Location,
    *,
    metadata: CheckpointMetadata | Mapping[str, Json] | None = None,
    format: str | ICheckpointFormat | None = None,
    overwrite: bool = False,
    copy: bool = True,
    memory_bytes: AtLeastOne = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
    clock: Callable[[], datetime] = now,
) -> SaveResult:
    """Save a state: a tree of dicts, lists and tuples with arrays and plain values.

    The tree and its plain values are captured before this first suspends, the arrays by a copy before the
    progress says `write`. With `copy=False` the arrays are written from where they are: nobody may change
    them until the save is over. `metadata` is a CheckpointMetadata, or a mapping that becomes its custom fields.
    `format` is a name, a format object, or None: by the file's extension, else MLCP.

    A cancel, by token, timeout or `task.cancel()`, leaves nothing behind. Once the commit has begun it runs to
    its end: a token that fires then is ignored, a `task.cancel()` is raised after it.

    Raises InvalidArgumentError, UnsupportedStateError, NotRepresentableError, CheckpointExistsError, StorageError
    subclasses, OperationCancelledError, and OutcomeUnknownError when the storage never said whether it has the object.
    """
    location, storage_options, format = with_options(location, storage_options, format)
    with ProgressReporter(progress) as report, reporting_retries_to(report):
        with gc_paused():
            captured = capture(state)
        described = describe(metadata, clock)
        async with (
            cancel_scope(cancellation) as scope,
            resolve(location, storage_options, writing=True) as resolved,
        ):
            async with working_threads(resolved.storage, "save") as threads, staging_pool(threads) as pool:
                chosen = await threads.run(choose_format, format, resolved.name)
                report.phase(Phase.STAGE)
                flat = await threads.run(gc_paused()(_take_apart), captured, chosen.has_payloads)
                tensors = await threads.run(gc_paused()(normalise), flat.tensors, flat.payloads)
                views = await stage(tensors, threads, pool) if copy else tensors.views
                content = Content(tensors.metadata, (len(views),), described, flat.tree)
                written = await write_content(
                    content,
                    MemorySource(views),
                    resolved,
                    chosen,
                    threads=threads,
                    memory_bytes=memory_bytes,
                    overwrite=overwrite,
                    report=report,
                    scope=scope,
                )
                await let_go(threads, flat.tree)
        return SaveResult(
            key=written.info.key,
            format=chosen.name,
            size=written.size,
            tensors=len(flat.tensors),
            version=written.info.version,
            write_id=written.info.write_id,
            files=written.files,
        )


def _take_apart(captured: Any, payloads: bool) -> FlatState:
    """Empties what was captured."""
    flat = flatten(captured, payloads=payloads)
    dismantle(captured, CAPTURED)
    return flat


def describe(
    metadata: CheckpointMetadata | Mapping[str, Json] | None, clock: Callable[[], datetime]
) -> CheckpointMetadata:
    """A copy of the caller's metadata, with the time of the save where it has none.

    Raises UnsupportedStateError, with its path, for a value that can't be kept.
    """
    if not isinstance(metadata, CheckpointMetadata):
        metadata = CheckpointMetadata(custom_fields=dict(metadata or {}))
    # Also before the copy: what can't be kept may not even be copied.
    bare = tuple(replace(shard, tensors=()) for shard in metadata.shards)
    encode_metadata(replace(metadata, shards=bare))
    described = deepcopy(metadata)
    return described if described.timestamp is not None else replace(described, timestamp=clock())


def choose_format(format: str | ICheckpointFormat | None, file_name: str) -> ICheckpointFormat:
    """For a worker thread: it imports the format. Raises UnknownFormatError, MissingExtraError."""
    if isinstance(format, ICheckpointFormat):
        return format
    if format is not None:
        return get_format(format)
    return format_for_name(file_name) or get_format(DEFAULT_FORMAT)
