"""Reading SDZ: which entries of the archive are the checkpoint, and the SDNB parser run over them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from asyncckpt.errors import IncompleteCheckpointError, LayoutError
from asyncckpt.formats.kit.index import FileInfo, Index, Need, ParseSteps, StoredTensor
from asyncckpt.formats.kit.steps import Answer, advance, clip
from asyncckpt.formats.kit.zip import (
    DEFLATED,
    MAGIC,
    STORED,
    Archive,
    ZipEntry,
    ZipLimits,
    read_archive,
)
from asyncckpt.formats.sdnb.header import SdnbOptions
from asyncckpt.formats.sdnb.parse import parse_source
from asyncckpt.formats.sdnb.shards import ShardName
from asyncckpt.formats.sdz.entries import EntrySource, FramedEntry, StoredEntry, StreamedEntry
from asyncckpt.formats.sdz.frames import FramePointer, FrameSizes, read_record
from asyncckpt.formats.sdz.seal import is_sealed, seal_digests
from asyncckpt.formats.sdz.streamed import open_stream

NAME = "sdz"
ENTRY = "model"


@dataclass(frozen=True, slots=True)
class SdzOptions:
    """What reading needs: limits, and the options of the SDNB files inside."""

    limits: ZipLimits
    inner: SdnbOptions


def parse_archive(source: FileInfo, options: SdzOptions) -> ParseSteps:
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
    placed = yield from _place_tensors(index, sources, leader, options.limits)
    return replace(_archive_index(index, archive.entries), tensors=placed, digests=digests)


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
            sources[name] = StreamedEntry(entry, (yield from open_stream(entry, limits, inflated)))
            inflated += entry.size
    return sources


def _parse_inner(
    sources: dict[str, EntrySource], leader: str, options: SdnbOptions
) -> Generator[Need, memoryview, Index]:
    """Run the SDNB parser over the entries."""
    steps = parse_source(FileInfo(leader, sources[leader].entry.size), options)
    state = advance(steps, None)
    while isinstance(state, Need):
        entry = sources.get(state.file or leader)
        answer: Answer
        if entry is None:
            answer = IncompleteCheckpointError(f"the archive has no entry {state.file!r}")
        else:
            start, end = clip(state, entry.entry.size)
            answer = yield from entry.read(start, end)
        state = advance(steps, answer)
    return state.value


def _place_tensors(
    index: Index, sources: dict[str, EntrySource], leader: str, limits: ZipLimits
) -> Generator[Need, memoryview, tuple[StoredTensor, ...]]:
    """The tensors, with their places in the archive."""
    if index.header_extents is None:
        # Nothing vouches for what the frames say they inflate to, so it is held to what others' archives may do.
        for source in sources.values():
            source.check_limits(limits)
    files = [name or leader for name in index.files]
    tensors = []
    for tensor in index.tensors:
        extents = tensor.runs
        if tensor.absent is not None or not extents:
            tensors.append(tensor)
        else:
            tensors.append((yield from sources[files[extents[0].file]].place(tensor)))
    return tuple(tensors)


def _archive_index(index: Index, entries: dict[str, ZipEntry]) -> Index:
    methods = {STORED: "stored", DEFLATED: "deflate"}
    listed = [
        {"name": e.name, "method": methods[e.method], "size": e.size, "compressed": e.compressed}
        for e in list(entries.values())[:256]
    ]
    return replace(
        index,
        format=NAME,
        files=("",),
        header_extents=None,
        details={"entries": listed, "inner": dict(index.details)},
    )
