"""A large file on its way through a writer, part by part, each byte hashed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from asyncckpt._aio import dismantle, fan_out, gc_paused
from asyncckpt.formats.kit.encode import Digesting, format_digest
from asyncckpt.formats.kit.plan import Digests, FilePlan, Payload, TensorBytes
from asyncckpt.model.checksums import Buffer
from asyncckpt.operations.runtime import FileWriting, run_inline_or_threaded
from asyncckpt.operations.writing.cutting import DigestBook, PartCutter, Span, zeros
from asyncckpt.storage.base import ObjectWriter

_HASHED_AHEAD = 2
"""Parts that are hashed while others are sent."""
_DIGEST_BATCH_BYTES = 32 * 1024 * 1024
_HASHERS = 2
_Step = Callable[[], Coroutine[Any, Any, None]]


class LargeFile:
    """Writes one planned file. Use one of the two `write_` methods, once."""

    def __init__(self, plan: FilePlan, writer: ObjectWriter, session: FileWriting) -> None:
        self._plan = plan
        self._writer = writer
        self._session = session
        self._cutter = PartCutter(plan, writer.part_bytes)
        self._book = DigestBook(plan.chunking, session.checksums, crc32=plan.needs_crc32)
        self._own: Any = None
        self._late: Sequence[bytes] = ()
        self._unhashed = 0
        self._all_hashed = asyncio.Event()

    async def write_header_last(self) -> None:
        """Parts of tensors in any order, several in flight; those that hold a header or a table come last.

        The header depends on the checksums alone, so it is made, and sent, while the last parts are still on
        their way.
        """
        late = [index for index in range(self._cutter.count) if self._cutter.is_late(index)]
        waiting = set(late)
        early = [index for index in range(self._cutter.count) if index not in waiting]
        self._unhashed = len(early) + 1
        await fan_out(self._hash_tensors_of, late, limit=self._writer.concurrency)
        steps: list[_Step] = [
            self._digest_own,
            *(partial(self._write_part, index) for index in early),
            partial(self._write_late, late),
        ]
        await fan_out(_call, steps, limit=self._writer.concurrency + _HASHED_AHEAD)

    async def _write_late(self, late: Sequence[int]) -> None:
        await self._all_hashed.wait()
        self._late = await self._finish(self._book.digests(self._own))
        await fan_out(self._write_part, late, limit=self._writer.concurrency)

    async def write_in_order(self) -> None:
        """Checksums first, then one part after another."""
        digesting = Digesting(
            self._plan.chunking, crc32=self._plan.needs_crc32, checksums=self._session.checksums
        )
        steps: list[_Step] = [self._digest_own, partial(self._digest_ahead, digesting)]
        await fan_out(_call, steps, limit=len(steps))
        self._late = await self._finish(digesting.digests(self._own))
        for index in range(self._cutter.count):
            await self._write_part(index)

    async def _digest_own(self) -> None:
        """What only the format can hash, in one thread, beside the writing."""
        if self._plan.format_digest is not None:
            read = _StoppableRead(self._session.source.read)
            self._own = await self._session.threads.run(format_digest, self._plan, read, abort=read.stop)
        self._count_hashed()

    async def _finish(self, digests: Digests) -> Sequence[bytes]:
        read = self._session.source.read
        return await self._session.threads.run(gc_paused()(self._plan.finish), digests, read)

    # -- parts -------------------------------------------------------------------------------------------------

    async def _write_part(self, index: int) -> None:
        session = self._session
        size = self._cutter.size(index)
        # What is in memory anyway holds nothing of the budget.
        async with session.budget.reserve(0 if session.source.in_memory else size):
            last, checksum, sent = await self._hashed(index)
            self._count_hashed()
            await self._writer.write_part(index, sent, crc32c=checksum)
            await run_inline_or_threaded(session.threads, len(sent), dismantle, sent)
        session.report.advance(size, tensor=None if last is None else session.names[last])

    def _count_hashed(self) -> None:
        self._unhashed -= 1
        if self._unhashed == 0:
            self._all_hashed.set()

    async def _hashed(self, index: int) -> tuple[int | None, int, list[Buffer]]:
        """The last tensor in a part, the part's CRC32C and its bytes."""
        threads = self._session.threads
        if self._session.source.in_memory:
            # Thousands of small tensors in one part would hold up the loop, so all of it is done in a thread.
            return await threads.run(gc_paused()(self._gather_and_hash), index)
        spans = list(self._cutter.spans(index))
        views = [await self._fetch(span) for span in spans]
        return await threads.run(self._hash, spans, views)

    def _gather_and_hash(self, index: int) -> tuple[int | None, int, list[Buffer]]:
        spans = list(self._cutter.spans(index))
        return self._hash(spans, [self._view(span) for span in spans])

    def _hash(self, spans: list[Span], views: Sequence[Buffer]) -> tuple[int | None, int, list[Buffer]]:
        last = next((span.tensor for span in reversed(spans) if span.tensor is not None), None)
        return last, self._book.hash_part(spans, views), _sent(spans, views)

    async def _fetch(self, span: Span) -> Buffer:
        if span.tensor is None:
            return self._late_view(span)
        return await self._session.source.fetch(span.tensor, span.start, span.start + span.size)

    def _view(self, span: Span) -> Buffer:
        if span.tensor is None:
            return self._late_view(span)
        return self._session.source.read(span.tensor, span.start, span.start + span.size)

    def _late_view(self, span: Span) -> Buffer:
        if span.late is None:
            return b""
        return memoryview(self._late[span.late])[span.start : span.start + span.size]

    # -- checksums ahead ---------------------------------------------------------------------------------------

    async def _hash_tensors_of(self, index: int) -> None:
        """The tensors' bytes in a late part have to be hashed before the header can be made."""
        if self._session.source.in_memory:
            await self._session.threads.run(gc_paused()(self._hash_tensors_here), index)
            return
        spans = self._tensor_spans(index)
        async with self._session.budget.reserve(sum(span.size for span in spans)):
            views = [await self._fetch(span) for span in spans]
            await self._session.threads.run(self._book.hash_part, spans, views)

    def _tensor_spans(self, index: int) -> list[Span]:
        return [span for span in self._cutter.spans(index) if span.tensor is not None]

    def _hash_tensors_here(self, index: int) -> None:
        spans = self._tensor_spans(index)
        self._book.hash_part(spans, [self._view(span) for span in spans])

    async def _digest_ahead(self, digesting: Digesting) -> None:
        """Hash all payloads before the first byte is written; checksums that are known are taken over."""
        plan, source = self._plan, self._session.source
        unknown = []
        for payload in plan.payloads:
            known = source.known_checksums(payload.tensor, plan.chunking.chunk_bytes)
            if known is None or plan.needs_crc32:
                unknown.append(payload)
            else:
                plan.chunking.of_tensor(payload.tensor, digesting.checksums)[:] = known

        async def digest(batch: Sequence[Payload]) -> None:
            await self._session.threads.run(gc_paused()(digesting.hash), batch, source.read)

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


def _sent(spans: Sequence[Span], views: Sequence[Buffer]) -> list[Buffer]:
    sent: list[Buffer] = []
    for span, view in zip(spans, views, strict=True):
        if span.tensor is None and span.late is None:
            sent.extend(zeros(span.size))
        else:
            sent.append(view)
    return sent


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
