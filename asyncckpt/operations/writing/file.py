"""Writing one planned file to a storage: a small one as one object, a large one in parts, its header last."""

from __future__ import annotations

from collections.abc import Callable

from asyncckpt._aio import gc_paused
from asyncckpt.formats.kit.encode import digest_file, segments
from asyncckpt.formats.kit.plan import AnyPlan, FilePlan, StreamPlan
from asyncckpt.model.checksums import Buffer
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import FileWriting, run_inline_or_threaded
from asyncckpt.operations.writing.large_file import LargeFile
from asyncckpt.operations.writing.stream import stream_part_bytes, write_stream
from asyncckpt.storage.base import ObjectInfo, ObjectWriter

SMALL_FILE_BYTES = 8 * 1024 * 1024
"""A file up to this size is written as one object, in one request."""


async def write_file(
    location: ObjectLocation,
    plan: AnyPlan,
    session: FileWriting,
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
        buffers = await session.threads.run(gc_paused()(_render), plan, session)
        committing()
        write = location.storage.write_new if exclusive else location.storage.write
        info = await write(location.key, buffers, on_commit=committed)
        session.report.advance(plan.size)
        return info
    exact, part_bytes = (plan.size, None) if isinstance(plan, FilePlan) else (None, stream_part_bytes(plan))
    writer: ObjectWriter | None = None
    try:
        async with location.storage.open_writer(
            location.key, size=exact, exclusive=exclusive, part_bytes=part_bytes
        ) as writer:
            await _write_parts(location, plan, session, writer)
            committing()
    finally:
        if writer is not None and writer.committed is not None:
            committed(writer.committed)
    assert writer.committed is not None
    return writer.committed


def _render(plan: FilePlan, session: FileWriting) -> list[Buffer]:
    read = session.source.read
    digests = digest_file(plan, read, session.checksums)
    return segments(plan, plan.finish(digests, read), read)


async def _write_parts(
    location: ObjectLocation, plan: AnyPlan, session: FileWriting, writer: ObjectWriter
) -> None:
    any_order = location.storage.capabilities.any_order
    if isinstance(plan, StreamPlan):
        await write_stream(plan, session, writer, any_order=any_order)
        return
    file = await run_inline_or_threaded(session.threads, len(plan.payloads), LargeFile, plan, writer, session)
    if any_order:
        await file.write_header_last()
    else:
        await file.write_in_order()
