"""Reading SDNB: one file, a set of shards, or a bare SameDiff FlatBuffer."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError, UnsupportedDtypeError
from asyncckpt.formats.binary import LE_U32, load_json
from asyncckpt.formats.block import Block
from asyncckpt.formats.flatgraph import (
    ARRAY,
    DTYPES_BY_CODE,
    MAX_GRAPH_BYTES,
    TEXT_CODES,
    FlatArray,
    Graph,
    looks_like_graph,
    read_graph,
)
from asyncckpt.formats.index import (
    Extent,
    Frames,
    Index,
    Need,
    ParseSteps,
    SourceInfo,
    StoredTensor,
    need_exactly,
)
from asyncckpt.formats.java_manifest import ArrayRange, decode_manifest
from asyncckpt.formats.metadata_json import decode_metadata, with_shards
from asyncckpt.formats.sdnb_header import (
    BLOCK_KEY,
    CREATION_KEY,
    HEADER_BYTES,
    MAGIC,
    RESERVED_KEYS,
    ROOT_BYTES,
    SHARD_SIZES_MEMBER,
    Header,
    SdnbOptions,
)
from asyncckpt.formats.sdnb_shards import ShardName
from asyncckpt.model.digests import Checksums, crc32c
from asyncckpt.model.dtype import item_size
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata

NAME = "sdnb"
BARE_VERSION = "samediff-fb"
UPDATER_PREFIX = "updaterState/"
_MAX_DIMENSION = 1 << 63
_BLOCK_TEXT = re.compile(rb'\{"block":1,"at":"[0-9]{16}","outside":"')


def parse_source(source: SourceInfo, options: SdnbOptions) -> ParseSteps:
    """Raises FormatError subclasses; IncompleteCheckpointError where a file of a set is missing."""
    head = yield Need(0, HEADER_BYTES + ROOT_BYTES)
    if bytes(head[:4]) != MAGIC:
        return (yield from _parse_bare(source, options))
    names = ShardName.parse(source.name)
    if names is None or names.count == 1:
        file = yield from read_file("", source.size)
        return (yield from index_files([file], ("",), options))
    siblings = [names.shard(i) for i in range(names.count) if i != names.index]
    numbers = {name: number for number, name in enumerate(("", *siblings))}
    read = []
    for i in range(names.count):
        name = "" if i == names.index else names.shard(i)
        file = yield from read_file(name, source.size if name == "" else None)
        read.append(replace(file, number=numbers[name]))
    return (yield from index_files(read, tuple(numbers), options))


def _parse_bare(source: SourceInfo, options: SdnbOptions) -> ParseSteps:
    """The older serialiser's file: a FlatGraph and nothing else."""
    start = yield Need(0, 128)
    if not looks_like_graph(start, source.size):
        raise LayoutError(f"not an SDNB file: it begins with {bytes(start[:4]).hex(' ')}")
    if source.size > MAX_GRAPH_BYTES:
        raise LimitExceededError(f"a SameDiff FlatBuffer has at most 2 GiB, the file has {source.size} bytes")
    window = yield from need_exactly(0, source.size, "the graph")
    graph = read_graph(window, LE_U32.unpack_from(window)[0])
    file = SdnbFile(Header(source.size, 0), {}, graph, window, 0, [], None, source.size)
    index = yield from index_files([file], ("",), options)
    return replace(index, version=BARE_VERSION)


# -- one file --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SdnbFile:
    """One file of a set, decoded. `window` holds the graph and lies at `window_start`."""

    header: Header
    manifest: dict[str, ArrayRange]
    graph: Graph
    window: memoryview
    window_start: int
    regions: list[tuple[int, memoryview]]
    block: Block | None
    size: int
    number: int = 0


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
    """The block; None in a foreign file. Raises LayoutError when there is one that the graph does not name.

    A damaged key or table must not make a file of ours look foreign, which would lose its tree in silence.
    """
    text = graph.metadata.get(BLOCK_KEY)
    if text is not None:
        return Block.decode(load_json(text.encode(), "the asyncckpt block"))
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


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a variable's bytes are."""

    dtype: str
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]
    order: Literal["C", "F"] = "C"
    swapped: bool = False

    def stored(self, name: str) -> StoredTensor:
        offset = self.extents[0].offset if self.extents else 0
        tensor = TensorMetadata(name, self.dtype, self.shape, offset)
        if not self.swapped or tensor.size == 0:
            return StoredTensor(tensor, self.extents, order=self.order)
        width = item_size(self.dtype)
        frames = Frames(tensor.size, self.extents[:1], lambda _, data: _swap(data, width))
        return StoredTensor(tensor, frames=frames, order=self.order)


def _swap(data: bytes, width: int) -> bytes:
    return np.frombuffer(data, f"V{width}").view(np.uint8).reshape(-1, width)[:, ::-1].tobytes()


class _Collector:
    """Finds the bytes of every variable of a set, and refuses what overlaps or comes twice."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.files = list(files)
        self.found: dict[str, _Found] = {}
        self.updater: dict[str, _Found] = {}
        self.listed: dict[str, StoredTensor | None] = {}
        self.warnings: list[str] = []

    def add(self, file: SdnbFile) -> Generator[Need, memoryview, None]:
        for variable in file.graph.variables:
            name = variable.name
            dtype = variable.dtype
            if variable.array is not None and variable.array.dtype:
                dtype = variable.array.dtype
            place = file.manifest.get(name)
            array = variable.array
            if place is None and (array is None or (array.spans is None and array.external is None)):
                self._list_stub(name, dtype, variable.shape, variable.kind)
                continue
            if dtype in TEXT_CODES:
                self.warnings.append(f"variable {name!r} is {TEXT_CODES[dtype]} text and was left out")
                continue
            if place is not None:
                extent = Extent(place.offset, place.length, file.number)
                found = _Found(_dtype_name(dtype, name), variable.shape or (), (extent,))
            else:
                assert array is not None
                found = yield from self._inside(file, array, variable.shape, dtype, name)
            self._put(self.found, name, found)
        unknown = [name for name in file.manifest if name not in self.found and name not in self.listed]
        if unknown:
            self.warnings.append(
                f"the manifest names {len(unknown)} arrays without a variable, such as {unknown[0]!r}"
            )

    def add_updater(self, file: SdnbFile) -> Generator[Need, memoryview, None]:
        for state in file.graph.updater:
            name = f"{UPDATER_PREFIX}{state.parameter}/{state.key}"
            if state.array.dtype in TEXT_CODES or (
                state.array.spans is None and state.array.external is None
            ):
                self.warnings.append(f"{name!r} has no numbers and was left out")
                continue
            found = yield from self._inside(file, state.array, None, state.array.dtype, name)
            self._put(self.updater, name, found)

    def _inside(
        self, file: SdnbFile, array: FlatArray, shape: tuple[int, ...] | None, dtype: int, name: str
    ) -> Generator[Need, memoryview, _Found]:
        dims, order, swapped = array.resolve(shape)
        dtype_name = _dtype_name(dtype, name)
        if array.spans is None:
            external = yield from self._external(str(array.external), dims, dtype_name, name)
            extents: tuple[Extent, ...] = (external,)
        else:
            base = file.window_start
            extents = tuple(Extent(base + a, b - a, file.number) for a, b in array.spans)
        if swapped and len(extents) != 1:
            raise LayoutError(f"variable {name!r} is big-endian and in pieces, which is not read")
        return _Found(dtype_name, dims, extents, order, swapped)

    def _external(
        self, file: str, shape: tuple[int, ...], dtype: str, name: str
    ) -> Generator[Need, memoryview, Extent]:
        """A file beside this one that is nothing but the array."""
        if not file or file in (".", "..") or any(c in file for c in "/\\:\0"):
            raise LayoutError(
                f"variable {name!r} lies in {file[:80]!r}, which is no plain name beside the file"
            )
        size = prod(shape) * item_size(dtype) if all(n >= 0 for n in shape) else -1
        if size < 0 or size >= _MAX_DIMENSION:
            raise LayoutError(f"variable {name!r} has the impossible shape {list(shape)}")
        tail = yield Need(max(0, size - 1), 2, file)
        if len(tail) != min(1, size):
            raise LayoutError(f"the external file {file!r} of {name!r} does not have {size} bytes")
        if file not in self.files:
            self.files.append(file)
        return Extent(0, size, self.files.index(file))

    def _list_stub(self, name: str, dtype: int, shape: tuple[int, ...] | None, kind: int) -> None:
        known = dtype in DTYPES_BY_CODE and all(0 <= n < _MAX_DIMENSION for n in shape or ())
        if not known or kind >= ARRAY:
            self.listed.setdefault(name, None)
            return
        tensor = TensorMetadata(name, DTYPES_BY_CODE[dtype], shape or ())
        self.listed.setdefault(
            name, StoredTensor(tensor, absent="the graph lists it, no file holds its data")
        )

    def _put(self, places: dict[str, _Found], name: str, found: _Found) -> None:
        if name in self.found or name in self.updater:
            raise LayoutError(f"the variable {name!r} is there twice")
        size = prod(found.shape) * item_size(found.dtype)
        stored = sum(extent.size for extent in found.extents)
        if any(not 0 <= n < _MAX_DIMENSION for n in found.shape) or size != stored:
            raise LayoutError(
                f"variable {name!r} of shape {list(found.shape)} and dtype {found.dtype} has {size} bytes, "
                f"{stored} are stored"
            )
        places[name] = found

    def check_overlaps(self) -> None:
        """Raises LayoutError when two arrays share bytes."""
        extents = sorted(
            (e.file, e.offset, e.end, name)
            for places in (self.found, self.updater)
            for name, found in places.items()
            for e in found.extents
            if e.size
        )
        for (file, _, end, first), (other, start, _, second) in pairwise(extents):
            if file == other and start < end:
                raise LayoutError(f"arrays {first!r} and {second!r} overlap at byte {start}")

    def tensors(self, leader: Graph) -> list[StoredTensor]:
        """In the order of the leading graph, then what only the other graphs have."""
        order = dict.fromkeys([v.name for v in leader.variables] + list(self.found))
        stored = []
        for name in order:
            found = self.found.get(name)
            tensor = found.stored(name) if found else self.listed.get(name)
            if tensor is not None:
                stored.append(tensor)
        return stored


def _dtype_name(code: int, name: str) -> str:
    dtype = DTYPES_BY_CODE.get(code)
    if dtype is None:
        raise UnsupportedDtypeError(f"variable {name!r} has the dtype number {code}, which is not read")
    return dtype


def index_files(
    files: Sequence[SdnbFile], names: tuple[str, ...], options: SdnbOptions
) -> Generator[Need, memoryview, Index]:
    """`files[0]` leads: its graph gives the order, its block the checksums of the whole set."""
    leader = files[0]
    collector = _Collector(names)
    for file in files:
        yield from collector.add(file)
        if options.load_updater_state:
            yield from collector.add_updater(file)
    collector.check_overlaps()
    tensors = collector.tensors(leader.graph)
    metadata = _foreign_metadata(leader.graph.metadata)
    if leader.block is not None:
        tensors = _with_checksums(leader.block, tensors)
        metadata = _block_metadata(leader.block, tensors)
        _check_files(files, tensors)
    elif any(file.block is not None for file in files):
        raise LayoutError(
            "shard 0 has no asyncckpt block, another shard does: they are of different checkpoints"
        )
    chunk_bytes = leader.block.chunk_bytes if leader.block else 0
    updater = _updater_tensors(collector, files, chunk_bytes)
    return Index(
        format=NAME,
        version="1",
        metadata=metadata,
        tensors=(*tensors, *updater),
        chunk_bytes=chunk_bytes,
        tree=leader.block.tree if leader.block else None,
        warnings=tuple(collector.warnings),
        files=tuple(collector.files),
        structure=_structure(files) if leader.block else None,
        details=_details(files),
    )


def _with_checksums(block: Block, tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    chunking = block.chunking([t.metadata.size for t in tensors])
    return [
        replace(t, metadata=block.boxed(t.metadata), checksums=chunking.of_tensor(number, block.checksums))
        for number, t in enumerate(tensors)
    ]


def _check_files(files: Sequence[SdnbFile], tensors: Sequence[StoredTensor]) -> None:
    """Every byte outside the arrays, file by file; and that all files are of one checkpoint."""
    spans: dict[int, list[tuple[int, int]]] = {file.number: [] for file in files}
    for tensor in tensors:
        for extent in tensor.extents:
            spans.setdefault(extent.file, []).append((extent.offset, extent.end))
    for file in files:
        if file.block is None:
            raise LayoutError(
                "a shard has no asyncckpt block, shard 0 does: they are of different checkpoints"
            )
        file.block.check_outside(file.regions, spans[file.number], size=file.size)
    whole = {tensor.name: tensor for tensor in tensors}
    for file in files[1:]:
        own = [whole[v.name].checksums for v in file.graph.variables if v.name in whole]
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


def _block_metadata(block: Block, tensors: Sequence[StoredTensor]) -> CheckpointMetadata:
    if block.metadata is None:
        return CheckpointMetadata()
    members = dict(block.metadata) if isinstance(block.metadata, dict) else {}
    sizes = members.pop(SHARD_SIZES_MEMBER, [len(tensors)])
    metadata = decode_metadata(members)
    sane = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes)
    if not sane or sum(sizes) != len(tensors):
        raise LayoutError(f"the shards of the asyncckpt block do not add up to {len(tensors)} tensors")
    remaining = iter(tensors)
    return with_shards(metadata, [[next(remaining).metadata for _ in range(n)] for n in sizes])


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
    collector: _Collector, files: Sequence[SdnbFile], chunk_bytes: int
) -> Iterable[StoredTensor]:
    """In our own files the graph was verified as a whole, so what it holds gets checksums here."""
    windows = {file.number: file for file in files}
    for name, found in collector.updater.items():
        tensor = found.stored(name)
        if chunk_bytes and tensor.frames is None and found.extents[0].file in windows:
            tensor = replace(tensor, checksums=_hash(windows[found.extents[0].file], found, chunk_bytes))
        yield tensor


def _hash(file: SdnbFile, found: _Found, chunk_bytes: int) -> Checksums:
    base = file.window_start
    data = memoryview(b"".join(file.window[e.offset - base : e.end - base] for e in found.extents))
    sums = [crc32c(data[start : start + chunk_bytes]) for start in range(0, len(data), chunk_bytes)]
    return np.array(sums, np.uint32)


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
        "graphMetadata": {k: v for k, v in leader.graph.metadata.items() if k != BLOCK_KEY},
        "appendedArrays": sum(len(file.manifest) for file in files),
    }
    if updater:
        details["updaterState"] = updater
    if len(files) > 1:
        details["shards"] = len(files)
    return details
