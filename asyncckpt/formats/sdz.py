"""SDZ: one SDNB file, or a set of them, in a ZIP archive. Extension `.sdz`.

=============== ======= ==========================================================================
part            bytes   content
=============== ======= ==========================================================================
local header    30 + n  `50 4B 03 04`; entry `model`, or `model.shard{i}-of-{N}.sdnb` in order; STORED entries have
                        CRC32 and sizes here and are padded to a multiple of 64, DEFLATE ones a descriptor after
data            ...     the SDNB file, whole, or DEFLATE frames that follow its arrays (`deflate`)
descriptor      16      DEFLATE only: `50 4B 07 08`, CRC32, sizes
...                     the next entry
frame record    ...     DEFLATE only: where the frames are (`sdz_frames`)
directory       ...     central directory and end records (`zip_archive`); Zip64 from 4 GiB on
=============== ======= ==========================================================================

The `asyncckpt` block is that of the SDNB files inside: positions in it count from the inner file's start.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from asyncckpt.errors import IncompleteCheckpointError, LayoutError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.deflate import EMPTY_STREAM, compress_frames, size_bound
from asyncckpt.formats.flatgraph import DTYPE_CODES
from asyncckpt.formats.flatgraph_build import UpdaterState
from asyncckpt.formats.index import Index, Need, ParseSteps, SourceInfo
from asyncckpt.formats.plan import (
    AnyPlan,
    Content,
    Digests,
    FilePlan,
    Payload,
    StreamPlan,
    TensorBytes,
)
from asyncckpt.formats.render import digest_content
from asyncckpt.formats.sdnb import check_updater_state, name_losses, plan_files
from asyncckpt.formats.sdnb_header import ALIGNMENT, SdnbOptions
from asyncckpt.formats.sdnb_parse import parse_source
from asyncckpt.formats.sdnb_shards import ShardName
from asyncckpt.formats.sdz_entries import EntrySource, FramedEntry, StoredEntry, open_inflated
from asyncckpt.formats.sdz_frames import FramePointer, FrameSizes, encode_record, read_record
from asyncckpt.formats.sdz_seal import entry_header, entry_trailer, is_sealed, seal_digests, sealed_directory
from asyncckpt.formats.zip_archive import (
    DEFLATED,
    DESCRIPTOR_FLAG,
    MAGIC,
    STORED,
    Archive,
    ZipEntry,
    ZipLimits,
    read_archive,
)
from asyncckpt.model.digests import Buffer, crc32_combine, crc32c
from asyncckpt.model.metadata import now
from asyncckpt.model.ranges import ByteRange

ENTRY = "model"
MAX_PADDING = ALIGNMENT
_ZEROS = bytes(1 << 16)


# -- plan ------------------------------------------------------------------------------------------------------


def inner_plans(content: Content, options: SdnbOptions) -> list[FilePlan]:
    """The SDNB files of the archive, named as its entries, shard 0 first."""
    plans = plan_files(content, f"{ENTRY}.sdnb", options)
    if len(plans) == 1:
        return [replace(plans[0], name=ENTRY)]
    return [plans[-1], *plans[:-1]]


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
    late: list[ByteRange] = []
    for item in placed:
        at = item.data_offset
        payloads += (replace(p, offset=p.offset + at) for p in item.plan.payloads)
        late.append(ByteRange(item.header_offset, at))
        late += (ByteRange(r.start + at, r.end + at) for r in item.plan.late)
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

    return FilePlan(name, size, tuple(payloads), tuple(late), plans[0].chunking, finish, needs_crc32=True)


def plan_deflated(plans: Sequence[FilePlan], name: str, *, level: int, threads: int | None) -> StreamPlan:
    """An archive of compressed entries, made as it is written."""
    frames = sum(1 for plan in plans for _ in cut_frames(plan))
    raw = sum(plan.size for plan in plans)
    names = sum(len(plan.name) for plan in plans)
    bound = size_bound(raw, frames) + 8 * frames + 300 * len(plans) + 2 * names + 256

    def chunks(read: TensorBytes) -> Iterator[bytes]:
        return deflated_archive(plans, read, level=level, threads=threads)

    return StreamPlan(name, bound, chunks)


# -- encode ----------------------------------------------------------------------------------------------------


def file_crc32(plan: FilePlan, late: Sequence[bytes], crc32: Sequence[int]) -> int:
    """The CRC32 of a whole planned file, from those of its parts."""
    parts: list[tuple[int, int, int]] = [
        (r.start, r.end, zlib.crc32(data)) for r, data in zip(plan.late, late, strict=True)
    ]
    parts += [(p.offset, p.end, crc32[p.tensor]) for p in plan.payloads if p.size]
    value = position = 0
    for start, end, own in sorted(parts):
        value = crc32_combine(_zeros_crc32(start - position, value), own, end - start)
        position = end
    return _zeros_crc32(plan.size - position, value)


def _zeros_crc32(count: int, value: int) -> int:
    while count > 0:
        value = zlib.crc32(_ZEROS[:count], value)
        count -= len(_ZEROS)
    return value


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


def _frame_views(plan: FilePlan, late: Sequence[bytes], read: TensorBytes) -> Iterator[list[Buffer]]:
    regions = list(zip(plan.late, late, strict=True))
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


def deflated_archive(
    plans: Sequence[FilePlan], read: TensorBytes, *, level: int, threads: int | None
) -> Iterator[bytes]:
    """The bytes of the archive, in order. Closing the generator ends its threads."""
    digests = digest_content(plans[0].chunking, read)
    entries: list[ZipEntry] = []
    tables: list[list[tuple[int, int]]] = []
    sums: list[int] = []
    position = 0
    for plan in plans:
        late = plan.finish(digests, read)
        # Whether the sizes need 64 bits is decided by the raw size: it is known before the data is.
        open_entry = ZipEntry(plan.name, DEFLATED, 0, 0, plan.size, position, DESCRIPTOR_FLAG)
        header = entry_header(open_entry)
        yield header
        table: list[tuple[int, int]] = []
        crc = compressed = total = 0
        made = compress_frames(_frame_views(plan, late, read), level=level, threads=threads)
        try:
            for frame in made:
                table.append((frame.raw_bytes, len(frame.data)))
                crc = crc32_combine(crc, frame.crc32, frame.raw_bytes)
                compressed += len(frame.data)
                total = crc32c(frame.data, total)
                yield frame.data
        finally:
            made.close()  # type: ignore[attr-defined]
        compressed += len(EMPTY_STREAM)
        entry = replace(open_entry, crc32=crc, compressed=compressed, data_offset=position + len(header))
        trailer = entry_trailer(entry)
        yield EMPTY_STREAM + trailer
        position = entry.end + len(trailer)
        entries.append(entry)
        sums.append(crc32c(EMPTY_STREAM, total))
        tables.append(table)
    record = encode_record(tables)
    yield record
    yield sealed_directory(entries, position + len(record), record_bytes=len(record), sums=sums)


# -- decode ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SdzOptions:
    """What reading needs: limits, and the options of the SDNB files inside."""

    limits: ZipLimits
    inner: SdnbOptions


def parse_archive(source: SourceInfo, options: SdzOptions) -> ParseSteps:
    """Raises FormatError subclasses."""
    start = yield Need(0, len(MAGIC))
    if bytes(start) != MAGIC:
        raise LayoutError(f"not an SDZ file: it begins with {bytes(start).hex(' ')}")
    archive = yield from read_archive(source, options.limits)
    sealed = seal_digests(archive) if is_sealed(archive) else None
    leader = choose_leader(archive.entries)
    sources = yield from _open_entries(archive, leader, options.limits)
    index = yield from _parse_inner(sources, leader, options.inner)
    own = (digest for entry in sources.values() for digest in entry.digests())
    digests = tuple(own) if sealed is None else sealed
    return replace(_archive_index(index, sources, leader, archive.entries), digests=digests)


def choose_leader(entries: dict[str, ZipEntry]) -> str:
    """The entry that is opened: shard 0 of a set, or the only model. Raises LayoutError."""
    sets = [shard for name in entries if (shard := ShardName.parse(name)) is not None]
    if sets:
        first = replace(sets[0], index=0)
        if any(replace(shard, index=0) != first for shard in sets):
            raise LayoutError("the archive holds shards of several sets")
        missing = [first.shard(i) for i in range(first.count) if first.shard(i) not in entries]
        if missing:
            raise LayoutError(f"the archive lacks {len(missing)} shards of its set, such as {missing[0]!r}")
        return first.shard(0)
    known = [name for name in (ENTRY, f"{ENTRY}.sdnb") if name in entries]
    candidates = known or [name for name in entries if name.endswith(".sdnb")] or list(entries)
    if len(candidates) != 1:
        found = ", ".join(repr(name) for name in list(entries)[:3]) or "nothing"
        raise LayoutError(f"the archive holds no SDNB file that could be the model: it has {found}")
    return candidates[0]


def _open_entries(
    archive: Archive, leader: str, limits: ZipLimits
) -> Generator[Need, memoryview, dict[str, EntrySource]]:
    wanted = ShardName.parse(leader)
    names = [leader] if wanted is None else [wanted.shard(i) for i in range(wanted.count)]
    sources: dict[str, EntrySource] = {}
    tables: list[FrameSizes] | None = None
    inflated = 0
    for name in names:
        entry = archive.entries[name]
        pointer = FramePointer.of(entry)
        if entry.method == STORED:
            sources[name] = StoredEntry(entry)
        elif pointer is not None:
            if tables is None:
                tables = yield from read_record(pointer, archive.directory_offset)
            if pointer.number >= len(tables):
                raise LayoutError(f"the frame record has no frames of {name!r}")
            sources[name] = FramedEntry(entry, tables[pointer.number], limits)
        else:
            sources[name] = yield from open_inflated(entry, limits, inflated)
            inflated += entry.size
    return sources


def _parse_inner(
    sources: dict[str, EntrySource], leader: str, options: SdnbOptions
) -> Generator[Need, memoryview, Index]:
    """Run the SDNB parser over the entries."""
    steps = parse_source(SourceInfo(leader, sources[leader].entry.size), options)
    try:
        need = next(steps)
        while True:
            entry = sources.get(need.file or leader)
            if entry is None:
                missing = IncompleteCheckpointError(f"the archive has no entry {need.file!r}")
                need = steps.throw(missing)
                continue
            data = yield from entry.read(need.start, need.size)
            need = steps.send(data)
    except StopIteration as stop:
        index: Index = stop.value
        return index


def _archive_index(
    index: Index, sources: dict[str, EntrySource], leader: str, entries: dict[str, ZipEntry]
) -> Index:
    files = [name or leader for name in index.files]
    tensors = []
    for tensor in index.tensors:
        extents = tensor.extents if tensor.frames is None else tensor.frames.extents
        if tensor.absent is not None or not extents:
            tensors.append(tensor)
        else:
            tensors.append(sources[files[extents[0].file]].place(tensor))
    methods = {STORED: "stored", DEFLATED: "deflate"}
    listed = [
        {"name": e.name, "method": methods[e.method], "size": e.size, "compressed": e.compressed}
        for e in list(entries.values())[:256]
    ]
    return replace(
        index,
        format=SdzFormat.name,
        tensors=tuple(tensors),
        files=("",),
        structure=None,
        details={"entries": listed, "inner": dict(index.details)},
    )


# -- the class -------------------------------------------------------------------------------------------------


class SdzFormat(ICheckpointFormat):
    """SameDiff's archive: one file to hand on, compressed or readable by range."""

    name = "sdz"
    extensions = (".sdz",)
    dtypes = frozenset(DTYPE_CODES)

    def __init__(
        self,
        *,
        compress: bool = True,
        level: int = 6,
        threads: int | None = None,
        limits: ZipLimits | None = None,
        shards: int | None = None,
        shard_limit_bytes: int = 1 << 30,
        inline_below: int = 1 << 20,
        updater_state: UpdaterState | None = None,
        load_updater_state: bool = True,
        clock: Callable[[], datetime] = now,
    ) -> None:
        if not 0 <= level <= 9:
            raise LayoutError(f"level is {level}, 0 to 9 are allowed")
        self.compress = compress
        self.level = level
        self.threads = threads
        self.options = SdzOptions(
            limits or ZipLimits(),
            SdnbOptions(
                shards=shards,
                shard_limit_bytes=shard_limit_bytes,
                inline_below=inline_below,
                updater_state=updater_state,
                load_updater_state=load_updater_state,
                clock=clock,
            ),
        )

    def sniff(self, head: memoryview, source: SourceInfo) -> bool:
        return bytes(head[:4]) == MAGIC

    def losses(self, content: Content) -> list[str]:
        losses = super().losses(content) + name_losses(content.tensors)
        return losses + check_updater_state(self.options.inner.updater_state or {})

    def plan(self, content: Content, *, name: str) -> Sequence[AnyPlan]:
        self.require_representable(content)
        plans = inner_plans(content, self.options.inner)
        if self.compress:
            return [plan_deflated(plans, name, level=self.level, threads=self.threads)]
        return [plan_stored(plans, name)]

    def parse(self, source: SourceInfo) -> ParseSteps:
        return parse_archive(source, self.options)
