"""`save`: capture, stage, plan, write, commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from asyncckpt._aio import (
    ByteBudget,
    WorkerThreads,
    collection_paused,
    run_shielded,
    without_collection,
)
from asyncckpt.cancellation import CancellationToken, bind
from asyncckpt.errors import (
    CheckpointExistsError,
    ObjectExistsError,
    StorageError,
    UnsupportedOperationError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.plan import AnyPlan, Content, FilePlan
from asyncckpt.formats.registry import format_for_name, get_format
from asyncckpt.model.metadata import CheckpointMetadata, Json, now
from asyncckpt.model.tree import assemble, walk_state
from asyncckpt.operations.location import Location, Place, StorageOptions, resolve
from asyncckpt.operations.session import (
    DEFAULT_MEMORY_BYTES,
    WORKER_NICENESS,
    WORKERS,
    WriteSession,
    hearing_retries,
)
from asyncckpt.operations.source import MemorySource
from asyncckpt.operations.stage import normalise, stage
from asyncckpt.operations.write import SMALL_FILE_BYTES, write_file
from asyncckpt.progress import Phase, ProgressCallback, ProgressReporter
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectInfo

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


async def save(
    state: Any,
    location: Location,
    *,
    metadata: CheckpointMetadata | Mapping[str, Json] | None = None,
    format: str | ICheckpointFormat | None = None,
    overwrite: bool = False,
    handover: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
    clock: Callable[[], datetime] = now,
) -> SaveResult:
    """Save a state: a tree of dicts, lists and tuples with arrays and plain values.

    The tree and its plain values are captured before this first suspends, the arrays by a copy before the
    progress says `write`. With `handover=True` the arrays are written from where they are: nobody may change
    them until the save is over. `metadata` is a CheckpointMetadata, or a mapping that becomes its custom fields.
    `format` is a name, a format object, or None: by the file's extension, else MLCP.

    A cancel, by token, timeout or `task.cancel()`, leaves nothing behind. Once the commit has begun it runs to
    its end: a token that fires then is ignored, a `task.cancel()` is raised after it.

    Raises UnsupportedStateError, NotRepresentableError, CheckpointExistsError, StorageError subclasses,
    OperationCancelledError, and OutcomeUnknownError when the storage never said whether it has the object.
    """
    with ProgressReporter(progress) as report, hearing_retries(report):
        with collection_paused():
            structure, places = walk_state(state)
        described = describe(metadata, clock)
        async with bind(cancellation) as scope, resolve(location, storage_options, writing=True) as place:
            chosen = choose_format(format, place.name)
            async with WorkerThreads(WORKERS, name="save", nice=WORKER_NICENESS) as threads:
                report.phase(Phase.STAGE)
                flat = await threads.run(without_collection(assemble), structure, places)
                tensors = await threads.run(without_collection(normalise), flat.tensors)
                views = tensors.views if handover else await stage(tensors, threads)
                report.phase(Phase.PLAN)
                content = Content(tensors.metadata, (len(views),), described, flat.structure)
                plans = await threads.run(without_collection(lambda: chosen.plan(content, name=place.name)))

                def committing() -> None:
                    scope.commit()
                    report.phase(Phase.COMMIT)

                session = WriteSession(
                    source=MemorySource(views),
                    names=[t.name for t in tensors.metadata],
                    threads=threads,
                    budget=ByteBudget(memory_bytes),
                    report=report,
                    committing=committing,
                    committed=lambda _: report.mark_committed(),
                )
                info = await write_checkpoint(place, plans, session, overwrite=overwrite)
        return SaveResult(
            key=info.key,
            format=chosen.name,
            size=total_size(plans, info),
            tensors=len(views),
            version=info.version,
            write_id=info.write_id,
            files=tuple(place.sibling(plan.name).key for plan in plans),
        )


def describe(
    metadata: CheckpointMetadata | Mapping[str, Json] | None, clock: Callable[[], datetime]
) -> CheckpointMetadata:
    """The caller's metadata, with the time of the save where it has none."""
    if isinstance(metadata, CheckpointMetadata):
        described = metadata
    else:
        described = CheckpointMetadata(custom_fields=dict(metadata or {}))
    return described if described.timestamp is not None else replace(described, timestamp=clock())


def choose_format(format: str | ICheckpointFormat | None, file_name: str) -> ICheckpointFormat:
    """Raises UnknownFormatError, MissingExtraError."""
    if isinstance(format, ICheckpointFormat):
        return format
    if format is not None:
        return get_format(format)
    return format_for_name(file_name) or get_format(DEFAULT_FORMAT)


def total_size(plans: Sequence[AnyPlan], last: ObjectInfo) -> int:
    """The bytes of all files; of a stream only the last one's size is known, and there it is the only file."""
    return last.size + sum(plan.size for plan in plans[:-1] if isinstance(plan, FilePlan))


async def write_checkpoint(
    place: Place, plans: Sequence[AnyPlan], session: WriteSession, *, overwrite: bool
) -> ObjectInfo:
    """Write all files, the last of which makes it a checkpoint; after a failure none is left.

    Raises CheckpointExistsError, and UnsupportedOperationError for a set of files that should be overwritten.
    """
    session.report.phase(Phase.WRITE, bytes_total=sum(map(_expected_size, plans)))
    leader = place.sibling(plans[-1].name)
    if len(plans) > 1 and overwrite and await leader.storage.exists(leader.key):
        raise UnsupportedOperationError(
            f"{leader.shown} is one of a set of files, which can't be replaced in one step: save under a new name"
        )
    exclusive = not overwrite or len(plans) > 1
    if exclusive and sum(map(_expected_size, plans)) > SMALL_FILE_BYTES:
        await _require_free(leader)
    written: list[Place] = []
    try:
        for plan in plans[:-1]:
            member = place.sibling(plan.name)
            committed = partial(_note, written, member)
            await _write(member, plan, session, exclusive, _nothing, committed)
        return await _write(leader, plans[-1], session, exclusive, session.committing, session.committed)
    except BaseException as error:
        if written and not session.report.committed:
            await run_shielded(_remove(written, error), timeout=CLEANUP_TIMEOUT * len(written))
        raise


def _nothing() -> None:
    return None


def _note(written: list[Place], member: Place, _: ObjectInfo) -> None:
    written.append(member)


async def _write(
    place: Place,
    plan: AnyPlan,
    session: WriteSession,
    exclusive: bool,
    committing: Callable[[], None],
    committed: Callable[[ObjectInfo], None],
) -> ObjectInfo:
    try:
        return await write_file(
            place, plan, session, exclusive=exclusive, committing=committing, committed=committed
        )
    except ObjectExistsError as error:
        raise _exists(place) from error


async def _require_free(place: Place) -> None:
    """Fail before a large upload, not after it; the exclusive create still decides."""
    if await place.storage.exists(place.key):
        raise _exists(place)


def _exists(place: Place) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"{place.shown} exists already: choose another name, or pass overwrite=True to replace it"
    )


async def _remove(written: Sequence[Place], error: BaseException) -> None:
    """Delete the members of a set that was not committed."""
    for place in written:
        try:
            await place.storage.delete(place.key)
        except StorageError as failure:
            error.add_note(f"{place.shown} of the unfinished set could not be removed: {failure}")


def _expected_size(plan: AnyPlan) -> int:
    return plan.size if isinstance(plan, FilePlan) else plan.size_bound
