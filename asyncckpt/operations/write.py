"""Writing one planned file to a storage: a small one as one object, a large one in parts, its header last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asyncckpt._aio import fan_out, without_collection
from asyncckpt.formats.plan import AnyPlan, Digests, FilePlan, Payload, StreamPlan
from asyncckpt.formats.render import digest_payloads, segments
from asyncckpt.model.digests import Buffer
from asyncckpt.operations.location import Place
from asyncckpt.operations.parts import DigestBook, PartCutter, Span, zeros
from asyncckpt.operations.session import WriteSession
from asyncckpt.operations.stream import stream_part_bytes, write_stream
from asyncckpt.storage.base import ObjectInfo, ObjectWriter

SMALL_FILE_BYTES = 8 * 1024 * 1024
"""A file up to this size is written as one object, in one request."""


async def write_file(
    place: Place,
    plan: AnyPlan,
    session: WriteSession,
    *,
    exclusive: bool,
    committing: Callable[[], None],
    committed: Callable[[ObjectInfo], None],
) -> ObjectInfo:
    """Write the file so that it is visible whole or not at all. Raises StorageError subclasses.

    `committing` is called right before the commit begins, `committed` once the file is visible, also when the
    caller was cancelled meanwhile.
    """
    if isinstance(plan, FilePlan) and plan.size <= SMALL_FILE_BYTES:
        buffers = await session.threads.run(without_collection(_render), plan, session)
        committing()
        write = place.storage.write_new if exclusive else place.storage.write
        info = await write(place.key, buffers, on_commit=committed)
        session.report.advance(plan.size)
        return info
    exact, part_bytes = (plan.size, None) if isinstance(plan, FilePlan) else (None, stream_part_bytes(plan))
    writer: ObjectWriter | None = None
    try:
        async with place.storage.open_writer(
            place.key, size=exact, exclusive=exclusive, part_bytes=part_bytes
        ) as writer:
            await _write_parts(place, plan, session, writer)
            committing()
    finally:
        if writer is not None and writer.committed is not None:
            committed(writer.committed)
    assert writer.committed is not None
    return writer.committed


def _render(plan: FilePlan, session: WriteSession) -> list[Buffer]:
    read = session.source.read
    digests = digest_payloads(plan.chunking, plan.payloads, read, crc32=plan.needs_crc32)
    return segments(plan, plan.finish(digests, read), read)


async def _write_parts(place: Place, plan: AnyPlan, session: WriteSession, writer: ObjectWriter) -> None:
    any_order = place.storage.capabilities.any_order
    if isinstance(plan, StreamPlan):
        await write_stream(plan, session, writer, any_order=any_order)
    elif any_order:
        await _LargeFile(plan, writer, session).write_header_last()
    else:
        await _LargeFile(plan, writer, session).write_in_order()


class _LargeFile:
    """One file on its way through a writer."""

    def __init__(self, plan: FilePlan, writer: ObjectWriter, session: WriteSession) -> None:
        self._plan = plan
        self._writer = writer
        self._session = session
        self._cutter = PartCutter(plan, writer.part_bytes)
        self._book = DigestBook(plan.chunking, crc32=plan.needs_crc32)
        self._late: Sequence[bytes] = ()

    async def write_header_last(self) -> None:
        """Parts of tensors in any order, several in flight; then those that hold a header or a table."""
        parts = range(self._cutter.count)
        late = [index for index in parts if self._cutter.is_late(index)]
        waiting = set(late)
        await self._write_parts([index for index in parts if index not in waiting])
        # The tensors' bytes in late parts have to be hashed before the header can be made.
        await fan_out(self._hash_tensors_of, late, limit=self._writer.concurrency)
        self._late = await self._finish(self._book.digests())
        await self._write_parts(late)

    async def write_in_order(self) -> None:
        """Checksums first, then one part after another."""
        digests = await digest_ahead(self._plan, self._session)
        self._late = await self._finish(digests)
        for index in range(self._cutter.count):
            await self._write_part(index)

    async def _finish(self, digests: Digests) -> Sequence[bytes]:
        return await self._session.threads.run(
            without_collection(self._plan.finish), digests, self._session.source.read
        )

    async def _write_parts(self, indices: Sequence[int]) -> None:
        await fan_out(self._write_part, indices, limit=self._writer.concurrency)

    async def _write_part(self, index: int) -> None:
        session = self._session
        size = self._cutter.size(index)
        async with session.budget.reserve(size):
            spans, views = await self._gather(index)
            checksum, sent = await session.threads.run(without_collection(self._hash), spans, views)
            await self._writer.write_part(index, sent, crc32c=checksum)
        last = next((span.tensor for span in reversed(spans) if span.tensor is not None), None)
        session.report.advance(size, tensor=None if last is None else session.names[last])

    async def _hash_tensors_of(self, index: int) -> None:
        async with self._session.budget.reserve(self._cutter.size(index)):
            spans, views = await self._gather(index, tensors_only=True)
            await self._session.threads.run(self._book.hash_part, spans, views)

    async def _gather(self, index: int, *, tensors_only: bool = False) -> tuple[list[Span], list[Buffer]]:
        """The spans of a part, with the bytes of each; those of zeros are empty."""
        if self._session.source.in_memory:
            # Thousands of small tensors in one part would hold up the loop, so all of it is done in a thread.
            return await self._session.threads.run(without_collection(self._gather_here), index, tensors_only)
        spans = self._wanted(index, tensors_only)
        return spans, [await self._fetch(span) for span in spans]

    def _gather_here(self, index: int, tensors_only: bool) -> tuple[list[Span], list[Buffer]]:
        spans = self._wanted(index, tensors_only)
        read = self._session.source.read
        return spans, [
            self._late_view(span)
            if span.tensor is None
            else read(span.tensor, span.start, span.start + span.size)
            for span in spans
        ]

    def _wanted(self, index: int, tensors_only: bool) -> list[Span]:
        return [s for s in self._cutter.spans(index) if s.tensor is not None or not tensors_only]

    async def _fetch(self, span: Span) -> Buffer:
        if span.tensor is None:
            return self._late_view(span)
        return await self._session.source.fetch(span.tensor, span.start, span.start + span.size)

    def _late_view(self, span: Span) -> Buffer:
        if span.late is None:
            return b""
        return memoryview(self._late[span.late])[span.start : span.start + span.size]

    def _hash(self, spans: Sequence[Span], views: Sequence[Buffer]) -> tuple[int, list[Buffer]]:
        return self._book.hash_part(spans, views), _sent(spans, views)


def _sent(spans: Sequence[Span], views: Sequence[Buffer]) -> list[Buffer]:
    sent: list[Buffer] = []
    for span, view in zip(spans, views, strict=True):
        if span.tensor is None and span.late is None:
            sent.extend(zeros(span.size))
        else:
            sent.append(view)
    return sent


async def digest_ahead(plan: FilePlan, session: WriteSession) -> Digests:
    """Hash all payloads before the first byte is written, in several threads; known checksums are reused."""
    chunking = plan.chunking

    async def digest(payload: Payload) -> Digests:
        known = session.source.known_checksums(payload.tensor, chunking.chunk_bytes)
        if known is not None and not plan.needs_crc32:
            checksums = np.zeros(chunking.count, np.uint32)
            chunking.of_tensor(payload.tensor, checksums)[:] = known
            return Digests(checksums)
        return await session.threads.run(
            lambda: digest_payloads(chunking, [payload], session.source.read, crc32=plan.needs_crc32)
        )

    checksums = np.zeros(chunking.count, np.uint32)
    crc32 = [0] * len(chunking.sizes) if plan.needs_crc32 else []
    for payload, part in zip(plan.payloads, await fan_out(digest, plan.payloads, limit=2), strict=True):
        checksums |= part.checksums
        if plan.needs_crc32:
            crc32[payload.tensor] = part.crc32[payload.tensor]
    return Digests(checksums, tuple(crc32))
