"""A large file on its way through a writer, part by part, each byte hashed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from asyncckpt._aio import dismantle, fan_out, gc_paused
from asyncckpt.formats.kit.encode import ChunkDigests, format_digest
from asyncckpt.formats.kit.plan import Digests, FilePlan, Payload, TensorBytes
from asyncckpt.model.buffers import Buffer
from asyncckpt.operations.runtime import run_inline_or_threaded
from asyncckpt.operations.writing import hashing
from asyncckpt.operations.writing.cutting import PartCutter, Piece, Run
from asyncckpt.operations.writing.session import FileWriting
from asyncckpt.operations.writing.source import RunBytes
from asyncckpt.storage.base import ObjectWriter

_HASHED_AHEAD = 2
"""Parts that are hashed while others are sent."""
_DIGEST_BATCH_BYTES = 32 * 1024 * 1024
_HASHERS = 2
_Step = Callable[[], Coroutine[Any, Any, None]]
WithEarlier = Callable[[Digests], Digests]
"""Adds what the other files of a set have to say."""


class _Part(NamedTuple):
    """A part that is ready: the last tensor in it, its CRC32C, its bytes."""

    last: int | None
    crc32c: int
    sent: list[Buffer]


class LargeFile:
    """Writes one planned file. Use one of the two `write_` methods, once: it returns the file's own digests."""

    def __init__(
        self, plan: FilePlan, writer: ObjectWriter, session: FileWriting, with_earlier: WithEarlier
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._session = session
        self._with_earlier = with_earlier
        self._cutter = PartCutter(plan, writer.part_bytes)
        # None once all tensors were hashed.
        self._digests: ChunkDigests | None = ChunkDigests(plan.chunking, crc32=plan.needs_crc32)
        self._own: Any = None
        self._late: Sequence[bytes] = ()
        self._unhashed = 0
        self._all_hashed = asyncio.Event()
        self._result: Digests | None = None

    async def write_header_last(self) -> Digests:
        """Parts of tensors in any order, several in flight; those that hold a header or a table come last.

        The header depends on the checksums alone, so it is made, and sent, while the last parts are still on
        their way.
        """
        late = [index for index in range(self._cutter.count) if self._cutter.is_late(index)]
        waiting = set(late)
        early = [index for index in range(self._cutter.count) if index not in waiting]
        self._unhashed = len(early) + 2
        await fan_out(self._hash_tensors_of, late, limit=self._writer.concurrency)
        steps: list[_Step] = [
            self._digest_own,
            self._digest_inline,
            *(partial(self._write_part, index) for index in early),
            partial(self._write_late, late),
        ]
        await fan_out(_call, steps, limit=self._writer.concurrency + _HASHED_AHEAD)
        assert self._result is not None
        return self._result

    async def _write_late(self, late: Sequence[int]) -> None:
        await self._all_hashed.wait()
        assert self._digests is not None
        await self._finish(self._digests)
        self._digests = None
        await fan_out(self._write_part, late, limit=self._writer.concurrency)

    async def write_in_order(self) -> Digests:
        """Checksums first, then one part after another."""
        digests, self._digests = self._digests, None
        assert digests is not None
        steps: list[_Step] = [self._digest_own, partial(self._digest_ahead, digests)]
        await fan_out(_call, steps, limit=len(steps))
        result = await self._finish(digests)
        for index in range(self._cutter.count):
            await self._write_part(index)
        return result

    async def _digest_own(self) -> None:
        """What only the format can hash, in one thread, beside the writing."""
        if self._plan.format_digest is not None:
            read = _StoppableRead(self._session.source.read)
            self._own = await self._session.threads.run(format_digest, self._plan, read, abort=read.stop)
        self._count_hashed()

    async def _digest_inline(self) -> None:
        """The tensors that stand in a late region are in no part: they are hashed beside the others."""
        if self._plan.inline and self._digests is not None:
            add = gc_paused()(self._digests.add_payloads)
            await self._session.threads.run(add, self._plan.inline, self._session.source.read)
        self._count_hashed()

    async def _finish(self, digests: ChunkDigests) -> Digests:
        result = self._result = digests.digests(self._own)
        finish = gc_paused()(self._plan.finish)
        read = self._session.source.read
        self._late = await self._session.threads.run(finish, self._with_earlier(result), read)
        return result

    # -- parts -------------------------------------------------------------------------------------------------

    async def _write_part(self, index: int) -> None:
        session = self._session
        size = self._cutter.size(index)
        # What is in memory anyway holds nothing of the budget.
        async with session.budget.reserve(0 if session.source.in_memory else size):
            part = await self._hashed(index)
            self._count_hashed()
            session.count_request()
            await self._writer.write_part(index, part.sent, crc32c=part.crc32c)
            await run_inline_or_threaded(session.threads, len(part.sent), dismantle, part.sent)
        session.report.advance(size, tensor=None if part.last is None else session.tensors[part.last].name)

    def _count_hashed(self) -> None:
        self._unhashed -= 1
        if self._unhashed == 0:
            self._all_hashed.set()

    async def _hashed(self, index: int) -> _Part:
        threads = self._session.threads
        if self._session.source.in_memory:
            # Thousands of small tensors in one part would hold up the loop, so all of it is done in a thread.
            return await threads.run(gc_paused()(self._gather_and_hash), index)
        pieces = list(self._cutter.pieces(index))
        gathered = await hashing.fetch(pieces, self._session.source, self._late)
        return await threads.run(self._hash, pieces, gathered)

    def _gather_and_hash(self, index: int) -> _Part:
        pieces = list(self._cutter.pieces(index))
        return self._hash(pieces, hashing.gather(pieces, self._session.source, self._late))

    def _hash(self, pieces: Sequence[Piece], gathered: Sequence[RunBytes]) -> _Part:
        sent = hashing.sent(gathered)
        if self._digests is None:
            return _Part(hashing.last_tensor(pieces), hashing.checksum(sent), sent)
        return _Part(hashing.last_tensor(pieces), hashing.hash_part(self._digests, pieces, gathered), sent)

    # -- checksums ahead ---------------------------------------------------------------------------------------

    async def _hash_tensors_of(self, index: int) -> None:
        """The tensors' bytes in a late part have to be hashed before the header can be made."""
        session = self._session
        if session.source.in_memory:
            await session.threads.run(gc_paused()(self._hash_tensors_here), index)
            return
        pieces = self._tensor_pieces(index)
        async with session.budget.reserve(sum(piece.size for piece in pieces)):
            gathered = await hashing.fetch(pieces, session.source, ())
            assert self._digests is not None
            await session.threads.run(hashing.hash_tensors, self._digests, pieces, gathered)

    def _tensor_pieces(self, index: int) -> list[Piece]:
        return [p for p in self._cutter.pieces(index) if isinstance(p, Run) or p.tensor is not None]

    def _hash_tensors_here(self, index: int) -> None:
        assert self._digests is not None
        pieces = self._tensor_pieces(index)
        hashing.hash_tensors(self._digests, pieces, hashing.gather(pieces, self._session.source, ()))

    async def _digest_ahead(self, digests: ChunkDigests) -> None:
        """Hash all tensors before the first byte is written; checksums that are known are taken over."""
        plan, source = self._plan, self._session.source
        unknown = []
        for payload in (*plan.payloads, *plan.inline):
            known = source.known_checksums(payload.tensor, plan.chunking.chunk_bytes)
            if known is None or plan.needs_crc32:
                unknown.append(payload)
            else:
                digests.set_known(payload.tensor, known)

        async def digest(batch: Sequence[Payload]) -> None:
            await self._session.threads.run(gc_paused()(digests.add_payloads), batch, source.read)

        await fan_out(digest, _batches(unknown), limit=_HASHERS)


class _StoppableRead:
    """Reads for a long calculation in a thread; once it is stopped, the next read ends the calculation."""

    def __init__(self, read: TensorBytes) -> None:
        self._read = read
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def __call__(self, tensor: int, start: int, end: int) -> Buffer:
        if self._stopped:
            raise RuntimeError("nobody waits for this calculation any more")
        return self._read(tensor, start, end)


async def _call(step: _Step) -> None:
    await step()


def _batches(payloads: Sequence[Payload]) -> Iterator[list[Payload]]:
    batch: list[Payload] = []
    size = 0
    for payload in payloads:
        batch.append(payload)
        size += payload.size
        if size >= _DIGEST_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
