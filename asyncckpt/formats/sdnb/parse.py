"""Reading SDNB: one file, a set of shards, or a bare SameDiff FlatBuffer."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError
from asyncckpt.formats.kit.binary import LE_U32
from asyncckpt.formats.kit.block.header import indexed
from asyncckpt.formats.kit.block.order import SHARD_TENSORS
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Index,
    Need,
    ParseSteps,
    StoredTensor,
    need_exactly,
    open_ahead,
)
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.formats.sdnb.graph.read import MAX_GRAPH_BYTES, Graph, looks_like_graph, read_graph
from asyncckpt.formats.sdnb.header import (
    BLOCK_KEY,
    CREATION_KEY,
    HEADER_BYTES,
    MAGIC,
    RESERVED_KEYS,
    ROOT_BYTES,
    SHARD_SIZES_MEMBER,
    VERSION,
    Header,
    SdnbOptions,
)
from asyncckpt.formats.sdnb.java_manifest import ArrayRange, decode_manifest
from asyncckpt.formats.sdnb.shards import ShardName
from asyncckpt.formats.sdnb.variables import Collector, Found, SdnbFile
from asyncckpt.model.checksums import Checksums, chunk_checksums
from asyncckpt.model.metadata import CheckpointMetadata, Json

NAME = "sdnb"
BARE_VERSION = "samediff-fb"
_BLOCK_TEXT = re.compile(rb'\{"block":1,"at":"[0-9]{16}","outside":"')


def parse_source(source: FileInfo, options: SdnbOptions) -> ParseSteps:
    """Raises FormatError subclasses; IncompleteCheckpointError where a file of a set is missing."""
    head = yield Need(0, HEADER_BYTES + ROOT_BYTES)
    if bytes(head[:4]) != MAGIC:
        return (yield from _parse_bare(source, options))
    names = ShardName.parse(source.name)
    if names is None or names.count == 1:
        read = [(yield from read_file("", source.size))]
        return (yield from index_files(read, ("",), options))
    siblings = [names.shard(i) for i in range(names.count) if i != names.index]
    numbers = {name: number for number, name in enumerate(("", *siblings))}
    read = []
    yield from open_ahead(siblings)
    for i in range(names.count):
        name = "" if i == names.index else names.shard(i)
        size = source.size if name == "" else None
        read.append(replace((yield from read_file(name, size)), number=numbers[name]))
    return (yield from index_files(read, tuple(numbers), options))


def _parse_bare(source: FileInfo, options: SdnbOptions) -> ParseSteps:
    """The older serialiser's file: a FlatGraph and nothing else."""
    start = yield Need(0, 128)
    if not looks_like_graph(start, source.size):
        raise LayoutError(f"not an SDNB file: it begins with {bytes(start[:4]).hex(' ')}")
    if source.size > MAX_GRAPH_BYTES:
        raise LimitExceededError(f"a SameDiff FlatBuffer has at most 2 GiB, the file has {source.size} bytes")
    window = yield from need_exactly(0, source.size, "the graph")
    graph = read_graph(window, LE_U32.unpack_from(window)[0])
    if _read_block(graph, window) is not None:
        raise LayoutError("the file has an asyncckpt block, but no SDNB header: its beginning is missing")
    file = SdnbFile(Header(source.size, 0), {}, graph, window, 0, [], None, source.size)
    index = yield from index_files([file], ("",), options)
    return replace(index, version=BARE_VERSION)


# -- one file --------------------------------------------------------------------------------------------------


def read_file(file: str, size: int | None) -> Generator[Need, memoryview, SdnbFile]:
    """Decode one file; `size` is None where it is not known. Raises FormatError subclasses."""
    what = f"file {file!r}" if file else "the file"
    head = yield from need_exactly(0, HEADER_BYTES + ROOT_BYTES, f"the header of {what}", file=file)
    header = Header.decode(head)
    end = header.manifest_offset + header.manifest_length
    # One byte more is asked for where the size is unknown: it must not be there.
    raw = yield Need(header.manifest_offset, header.manifest_length + (size is None), file)
    if size is None:
        size = header.manifest_offset + len(raw)
    if size < end or len(raw) < header.manifest_length:
        raise TruncatedError(f"the manifest of {what} ends at {end}, the file at {size}")
    if size > end:
        raise LayoutError(f"bytes are left over after the manifest of {what}, which ends at {end}")
    manifest = decode_manifest(raw)
    taken = _check_ranges(manifest, header)
    root = HEADER_BYTES + LE_U32.unpack_from(head, HEADER_BYTES)[0]
    start, stop = _window_around(root, taken, header)
    if stop - start > MAX_GRAPH_BYTES:
        raise LimitExceededError(
            f"the graph of {what} would have {stop - start} bytes, at most 2 GiB are read"
        )
    window = yield from need_exactly(start, stop - start, f"the graph of {what}", file=file)
    graph = read_graph(window, root - start)
    regions = [(0, head[:HEADER_BYTES]), (start, window), (header.manifest_offset, raw)]
    block = _read_block(graph, window)
    if block is not None and start > HEADER_BYTES:
        # Metadata was added later: the first graph still stands before the arrays, and is covered as well.
        old = yield from need_exactly(HEADER_BYTES, taken[0][0] - HEADER_BYTES, "the first graph", file=file)
        regions.append((HEADER_BYTES, old))
    return SdnbFile(header, manifest, graph, window, start, regions, block, size)


def _read_block(graph: Graph, window: memoryview) -> Block | None:
    """Take the block out of the graph's metadata; None in a foreign file.

    Raises LayoutError when there is one that the graph does not name.

    A damaged key or table must not make a file of ours look foreign, which would lose its tree in silence.
    """
    text = graph.metadata.pop(BLOCK_KEY, None)
    if text is not None:
        return Block.decode(load_json(text, "the asyncckpt block"))
    if _BLOCK_TEXT.search(window):
        raise LayoutError("the file has an asyncckpt block that its graph does not name: it is damaged")
    return None


def _check_ranges(manifest: dict[str, ArrayRange], header: Header) -> list[tuple[int, int, str]]:
    """The arrays that take room, by their place. Raises LayoutError when they overlap or leave the file."""
    taken = []
    for name, (offset, length) in manifest.items():
        if offset < HEADER_BYTES + ROOT_BYTES or length < 0 or offset + length > header.manifest_offset:
            raise LayoutError(
                f"array {name!r} can't have {length} bytes at {offset}: "
                f"arrays end before the manifest at {header.manifest_offset}"
            )
        if length:
            taken.append((offset, offset + length, name))
    taken.sort()
    for (_, end, first), (start, _, second) in pairwise(taken):
        if start < end:
            raise LayoutError(f"arrays {first!r} and {second!r} overlap at byte {start}")
    return taken


def _window_around(root: int, taken: Sequence[tuple[int, int, str]], header: Header) -> tuple[int, int]:
    """The gap between arrays in which the graph's root lies."""
    start, stop = HEADER_BYTES, header.manifest_offset
    for begin, end, name in taken:
        if end <= root:
            start = end
        elif begin <= root:
            raise LayoutError(f"the graph's root lies inside array {name!r}, at {root}")
        else:
            stop = begin
            break
    if root + ROOT_BYTES > stop:
        raise TruncatedError(f"the graph's root lies at {root}, the graph ends at {stop}")
    return start, stop


# -- from files to the index -----------------------------------------------------------------------------------


def index_files(
    files: list[SdnbFile], names: tuple[str, ...], options: SdnbOptions
) -> Generator[Need, memoryview, Index]:
    """`files[0]` leads: its graph gives the order, its block the checksums of the whole set.

    Takes the variables out of `files`.
    """
    collector = Collector(names)
    yield from _collect(collector, files, options)
    leader = files[0]
    collector.check_overlaps()
    if leader.block is None and any(file.block is not None for file in files):
        raise LayoutError(
            "shard 0 has no asyncckpt block, another shard does: they are of different checkpoints"
        )
    index = indexed(
        collector.tensors(),
        None if leader.block is None else _with_shards(leader.block),
        format=NAME,
        version=str(VERSION),
        metadata=None if leader.block else _foreign_metadata(leader.graph.metadata),
        header_extents=_structure(files) if leader.block else None,
        files=tuple(collector.files),
        warnings=tuple(collector.warnings),
        details=_details(files),
    )
    chunk_bytes = 0
    if leader.block is not None:
        _check_files(files, index.tensors, collector.names)
        chunk_bytes = leader.block.chunk_bytes
    updater = _updater_tensors(collector, files, chunk_bytes)
    return replace(index, tensors=(*index.tensors, *updater), files=tuple(collector.files))


def _with_shards(block: Block) -> Block:
    """The block with the sizes of its shards under the name that other formats have for them."""
    members = {} if block.metadata is None else block.metadata
    if not isinstance(members, dict):
        return block
    members = dict(members)
    if SHARD_SIZES_MEMBER in members:
        members[SHARD_TENSORS] = members.pop(SHARD_SIZES_MEMBER)
    return replace(block, metadata=members)


def _collect(
    collector: Collector, files: list[SdnbFile], options: SdnbOptions
) -> Generator[Need, memoryview, None]:
    for number, file in enumerate(files):
        yield from collector.add(file)
        if options.load_updater_state:
            yield from collector.add_updater(file)
        # Of very many small variables the tables are much larger than the file: they are let go here.
        files[number] = replace(file, graph=replace(file.graph, variables=()))


def _check_files(
    files: Sequence[SdnbFile], tensors: Sequence[StoredTensor], names: Sequence[Sequence[str]]
) -> None:
    """Every byte outside the arrays, file by file; and that all files are of one checkpoint."""
    extents: dict[int, list[Extent]] = {file.number: [] for file in files}
    for tensor in tensors:
        for extent in tensor.extents:
            extents.setdefault(extent.file, []).append(extent)
    for file in files:
        if file.block is None:
            raise LayoutError(
                "a shard has no asyncckpt block, shard 0 does: they are of different checkpoints"
            )
        spans = ((extent.offset, extent.end) for extent in extents[file.number])
        file.block.check_outside(file.regions, spans, size=file.size)
    whole = {tensor.name: tensor for tensor in tensors}
    for file, variables in zip(files[1:], names[1:], strict=True):
        own = [whole[name].checksums for name in variables if name in whole]
        expected = np.concatenate([np.zeros(0, np.uint32), *(sums for sums in own if sums is not None)])
        if file.block is None or not np.array_equal(file.block.checksums, expected):
            raise LayoutError(
                "the checksums of a shard are not those of shard 0: they are of different checkpoints"
            )
    if len(files) > 1:
        missing = next((t.name for t in tensors if t.absent is not None), None)
        if missing is not None:
            raise LayoutError(f"no shard of the set holds the variable {missing!r}")


def _structure(files: Sequence[SdnbFile]) -> tuple[Extent, ...]:
    return tuple(Extent(start, len(data), file.number) for file in files for start, data in file.regions)


def _foreign_metadata(texts: dict[str, str]) -> CheckpointMetadata:
    """What a file of another writer says: its own metadata strings."""
    created = texts.get(CREATION_KEY, "")
    moment = None
    if created.isascii() and created.isdigit() and len(created) <= 14:
        moment = datetime.fromtimestamp(int(created) / 1000, UTC)
    return CheckpointMetadata(
        timestamp=moment, custom_fields={k: v for k, v in texts.items() if k not in RESERVED_KEYS}
    )


def _updater_tensors(
    collector: Collector, files: Sequence[SdnbFile], chunk_bytes: int
) -> Iterable[StoredTensor]:
    """In our own files the graph was verified as a whole, so what it holds gets checksums here."""
    windows = {file.number: file for file in files}
    for name, found in collector.updater.items():
        tensor = found.stored(name)
        if chunk_bytes and tensor.frames is None and found.extents[0].file in windows:
            tensor = replace(
                tensor,
                checksums=_hash(windows[found.extents[0].file], found, chunk_bytes),
                chunk_bytes=chunk_bytes,
            )
        yield tensor


def _hash(file: SdnbFile, found: Found, chunk_bytes: int) -> Checksums:
    base = file.window_start
    data = memoryview(b"".join(file.window[e.offset - base : e.end - base] for e in found.extents))
    return chunk_checksums(data, chunk_bytes)


def _details(files: Sequence[SdnbFile]) -> dict[str, Json]:
    """What `inspect` shows: the header, the graph, its metadata and the training state."""
    leader = files[0]
    updater: dict[str, list[str]] = {}
    for state in leader.graph.updater:
        updater.setdefault(state.parameter, []).append(state.key)
    details: dict[str, Json] = {
        "manifestOffset": leader.header.manifest_offset,
        "manifestLength": leader.header.manifest_length,
        "graphBytes": len(leader.window),
        "graph": leader.graph.details,
        "graphMetadata": leader.graph.metadata,
        "appendedArrays": sum(len(file.manifest) for file in files),
    }
    if updater:
        details["updaterState"] = updater
    if len(files) > 1:
        details["shards"] = len(files)
    return details
