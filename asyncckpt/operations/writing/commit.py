"""Written and Committed: the files of a checkpoint, all but the last step of them, and that step.

The last file of a plan, the *leader*, makes it a checkpoint. The others, its members, are written side by side and are
visible before it; after a failure, or when nobody commits, they are removed again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from asyncckpt._aio import fan_out, gc_paused
from asyncckpt.errors import CheckpointExistsError, ObjectExistsError, UnsupportedOperationError
from asyncckpt.formats.kit.encode import SetDigests
from asyncckpt.formats.kit.plan import AnyPlan, FilePlan
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import Operation
from asyncckpt.operations.writing.file import SMALL_FILE_BYTES, NotCommittedError, PreparedFile, prepare_file
from asyncckpt.operations.writing.index import IndexRecord
from asyncckpt.operations.writing.members import Members
from asyncckpt.operations.writing.session import Destination, FileWriting
from asyncckpt.operations.writing.staging.stage import Staged
from asyncckpt.progress import Phase
from asyncckpt.storage.base import ObjectInfo

_ADVICE = "choose another name, or pass overwrite=True to replace it"
_ADVICE_FOR_SETS = "a set of files is never overwritten: save under a new name, or into an empty folder"
_FILES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint that is there: the object that makes it one, all its files (that one is the last), its index."""

    info: ObjectInfo
    files: tuple[ObjectInfo, ...]
    record: IndexRecord

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


class Written:
    """A checkpoint of which only the commit is left. Get one from `writing`.

    `members` are visible, and name nobody; `leader` is where the file will be that names them. `record` is the
    index as it will be. For a single small file nothing has been sent yet: its one request is the commit.
    """

    def __init__(
        self,
        prepared: PreparedFile,
        members: tuple[ObjectInfo, ...],
        record: IndexRecord,
        attempt: _Attempt,
    ) -> None:
        self.members = members
        self.record = record
        self._prepared = prepared
        self._attempt = attempt

    @property
    def leader(self) -> ObjectLocation:
        return self._prepared.location

    async def commit(self) -> Committed:
        """Make it a checkpoint. From here on the operation's token is ignored; once, in the operation's task.

        Raises CheckpointExistsError, StorageError subclasses.
        """
        with self._attempt.telling(self.leader):
            self._attempt.begin_commit()
            info = await self._prepared.commit(self._attempt.note_commit)
        return Committed(info, (*self.members, info), self.record)


@asynccontextmanager
async def writing(staged: Staged, destination: Destination, operation: Operation) -> AsyncIterator[Written]:
    """Plan a checkpoint and write everything but its last step; a block that does not commit leaves nothing.

    Raises NotRepresentableError, CheckpointExistsError, UnsupportedOperationError for a set of files that should be
    overwritten, StorageError subclasses.
    """
    operation.meter.phase(Phase.PLAN)
    plans, record = await operation.threads.run(gc_paused()(_plan), staged, destination)
    operation.meter.phase(Phase.WRITE, bytes_total=sum(map(_expected_size, plans)))
    attempt = _Attempt(plans, staged, destination, operation)
    try:
        await attempt.require_free()
        earlier = await attempt.write_members()
        with attempt.telling(attempt.leader):
            async with prepare_file(
                attempt.leader,
                plans[-1],
                attempt.session,
                exclusive=attempt.exclusive,
                with_earlier=earlier.with_earlier,
            ) as prepared:
                yield Written(
                    prepared, attempt.infos, _completed(record, prepared, plans[-1], earlier), attempt
                )
    except BaseException as error:
        if not attempt.committed:
            await attempt.members.remove_if_unnamed(error)
        if not isinstance(error, NotCommittedError):
            raise


def _plan(staged: Staged, destination: Destination) -> tuple[Sequence[AnyPlan], IndexRecord]:
    plans = destination.format.plan(staged.content, name=destination.location.name)
    return plans, IndexRecord.of(staged.content, plans, destination.format)


def _completed(
    record: IndexRecord, prepared: PreparedFile, plan: AnyPlan, earlier: SetDigests
) -> IndexRecord:
    digests = prepared.made.digests
    if digests is None or not isinstance(plan, FilePlan):
        return record.with_stored(prepared.made.stored)
    return record.with_digests(earlier.with_earlier(digests), plan)


class _Attempt:
    """One attempt to write a checkpoint: what it has written, and how far its commit is."""

    def __init__(
        self, plans: Sequence[AnyPlan], staged: Staged, destination: Destination, operation: Operation
    ) -> None:
        self._plans = plans
        self._destination = destination
        self._operation = operation
        self._is_set = len(plans) > 1
        self._infos: dict[str, ObjectInfo] = {}
        self.session = FileWriting(staged.source, staged.content.tensors, operation)
        self.leader = destination.location.sibling(plans[-1].name)
        self.members = Members(self.leader)
        self.exclusive = self._is_set or not destination.overwrite
        self.committed = False

    @property
    def infos(self) -> tuple[ObjectInfo, ...]:
        """The members, in the order of the plans."""
        return tuple(self._infos[plan.name] for plan in self._plans[:-1])

    async def require_free(self) -> None:
        """Fail before a large upload, not after it; the exclusive create still decides.

        Raises CheckpointExistsError, UnsupportedOperationError.
        """
        overwrites_set = self._is_set and self._destination.overwrite
        is_large = sum(map(_expected_size, self._plans)) > SMALL_FILE_BYTES
        if not overwrites_set and not (self.exclusive and is_large):
            return
        self._operation.meter.request()
        if not await self.leader.storage.exists(self.leader.key):
            return
        if overwrites_set:
            raise UnsupportedOperationError(
                f"{self.leader.display} is one of a set of files, which can't be replaced in one step: "
                "save under a new name"
            )
        raise self._exists(self.leader)

    async def write_members(self) -> SetDigests:
        """All files but the last, some at a time; returns what they have to say to the last one."""
        earlier = SetDigests()

        async def write(plan: AnyPlan) -> None:
            member = self._destination.location.sibling(plan.name)
            with self.telling(member):
                async with prepare_file(member, plan, self.session, exclusive=self.exclusive) as prepared:
                    self._infos[plan.name] = await prepared.commit(partial(self.members.add, member))
            if prepared.made.digests is not None:
                earlier.add(plan.name, prepared.made.digests)

        await fan_out(write, self._plans[:-1], limit=_FILES_AT_ONCE)
        return earlier

    def begin_commit(self) -> None:
        self.members.leader_begins()
        self._operation.scope.commit()
        self._operation.meter.phase(Phase.COMMIT)

    def note_commit(self, _: ObjectInfo) -> None:
        self.committed = True
        self._operation.report.mark_committed()

    @contextmanager
    def telling(self, location: ObjectLocation) -> Iterator[None]:
        """A lost exclusive create is told with the file's name and what to do next."""
        try:
            yield
        except ObjectExistsError as error:
            raise self._exists(location) from error

    def _exists(self, location: ObjectLocation) -> CheckpointExistsError:
        advice = _ADVICE_FOR_SETS if self._is_set else _ADVICE
        return CheckpointExistsError(f"{location.display} exists already: {advice}")


def _expected_size(plan: AnyPlan) -> int:
    return plan.size if isinstance(plan, FilePlan) else plan.size_bound
