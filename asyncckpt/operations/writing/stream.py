"""Writing a file that is made while it is written: compressed or encrypted, its size known only at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from asyncckpt._aio import run_shielded
from asyncckpt.formats.kit.plan import StreamPlan
from asyncckpt.model.checksums import Buffer
from asyncckpt.operations.runtime import FileWriting
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectWriter

_PART_BYTES = 16 * 1024 * 1024
_MOST_PARTS = 9_000
_SPOOL_IN_MEMORY = 16 * 1024 * 1024


def stream_part_bytes(plan: StreamPlan) -> int:
    """Parts large enough that their number stays within what object stores allow."""
    return max(_PART_BYTES, -(-plan.size_bound // _MOST_PARTS))


async def write_stream(
    plan: StreamPlan, session: FileWriting, writer: ObjectWriter, *, any_order: bool
) -> None:
    """Make the file chunk by chunk in a worker thread and write it in parts, the ones with the head last."""
    maker = _Maker(plan, session, writer.part_bytes, spool=not any_order and plan.head_bytes > 0)
    try:
        while (part := await session.threads.run(maker.next_part)) is not None:
            index, data = part
            await writer.write_part(index, [data])
            session.report.advance(len(data))
    finally:
        await run_shielded(session.threads.run(maker.close), timeout=CLEANUP_TIMEOUT)


class _Maker:
    """Runs the plan's generator; called from one worker thread at a time."""

    def __init__(self, plan: StreamPlan, session: FileWriting, part_bytes: int, *, spool: bool) -> None:
        self._plan = plan
        self._part_bytes = part_bytes
        self._chunks: Iterator[bytes] = plan.chunks(session.source.read)
        self._held: list[tuple[int, bytearray]] = []
        self._parts = self._spooled_parts() if spool else self._direct_parts()
        self._spool: IO[bytes] | None = None

    def next_part(self) -> tuple[int, Buffer] | None:
        """The next part to write, with its index; None at the end."""
        return next(self._parts, None)

    def close(self) -> None:
        """Stop the generators, and with them what threads they run. Safe to call twice."""
        for generator in (self._parts, self._chunks):
            close = getattr(generator, "close", None)
            if close is not None:
                close()
        if self._spool is not None:
            self._spool.close()

    def _direct_parts(self) -> Iterator[tuple[int, Buffer]]:
        """Parts as they fill up; those that hold the head are kept back until it is known."""
        head_parts = -(-self._plan.head_bytes // self._part_bytes)
        for index, part in enumerate(self._filled()):
            if index < head_parts:
                self._held.append((index, part))
            else:
                yield index, part
        head = self._plan.head()
        for index, part in self._held:
            start = index * self._part_bytes
            piece = head[start : start + len(part)]
            part[: len(piece)] = piece
            yield index, part

    def _filled(self) -> Iterator[bytearray]:
        part = bytearray(self._plan.head_bytes)
        for chunk in self._chunks:
            part += chunk
            while len(part) >= self._part_bytes:
                yield part[: self._part_bytes]
                del part[: self._part_bytes]
        if part:
            yield part

    def _spooled_parts(self) -> Iterator[tuple[int, Buffer]]:
        """For storages that take parts in order only: the body waits in a temporary file for its head."""
        self._spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY)  # noqa: SIM115
        self._spool.write(bytes(self._plan.head_bytes))
        for chunk in self._chunks:
            self._spool.write(chunk)
        self._spool.seek(0)
        self._spool.write(self._plan.head())
        self._spool.seek(0)
        index = 0
        while part := self._spool.read(self._part_bytes):
            yield index, part
            index += 1
