"""`save`: capture, stage, plan, write, commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from asyncckpt._aio import ByteBudget
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Index
from asyncckpt.formats.registry import format_for_name, get_format
from asyncckpt.model.metadata import CheckpointMetadata, Json, now
from asyncckpt.operations.location import (
    Location,
    LocationWithOptions,
    ObjectLocation,
    StorageOptions,
    beside,
    resolve,
    with_options,
)
from asyncckpt.operations.runtime import (
    DEFAULT_MEMORY_BYTES,
    Meter,
    Operation,
    let_go,
    reporting_retries_to,
    working_threads,
)
from asyncckpt.operations.writing.commit import Committed, writing
from asyncckpt.operations.writing.index import IndexRecord
from asyncckpt.operations.writing.session import Destination
from asyncckpt.operations.writing.staging.capture import Captured
from asyncckpt.operations.writing.staging.stage import Staged, released, stage
from asyncckpt.operations.writing.staging.stager import NumpyStager
from asyncckpt.progress import ProgressCallback, ProgressReporter

DEFAULT_FORMAT = "mlcp"


@dataclass(frozen=True, slots=True)
class SaveResult:
    """What was written: the object that makes it a checkpoint, how much there is in all, and what it took.

    `location` can be given to `load` again, with the same `storage_options`. `seconds` has the time of each phase by
    its name, `requests` how often the storage was called (without the retries, which `retries` counts).
    """

    key: str
    format: str
    size: int
    tensors: int
    version: str
    write_id: str | None
    files: tuple[str, ...]
    # A URL may hold a secret.
    location: Location = field(repr=False)
    seconds: Mapping[str, float] = field(repr=False)
    retries: int
    requests: int
    record: IndexRecord = field(repr=False, compare=False)
    """What `index` is made of; it takes little memory, however many tensors there are."""

    @property
    def index(self) -> Index:
        """Where every tensor is, and its checksums: what opening it would find. Made at each call, which takes a
        second for a hundred thousand tensors. Raises CheckpointError for a delta, which does not know all of it."""
        return self.record.index()


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
    place, own_options, format = with_options(location, storage_options, format)
    with ProgressReporter(progress) as report, reporting_retries_to(meter := Meter(report)):
        captured = Captured.of(state, metadata, clock)
        async with (
            cancel_scope(cancellation) as scope,
            resolve(place, own_options, writing=True) as resolved,
            working_threads(resolved.storage, "save") as threads,
        ):
            operation = Operation(threads, ByteBudget(memory_bytes), scope, meter)
            chosen = await threads.run(choose_format, format, resolved.name)
            staged = await stage(captured, chosen, NumpyStager() if copy else None, operation)
            async with (
                released(staged, threads),
                writing(staged, Destination(resolved, chosen, overwrite), operation) as written,
            ):
                committed = await written.commit()
            await let_go(threads, staged.content.tree)
        return _result(committed, staged, meter, location, resolved)


def _result(
    committed: Committed, staged: Staged, meter: Meter, location: Location, resolved: ObjectLocation
) -> SaveResult:
    info = committed.info
    return SaveResult(
        key=info.key,
        format=committed.record.format,
        size=committed.size,
        tensors=staged.tensors,
        version=info.version,
        write_id=info.write_id,
        files=tuple(file.key for file in committed.files),
        location=location if info.key == resolved.key else _leading(location, info.key),
        seconds=meter.seconds(),
        retries=meter.retries,
        requests=meter.requests,
        record=committed.record,
    )


def _leading(location: Location, key: str) -> Location:
    """The location of the file that leads a set, which has another name than the caller gave."""
    name = key.rpartition("/")[2]
    if isinstance(location, LocationWithOptions):
        place: Any = _leading(location.place, key)
        return replace(location, place=place)
    if isinstance(location, tuple):
        return location[0], key
    if isinstance(location, os.PathLike):
        return Path(location).with_name(name)
    assert isinstance(location, str), "nothing was written to bytes"
    return beside(location, name)


def choose_format(format: str | ICheckpointFormat | None, file_name: str) -> ICheckpointFormat:
    """For a worker thread: it imports the format. Raises UnknownFormatError, MissingExtraError."""
    if isinstance(format, ICheckpointFormat):
        return format
    if format is not None:
        return get_format(format)
    return format_for_name(file_name) or get_format(DEFAULT_FORMAT)
