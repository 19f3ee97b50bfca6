"""The files of a checkpoint: planned, written, and made visible by the last of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from asyncckpt._aio import ByteBudget, WorkerThreads, gc_paused
from asyncckpt.cancellation import CancelScope
from asyncckpt.errors import (
    CheckpointExistsError,
    ObjectExistsError,
    UnsupportedOperationError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.plan import AnyPlan, Content, FilePlan
from asyncckpt.model.checksums import Checksums
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import FileWriting
from asyncckpt.operations.writing.file import SMALL_FILE_BYTES, write_file
from asyncckpt.operations.writing.members import Members
from asyncckpt.operations.writing.source import TensorSource
from asyncckpt.progress import Phase, ProgressReporter
from asyncckpt.storage.base import ObjectInfo

_ADVICE = "choose another name, or pass overwrite=True to replace it"
_ADVICE_FOR_SETS = "a set of files is never overwritten: save under a new name, or into an empty folder"


@dataclass(frozen=True, slots=True)
class Written:
    """The object that makes it a checkpoint, the keys of all files, and how many bytes they have."""

    info: ObjectInfo
    files: tuple[str, ...]
    size: int


async def write_content(
    content: Content,
    source: TensorSource,
    location: ObjectLocation,
    format: ICheckpointFormat,
    *,
    threads: WorkerThreads,
    memory_bytes: int,
    overwrite: bool,
    report: ProgressReporter,
    scope: CancelScope,
) -> Written:
    """Plan and write a checkpoint. Once its commit has begun, the scope's token is ignored.

    Raises NotRepresentableError, CheckpointExistsError, StorageError subclasses.
    """
    report.phase(Phase.PLAN)
    plans = await threads.run(gc_paused()(lambda: format.plan(content, name=location.name)))

    def committing() -> None:
        scope.commit()
        report.phase(Phase.COMMIT)

    session = FileWriting(
        source=source,
        names=[tensor.name for tensor in content.tensors],
        checksums=_room_for_checksums(plans),
        threads=threads,
        budget=ByteBudget(memory_bytes),
        report=report,
        committing=committing,
        committed=lambda _: report.mark_committed(),
    )
    info = await _write_files(location, plans, session, overwrite=overwrite)
    # Of a stream only the last file's size is known, and there it is the only file.
    size = info.size + sum(plan.size for plan in plans[:-1] if isinstance(plan, FilePlan))
    return Written(info, tuple(location.sibling(plan.name).key for plan in plans), size)


def _room_for_checksums(plans: Sequence[AnyPlan]) -> Checksums:
    """All files of a set have the same chunking; a stream keeps its checksums to itself."""
    return np.zeros(max((p.chunking.count for p in plans if isinstance(p, FilePlan)), default=0), np.uint32)


async def _write_files(
    location: ObjectLocation, plans: Sequence[AnyPlan], session: FileWriting, *, overwrite: bool
) -> ObjectInfo:
    """Write all files, the last of which makes it a checkpoint; after a failure none is left.

    Raises CheckpointExistsError, and UnsupportedOperationError for a set of files that should be overwritten.
    """
    session.report.phase(Phase.WRITE, bytes_total=sum(map(_expected_size, plans)))
    leader = location.sibling(plans[-1].name)
    if len(plans) > 1 and overwrite and await leader.storage.exists(leader.key):
        raise UnsupportedOperationError(
            f"{leader.display} is one of a set of files, which can't be replaced in one step: save under a new name"
        )
    exclusive = not overwrite or len(plans) > 1
    advice = _ADVICE if len(plans) == 1 else _ADVICE_FOR_SETS
    if exclusive and sum(map(_expected_size, plans)) > SMALL_FILE_BYTES:
        await _require_free(leader, advice)
    members = Members(leader)
    try:
        for plan in plans[:-1]:
            member = location.sibling(plan.name)
            with _exists_means(member, advice):
                await write_file(
                    member,
                    plan,
                    session,
                    exclusive=exclusive,
                    committing=_nothing,
                    committed=partial(members.add, member),
                )
        with _exists_means(leader, advice):
            return await write_file(
                leader,
                plans[-1],
                session,
                exclusive=exclusive,
                committing=members.leader_begins(session.committing),
                committed=session.committed,
            )
    except BaseException as error:
        if not session.report.committed:
            await members.remove_if_unnamed(error)
        raise


def _nothing() -> None:
    return None


async def _require_free(location: ObjectLocation, advice: str) -> None:
    """Fail before a large upload, not after it; the exclusive create still decides."""
    if await location.storage.exists(location.key):
        raise _exists(location, advice)


def _exists(location: ObjectLocation, advice: str) -> CheckpointExistsError:
    return CheckpointExistsError(f"{location.display} exists already: {advice}")


@contextmanager
def _exists_means(location: ObjectLocation, advice: str) -> Iterator[None]:
    """A lost exclusive create is told with the file's name and what to do next."""
    try:
        yield
    except ObjectExistsError as error:
        raise _exists(location, advice) from error


def _expected_size(plan: AnyPlan) -> int:
    return plan.size if isinstance(plan, FilePlan) else plan.size_bound
