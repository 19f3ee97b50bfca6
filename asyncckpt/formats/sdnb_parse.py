"""Reading SDNB: one file, a set of shards, or a bare SameDiff FlatBuffer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import prod
from typing import Literal

import numpy as np

from asyncckpt.errors import FormatError, LayoutError, LimitExceededError, TruncatedError, UnsupportedDtypeError
from asyncckpt.formats.binary import LE_U32, load_json
from asyncckpt.formats.block import Block
from asyncckpt.formats.flatgraph import (
    ARRAY,
    DTYPES_BY_CODE,
    MAX_GRAPH_BYTES,
    TEXT_CODES,
    FlatArray,
    Graph,
    read_graph,
)
from asyncckpt.formats.index import Extent, Frames, Index, Need, ParseSteps, SourceInfo, StoredTensor, need_exactly
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
    SHARD_TYPE_KEY,
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


def parse_source(source: SourceInfo, options: SdnbOptions) -> ParseSteps:
    """Raises FormatError subclasses; IncompleteCheckpointError where a file of a set is missing."""
    head = yield Need(0, HEADER_BYTES + ROOT_BYTES)
    if bytes(head[:4]) != MAGIC:
        return (yield from _parse_bare(source, options))
    names = ShardName.parse(source.name)
    if names is None or names.count == 1:
        file = yield from _read_file("", source.size)
        return (yield from _index([file], ("",), options))
    files = ["" if i == names.index else names.shard(i) for i in range(names.count)]
    order = ["", *(name for name in files if name)]
    read = []
    for name in files:
        number = order.index(name) if name == "" else 1 + [n for n in files if n].index(name)
        file = yield from _read_file(name, source.size if name == "" else None)
        read.append(replace(file, number=number))
    return (yield from _index(read, tuple(order), options))


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


def _read_file(file: str, size: int | None) -> Generator[Need, memoryview, SdnbFile]:
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
        raise LimitExceededError(f"the graph of {what} would have {stop - start} bytes, at most 2 GiB are read")
    window = yield from need_exactly(start, stop - start, f"the graph of {what}", file=file)
    graph = read_graph(window, root - start)
    regions = [(0, head[:HEADER_BYTES]), (start, window), (header.manifest_offset, raw)]
    text = graph.metadata.get(BLOCK_KEY)
    block = None if text is None else Block.decode(load_json(text.encode(), "the asyncckpt block"))
    if block is not None and start > HEADER_BYTES:
        # Metadata was added later: the first graph still stands before the arrays, and is covered as well.
        old = yield from need_exactly(HEADER_BYTES, taken[0][0] - HEADER_BYTES, "the first graph", file=file)
        regions.append((HEADER_BYTES, old))
    return SdnbFile(header, manifest, graph, window, start, regions, block, size)


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
    for (_, end, first), (start, _, second) in zip(taken, taken[1:], strict=False):
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
                found = yield from self.inline(file, array, variable.shape, dtype, name)
            self._put(name, found)
        unknown = [name for name in file.manifest if name not in self.found and name not in self.listed]
        if unknown:
            self.warnings.append(f"the manifest names {len(unknown)} arrays without a variable, such as {unknown[0]!r}")

    def inline(
        self, file: SdnbFile, array: FlatArray, shape: tuple[int, ...] | None, dtype: int, name: str
    ) -> Generator[Need, memoryview, _Found]:
        dims, order, swapped = array.resolve(shape)
        dtype_name = _dtype_name(dtype, name)
        if array.spans is None:
            extents = (yield from self._external(str(array.external), dims, dtype_name, name),)
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
            raise LayoutError(f"variable {name!r} lies in {file[:80]!r}, which is no plain name beside the file")
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
        self.listed.setdefault(name, StoredTensor(tensor, absent="the graph lists it, no file holds its data"))

    def _put(self, name: str, found: _Found) -> None:
        if name in self.found:
            raise LayoutError(f"two files of the set hold the variable {name!r}")
        size = prod(found.shape) * item_size(found.dtype)
        stored = sum(extent.size for extent in found.extents)
        if any(not 0 <= n < _MAX_DIMENSION for n in found.shape) or size != stored:
            raise LayoutError(
                f"variable {name!r} of shape {list(found.shape)} and dtype {found.dtype} has {size} bytes, "
                f"{stored} are stored"
            )
        self.found[name] = found

    def check_overlaps(self) -> None:
        """Raises LayoutError when two arrays share bytes."""
        extents = sorted(
            (e.file, e.offset, e.end, name) for name, f in self.found.items() for e in f.extents if e.size
        )
        for (file, _, end, first), (other, start, _, second) in zip(extents, extents[1:], strict=False):
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


def _index(
    files: Sequence[SdnbFile], names: tuple[str, ...], options: SdnbOptions
) -> Generator[Need, memoryview, Index]:
    leader = files[0]
    collector = _Collector(names)
    for file in files:
        yield from collector.add(file)
    updater = []
    if options.load_updater_state:
        for file in files:
            updater += yield from _updater_tensors(file, collector)
    collector.check_overlaps()
    tensors = [t for t in collector.tensors(leader.graph) if not t.name.startswith(UPDATER_PREFIX) or t.name not in updater]
    metadata, tree, chunk_bytes = _foreign_metadata(leader.graph.metadata), None, 0
    if leader.block is not None:
        tensors, metadata = _ours(files, tensors, collector)
        tree, chunk_bytes = leader.block.tree, leader.block.chunk_bytes
    elif any(file.block is not None for file in files) and leader.graph.metadata.get(SHARD_TYPE_KEY) == "graph":
        raise LayoutError("shard 0 has no asyncckpt block, other shards do: they are of different checkpoints")
    extra = [_verified_updater(files, collector, name, chunk_bytes) for name in updater]
    return Index(
        format=NAME,
        version="1",
        metadata=metadata,
        tensors=(*tensors, *extra),
        chunk_bytes=chunk_bytes,
        tree=tree,
        warnings=tuple(collector.warnings),
        files=tuple(collector.files),
        details=_details(files),
    )
