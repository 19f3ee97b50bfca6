"""One planned file on its way to a storage: a small one as one object, a large one in parts, its header last.

Everything but the last step is done first; the last step, which makes the file visible, is a value of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from asyncckpt._aio import gc_paused
from asyncckpt.formats.kit.encode import ChunkDigests, format_digest
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.formats.kit.plan import AnyPlan, Digests, FilePlan, StreamPlan
from asyncckpt.model.buffers import Buffer
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import run_inline_or_threaded
from asyncckpt.operations.writing import hashing
from asyncckpt.operations.writing.cutting import PartCutter, Run
from asyncckpt.operations.writing.large_file import LargeFile, WithEarlier
from asyncckpt.operations.writing.session import FileWriting
from asyncckpt.operations.writing.source import TensorSource
from asyncckpt.operations.writing.stream import stream_part_bytes, write_stream
from asyncckpt.storage.base import ObjectInfo, ObjectWriter

SMALL_FILE_BYTES = 8 * 1024 * 1024
"""A file up to this size is written as one object, in one request."""
Noted = Callable[[ObjectInfo], None]
"""Hears that a file is visible, also when its writer was cancelled meanwhile."""


class NotCommittedError(Exception):
    """The block of a prepared file ended without its commit: it is removed. Never leaves this package."""


@dataclass(frozen=True, slots=True)
class Made:
    """What is known of a file before it is visible: its digests, or, of a stream, where its tensors are."""

    digests: Digests | None = None
    stored: Sequence[StoredTensor] = ()


class PreparedFile(ABC):
    """A file of which only the commit is left."""

    def __init__(self, location: ObjectLocation, made: Made) -> None:
        self.location = location
        self.made = made
        self.committed = False

    async def commit(self, noted: Noted) -> ObjectInfo:
        """Make it visible, in one step, which runs to its end whoever cancels. Raises StorageError subclasses."""
        self.committed = True
        return await self._commit(noted)

    @abstractmethod
    async def _commit(self, noted: Noted) -> ObjectInfo: ...


@asynccontextmanager
async def prepare_file(
    location: ObjectLocation,
    plan: AnyPlan,
    session: FileWriting,
    *,
    exclusive: bool,
    with_earlier: WithEarlier = lambda own: own,
) -> AsyncIterator[PreparedFile]:
    """Do everything but the commit; after a block that does not commit, nothing is left of the file.

    Raises StorageError subclasses, and NotCommittedError when such a block ended without an error.
    """
    if isinstance(plan, FilePlan) and plan.size <= SMALL_FILE_BYTES:
        work = gc_paused()(_render)
        digests, buffers = await session.threads.run(work, plan, session.source, with_earlier)
        whole = _WholeFile(location, Made(digests), buffers, session, exclusive=exclusive)
        yield whole
        _require_committed(whole)
        return
    exact, part_bytes = (plan.size, None) if isinstance(plan, FilePlan) else (None, stream_part_bytes(plan))
    async with AsyncExitStack() as stack:
        session.count_request()
        writer = await stack.enter_async_context(
            location.storage.open_writer(location.key, size=exact, exclusive=exclusive, part_bytes=part_bytes)
        )
        made = await _write_parts(location, plan, session, writer, with_earlier)
        parts = _FileInParts(location, made, writer, stack, session)
        yield parts
        _require_committed(parts)


def _require_committed(file: PreparedFile) -> None:
    if not file.committed:
        raise NotCommittedError(f"{file.location.display} was prepared, but not committed")


class _WholeFile(PreparedFile):
    """A small file: to write it is to commit it."""

    def __init__(
        self,
        location: ObjectLocation,
        made: Made,
        buffers: list[Buffer],
        session: FileWriting,
        *,
        exclusive: bool,
    ) -> None:
        super().__init__(location, made)
        self._buffers = buffers
        self._session = session
        self._exclusive = exclusive

    async def _commit(self, noted: Noted) -> ObjectInfo:
        storage = self.location.storage
        write = storage.write_new if self._exclusive else storage.write
        self._session.count_request()
        info = await write(self.location.key, self._buffers, on_commit=noted)
        self._session.report.advance(info.size)
        return info


class _FileInParts(PreparedFile):
    """A large file: its parts are there, and the writer's block is still open."""

    def __init__(
        self,
        location: ObjectLocation,
        made: Made,
        writer: ObjectWriter,
        stack: AsyncExitStack,
        session: FileWriting,
    ) -> None:
        super().__init__(location, made)
        self._writer = writer
        self._stack = stack
        self._session = session

    async def _commit(self, noted: Noted) -> ObjectInfo:
        self._session.count_request()
        try:
            await self._stack.aclose()
        finally:
            if self._writer.committed is not None:
                noted(self._writer.committed)
        assert self._writer.committed is not None
        return self._writer.committed


def _render(plan: FilePlan, source: TensorSource, with_earlier: WithEarlier) -> tuple[Digests, list[Buffer]]:
    """The digests and the bytes of a small file, which is one part."""
    pieces = list(PartCutter(plan, max(1, plan.size)).pieces(0))
    tensors = [p for p in pieces if isinstance(p, Run) or p.tensor is not None]
    gathered = hashing.gather(tensors, source, ())
    hashed = ChunkDigests(plan.chunking, crc32=plan.needs_crc32)
    hashing.hash_tensors(hashed, tensors, gathered)
    hashed.add_payloads(plan.inline, source.read)
    digests = hashed.digests(format_digest(plan, source.read))
    late = plan.finish(with_earlier(digests), source.read)
    found = iter(gathered)
    sent: list[Buffer] = []
    for piece in pieces:
        is_tensor = isinstance(piece, Run) or piece.tensor is not None
        sent += next(found).sent if is_tensor else hashing.sent(hashing.gather([piece], source, late))
    return digests, sent


async def _write_parts(
    location: ObjectLocation,
    plan: AnyPlan,
    session: FileWriting,
    writer: ObjectWriter,
    with_earlier: WithEarlier,
) -> Made:
    any_order = location.storage.capabilities.any_order
    if isinstance(plan, StreamPlan):
        await write_stream(plan, session, writer, any_order=any_order)
        return Made(stored=await session.threads.run(plan.stored))
    file = await run_inline_or_threaded(
        session.threads, len(plan.payloads), LargeFile, plan, writer, session, with_earlier
    )
    digests = await (file.write_header_last() if any_order else file.write_in_order())
    return Made(digests)
