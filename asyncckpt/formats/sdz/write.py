"""Writing an SDZ archive: its entries as they are, or compressed.

Stored entries are laid out before a byte is written, and every tensor is readable by range. Compressed ones are made as
they are written, in frames that follow the arrays inside: every array begins a frame, so it can be inflated alone. The
record of the frames (frames.py) comes last, when their sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from asyncckpt.formats.kit.deflate import EMPTY_STREAM, compress_frames, size_bound
from asyncckpt.formats.kit.encode import digest_content
from asyncckpt.formats.kit.index import FileInfo, ParseSteps, StoredTensor
from asyncckpt.formats.kit.made import MadeFile
from asyncckpt.formats.kit.metadata_json import with_shards
from asyncckpt.formats.kit.plan import Digests, FilePlan, Payload, StreamPlan, TensorBytes
from asyncckpt.formats.kit.zip import DEFLATED, DESCRIPTOR_FLAG, STORED, ZipEntry
from asyncckpt.formats.sdnb.header import ALIGNMENT
from asyncckpt.formats.sdz.frames import encode_record
from asyncckpt.formats.sdz.seal import entry_header, entry_trailer, sealed_directory
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import crc32, crc32_combine, crc32_of_region, crc32c
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.ranges import ByteRange
from asyncckpt.model.tensors import TensorTable

MAX_PADDING = ALIGNMENT


# -- stored --------------------------------------------------------------------------------------------------


class _Placed(NamedTuple):
    """A STORED entry: its header's place and its data's."""

    plan: FilePlan
    header_offset: int
    data_offset: int

    def entry(self, crc32: int = 0) -> ZipEntry:
        size = self.plan.size
        return ZipEntry(
            self.plan.name, STORED, crc32, size, size, self.header_offset, data_offset=self.data_offset
        )


def plan_stored(plans: Sequence[FilePlan], name: str) -> FilePlan:
    """An archive of entries as they are: every tensor stays readable by range."""
    placed = []
    position = 0
    for plan in plans:
        header_bytes = len(entry_header(_Placed(plan, position, 0).entry()))
        placed.append(_Placed(plan, position, position + header_bytes))
        position += header_bytes + plan.size
    payloads: list[Payload] = []
    inline: list[Payload] = []
    late: list[ByteRange] = []
    for item in placed:
        at = item.data_offset
        payloads += (replace(p, offset=p.offset + at) for p in item.plan.payloads)
        inline += (replace(p, offset=p.offset + at) for p in item.plan.inline)
        late.append(ByteRange(item.header_offset, at))
        late += (ByteRange(r.start + at, r.end + at) for r in item.plan.deferred)
    size = position + len(sealed_directory([item.entry() for item in placed], position))
    late.append(ByteRange(position, size))

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        regions: list[bytes] = []
        entries = []
        for item in placed:
            inner = item.plan.finish(digests, read)
            crc = file_crc32(item.plan, inner, digests.crc32)
            entries.append(item.entry(crc))
            regions += [entry_header(entries[-1]), *inner]
        return [*regions, sealed_directory(entries, position)]

    return FilePlan(
        name,
        size,
        tuple(payloads),
        tuple(late),
        plans[0].chunking,
        finish,
        needs_crc32=True,
        inline=tuple(inline),
        describe=partial(
            _describe, [(item.data_offset, item.data_offset + item.plan.size) for item in placed]
        ),
    )


def _describe(
    entries: Sequence[tuple[int, int]], metadata: CheckpointMetadata, digests: Digests
) -> CheckpointMetadata:
    """The offset of a tensor is that in its entry, as the SDNB file says it."""

    starts = np.array(sorted(start for start, _ in entries), np.int64)
    groups = []
    for shard in metadata.shards:
        table = TensorTable.of(shard.tensors)
        groups.append(table.at(table.offsets - starts[np.searchsorted(starts, table.offsets, "right") - 1]))
    return with_shards(metadata, groups)


def file_crc32(plan: FilePlan, late: Sequence[bytes], sums: Sequence[int]) -> int:
    """The CRC32 of a whole planned file, from those of its parts; `sums` are those of the content's tensors."""
    runs = [(r.start, r.end, crc32(data)) for r, data in zip(plan.deferred, late, strict=True)]
    runs += [(p.offset, p.end, sums[p.tensor]) for p in plan.payloads if p.size]
    return crc32_of_region(runs, 0, plan.size)


# -- compressed ----------------------------------------------------------------------------------------------


def plan_deflated(
    plans: Sequence[FilePlan],
    name: str,
    *,
    level: int,
    threads: int | None,
    parse: Callable[[FileInfo], ParseSteps],
) -> StreamPlan:
    """An archive of compressed entries, made as it is written; `parse` reads it."""
    frames = sum(1 for plan in plans for _ in cut_frames(plan))
    raw = sum(plan.size for plan in plans)
    names = sum(len(plan.name) for plan in plans)
    bound = size_bound(raw, frames) + 8 * frames + 300 * len(plans) + 2 * names + 256
    made = [MadeFile()]

    def chunks(read: TensorBytes) -> Iterator[bytes]:
        made[:] = [MadeFile()]
        return deflated_archive(plans, read, made[0], level=level, threads=threads)

    def stored() -> Sequence[StoredTensor]:
        return made[0].parse(parse(FileInfo(name, made[0].size))).tensors

    return StreamPlan(name, bound, chunks, stored=stored)


class _Cut(NamedTuple):
    """Bytes [start, end) of the inner file that become one frame; `payload` begins there, if there is one."""

    start: int
    end: int
    payload: Payload | None = None


def cut_frames(plan: FilePlan) -> Iterator[_Cut]:
    """Frames that begin where arrays begin, so that an array can be inflated alone.

    Padding after an array belongs to its last frame.
    """
    step = plan.chunking.chunk_bytes
    position = 0
    payloads = sorted((p for p in plan.payloads if p.size), key=lambda p: p.offset)
    for number, payload in enumerate(payloads):
        yield from (_Cut(a, min(a + step, payload.offset)) for a in range(position, payload.offset, step))
        following = payloads[number + 1].offset if number + 1 < len(payloads) else payload.end
        position = following if following - payload.end < MAX_PADDING else payload.end
        for start in range(payload.offset, payload.end, step):
            end = start + step
            yield _Cut(start, end if end < payload.end else position, payload)
    yield from (_Cut(a, min(a + step, plan.size)) for a in range(position, plan.size, step))


class _Deflated(NamedTuple):
    """An entry that was made; `crc32c` is that of its bytes as stored, `frames` are (raw, stored) bytes of each."""

    entry: ZipEntry
    crc32c: int
    frames: list[tuple[int, int]]


def deflated_archive(
    plans: Sequence[FilePlan], read: TensorBytes, made: MadeFile, *, level: int, threads: int | None
) -> Iterator[bytes]:
    """The bytes of the archive, in order. Closing the generator ends its threads."""
    digests = digest_content(plans[0].chunking, read)
    entries: list[_Deflated] = []
    for plan in plans:
        views = _frame_views(plan, plan.finish(digests, read), read)
        entries.append((yield from _deflated_entry(plan, views, made, level=level, threads=threads)))
    record = encode_record([done.frames for done in entries])
    yield made.keep(record)
    directory = sealed_directory(
        [done.entry for done in entries],
        made.size,
        record_bytes=len(record),
        sums=[done.crc32c for done in entries],
    )
    yield made.keep(directory)


def _deflated_entry(
    plan: FilePlan, views: Iterator[list[Buffer]], made: MadeFile, *, level: int, threads: int | None
) -> Generator[bytes, None, _Deflated]:
    """One entry: local header, frames, data descriptor."""
    # Whether the sizes need 64 bits is decided by the raw size: it is known before the data is.
    entry = ZipEntry(plan.name, DEFLATED, 0, 0, plan.size, made.size, DESCRIPTOR_FLAG)
    yield made.keep(entry_header(entry))
    data_offset = made.size
    sizes: list[tuple[int, int]] = []
    crc = compressed = total = 0
    with closing(compress_frames(views, level=level, threads=threads)) as frames:
        for cut, frame in zip(cut_frames(plan), frames, strict=True):
            sizes.append((frame.raw_bytes, len(frame.data)))
            crc = crc32_combine(crc, frame.crc32, frame.raw_bytes)
            compressed += len(frame.data)
            total = crc32c(frame.data, total)
            yield made.keep(frame.data) if cut.payload is None else made.skip(frame.data)
    compressed += len(EMPTY_STREAM)
    entry = replace(entry, crc32=crc, compressed=compressed, data_offset=data_offset)
    yield made.keep(EMPTY_STREAM + entry_trailer(entry))
    return _Deflated(entry, crc32c(EMPTY_STREAM, total), sizes)


def _frame_views(plan: FilePlan, late: Sequence[bytes], read: TensorBytes) -> Iterator[list[Buffer]]:
    regions = list(zip(plan.deferred, late, strict=True))
    for cut in cut_frames(plan):
        if cut.payload is None:
            yield [_outside(regions, cut.start, cut.end)]
            continue
        start, end = cut.start - cut.payload.offset, min(cut.end, cut.payload.end) - cut.payload.offset
        views: list[Buffer] = [read(cut.payload.tensor, start, end)]
        if cut.end > cut.payload.end:
            views.append(bytes(cut.end - cut.payload.end))
        yield views


def _outside(regions: Sequence[tuple[ByteRange, bytes]], start: int, end: int) -> bytes:
    """Bytes of a file outside its payloads: late regions, and zeros."""
    data = bytearray(end - start)
    for region, content in regions:
        first, last = max(start, region.start), min(end, region.end)
        if first < last:
            data[first - start : last - start] = content[first - region.start : last - region.start]
    return bytes(data)
