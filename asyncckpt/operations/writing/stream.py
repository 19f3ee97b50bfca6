"""Writing a file that is made while it is written: compressed or encrypted, its size known only at the end."""

from __future__ import annotations

from collections.abc import Iterator

from asyncckpt._aio import run_shielded
from asyncckpt.formats.kit.plan import StreamPlan
from asyncckpt.model.buffers import Buffer
from asyncckpt.operations.writing.head_last import PART_BYTES, HeadLast
from asyncckpt.operations.writing.session import FileWriting
from asyncckpt.storage.base import CLEANUP_TIMEOUT, ObjectWriter

_MOST_PARTS = 9_000


def stream_part_bytes(plan: StreamPlan) -> int:
    """Parts large enough that their number stays within what object stores allow."""
    return max(PART_BYTES, -(-plan.size_bound // _MOST_PARTS))


async def write_stream(
    plan: StreamPlan, session: FileWriting, writer: ObjectWriter, *, any_order: bool
) -> None:
    """Make the file chunk by chunk in a worker thread and write it in parts, the ones with the head last."""
    maker = _Maker(plan, session, HeadLast(writer.part_bytes, plan.head_bytes, in_order=not any_order))
    try:
        while (part := await session.threads.run(maker.next_part)) is not None:
            index, data = part
            session.count_request()
            await writer.write_part(index, [data])
            session.report.advance(len(data))
    finally:
        await run_shielded(session.threads.run(maker.close), timeout=CLEANUP_TIMEOUT)


class _Maker:
    """Runs the plan's generator; called from one worker thread at a time."""

    def __init__(self, plan: StreamPlan, session: FileWriting, cut: HeadLast) -> None:
        self._plan = plan
        self._cut = cut
        self._chunks: Iterator[bytes] = plan.chunks(session.source.read)
        self._parts = self._made()

    def next_part(self) -> tuple[int, Buffer] | None:
        """The next part to write, with its index; None at the end."""
        return next(self._parts, None)

    def close(self) -> None:
        """Stop the generators, and with them what threads they run. Safe to call twice."""
        for generator in (self._parts, self._chunks):
            close = getattr(generator, "close", None)
            if close is not None:
                close()
        self._cut.close()

    def _made(self) -> Iterator[tuple[int, Buffer]]:
        yield from self._cut.add(bytes(self._plan.head_bytes))
        for chunk in self._chunks:
            yield from self._cut.add(chunk)
        yield from self._cut.end(self._plan.head())
