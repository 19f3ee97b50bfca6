"""SDNB, SameDiff's native container. Extension `.sdnb`; bare SameDiff FlatBuffers are read as well.

The header is big-endian, as Java writes it; the graph and the arrays are little-endian.

=============== ======= ==========================================================================
part            bytes   content
=============== ======= ==========================================================================
magic           4       53 44 4E 42 ("SDNB")
version         4       int, 1
manifest offset 8       long; -1 in a file that was never finished
manifest length 8       long
metadata offset 8       long, always 32
graph           n       FlatBuffer, root FlatGraph: variables, small arrays, metadata; the value of the metadata
                        key `asyncckpt` is the block. Its first four bytes, the root's place, may point behind
                        the arrays: then metadata was added later (operations/add_metadata.py)
padding         0-63    zeros up to a multiple of 64
arrays          ...     the larger arrays in C order, each at a multiple of 64; gaps are legal
manifest        m       Java-serialised map: name → (absolute offset, length); the file ends with it
=============== ======= ==========================================================================

A set is `base.shard{i}-of-{N}.sdnb`: shard 0 has the graph with every variable and no data, the others have the
arrays. Shard 0 comes last: it is the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from asyncckpt.errors import LimitExceededError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.binary import is_unicode
from asyncckpt.formats.kit.block.header import BlockHeader
from asyncckpt.formats.kit.block.order import in_file_order
from asyncckpt.formats.kit.block.text import BlockTemplate
from asyncckpt.formats.kit.index import FileInfo, ParseSteps
from asyncckpt.formats.kit.metadata_json import encode_metadata, with_shards
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, Payload, TensorBytes, aligned
from asyncckpt.formats.sdnb.graph.build import BuiltGraph, UpdaterState, VariableSpec, build_graph
from asyncckpt.formats.sdnb.graph.read import DTYPE_CODES, MAX_RANK, looks_like_graph
from asyncckpt.formats.sdnb.header import (
    ALIGNMENT,
    BLOCK_KEY,
    CREATION_KEY,
    FORMAT_TYPE_KEY,
    FORMAT_VERSION_KEY,
    HEADER_BYTES,
    MAGIC,
    MAX_UPDATER_BYTES,
    RESERVED_KEYS,
    SHARD_INDEX_KEY,
    SHARD_SIZES_MEMBER,
    SHARD_TYPE_KEY,
    VERSION,
    Header,
    SdnbOptions,
)
from asyncckpt.formats.sdnb.java_manifest import ArrayRange, encode_manifest
from asyncckpt.formats.sdnb.parse import parse_source
from asyncckpt.formats.sdnb.shards import ShardName, assign_shards
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.dtype import dtype_name
from asyncckpt.model.metadata import CheckpointMetadata, Json, ShardMetadata, TensorMetadata, now
from asyncckpt.model.ranges import ByteRange

# -- plan ------------------------------------------------------------------------------------------------------


def plan_files(content: Content, name: str, options: SdnbOptions) -> list[FilePlan]:
    """One file, or a set of which shard 0 is the last. Raises LayoutError, LimitExceededError."""
    chunking = content.chunking()
    inline = _choose_inline(chunking.sizes, options)
    texts = graph_metadata(content.metadata, options.clock)
    planner = _Planner(content, chunking, inline, options, texts)
    groups = assign_shards(chunking.sizes, shards=options.shards, limit_bytes=options.shard_limit_bytes)
    if groups is None:
        return [planner.single(name)]
    names = ShardName.for_base(name, len(groups) + 1)
    weights = [planner.weights(number, names, group) for number, group in enumerate(groups, 1)]
    return [*weights, planner.leader(names)]


def _choose_inline(sizes: Sequence[int], options: SdnbOptions) -> frozenset[int]:
    """Small arrays live in the graph, as in the original, but no more than the graph's readers can bear."""
    room = options.inline_total
    chosen = []
    for number, size in enumerate(sizes):
        if size < options.inline_below and size <= room:
            room -= size
            chosen.append(number)
    return frozenset(chosen)


def graph_metadata(metadata: CheckpointMetadata, clock: Callable[[], datetime]) -> dict[str, str]:
    """The graph's own metadata: the original's keys, and the custom fields that are text."""
    moment = metadata.timestamp or clock()
    texts = {
        CREATION_KEY: str(round(moment.timestamp() * 1000)),
        FORMAT_TYPE_KEY: "APPENDED_BLOB",
        FORMAT_VERSION_KEY: str(VERSION),
    }
    for key, value in metadata.custom_fields.items():
        if isinstance(value, str) and key not in RESERVED_KEYS and is_unicode(key) and is_unicode(value):
            texts[key] = value
    return texts


@dataclass(frozen=True, slots=True)
class _Planner:
    """What the plans of one checkpoint share."""

    content: Content
    chunking: Chunking
    inline: frozenset[int]
    options: SdnbOptions
    metadata: dict[str, str]

    def single(self, name: str) -> FilePlan:
        everything = range(len(self.content.tensors))
        return self._file(name, everything, self._whole_block(), data=everything, leads=True)

    def leader(self, names: ShardName) -> FilePlan:
        """Shard 0: stubs of all variables, and the block of the whole set."""
        everything = range(len(self.content.tensors))
        own = {SHARD_INDEX_KEY: "0", SHARD_TYPE_KEY: "graph"}
        return self._file(names.shard(0), everything, self._whole_block(), data=(), leads=True, own=own)

    def weights(self, number: int, names: ShardName, members: Sequence[int]) -> FilePlan:
        """A shard of arrays; its block has the checksums of these only."""
        tensors = tuple(self.content.tensors[member] for member in members)
        part = Content(tensors, (len(tensors),), CheckpointMetadata())
        sizes = [self.chunking.sizes[member] for member in members]
        block = BlockTemplate.build(part, Chunking.of(self.chunking.chunk_bytes, sizes))
        own = {SHARD_INDEX_KEY: str(number), SHARD_TYPE_KEY: "weights"}
        return self._file(names.shard(number), members, block, data=members, leads=False, own=own)

    def _whole_block(self) -> BlockTemplate:
        return BlockTemplate.build(self.content, self.chunking, metadata=block_metadata(self.content))

    def _file(
        self,
        name: str,
        listed: Sequence[int],
        block: BlockTemplate,
        *,
        data: Sequence[int],
        leads: bool,
        own: Mapping[str, str] | None = None,
    ) -> FilePlan:
        stored = frozenset(data)
        specs = []
        for number in listed:
            tensor = self.content.tensors[number]
            inside = number in self.inline and number in stored
            hole = self.chunking.sizes[number] if inside else None
            specs.append(VariableSpec(tensor.name, tensor.dtype, tensor.shape, hole))
        texts = [*self.metadata.items(), *(own or {}).items(), (BLOCK_KEY, " " * block.size)]
        graph = build_graph(specs, texts, updater_state=self.options.updater_state if leads else None)
        layout = _Layout.of(graph, [n for n in data if n not in self.inline], self.chunking.sizes)
        manifest = encode_manifest(
            {self.content.tensors[p.tensor].name: ArrayRange(p.offset, p.size) for p in layout.payloads}
        )
        data = Header(layout.arrays_end, len(manifest)).encode() + graph.data
        inline = tuple(
            Payload(listed[i], HEADER_BYTES + at, self.chunking.sizes[listed[i]])
            for i, at in graph.inline.items()
        )
        block_start = HEADER_BYTES + graph.last_value
        header = BlockHeader(data[:block_start], block, data[block_start + block.size :])
        size = layout.arrays_end + len(manifest)

        def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
            filled = _filled(header, inline, read)
            checksums = in_file_order(listed, self.chunking, digests.checksums)
            others = [(layout.arrays_end, manifest)]
            return filled.encode(checksums, (*layout.payloads, *inline), size=size, others=others)

        deferred = (header.region, ByteRange(layout.arrays_end, size))
        return FilePlan(name, size, layout.payloads, deferred, self.chunking, finish, inline=inline)


def _filled(header: BlockHeader, inline: Sequence[Payload], read: TensorBytes) -> BlockHeader:
    """The header with the arrays that lie in the graph, on either side of the block."""
    before, after = bytearray(header.before), bytearray(header.after)
    after_start = header.end - len(after)
    for payload in inline:
        data = read(payload.tensor, 0, payload.size)
        if payload.offset < len(before):
            before[payload.offset : payload.end] = data
        else:
            after[payload.offset - after_start : payload.end - after_start] = data
    return replace(header, before=bytes(before), after=bytes(after))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the arrays of one file lie."""

    payloads: tuple[Payload, ...]
    arrays_end: int

    @classmethod
    def of(cls, graph: BuiltGraph, appended: Iterable[int], sizes: Sequence[int]) -> _Layout:
        end = HEADER_BYTES + len(graph.data)
        payloads = []
        for number in appended:
            start = aligned(end, ALIGNMENT)
            end = start + sizes[number]
            payloads.append(Payload(number, start, sizes[number]))
        return cls(tuple(payloads), end)


# -- encode ----------------------------------------------------------------------------------------------------


def block_metadata(content: Content) -> dict[str, Json]:
    """The checkpoint's metadata for the block; which tensor is whose is kept as the sizes of the shards."""
    groups = list(content.by_shard())
    shards = with_shards(content.metadata, groups).shards
    bare = tuple(replace(shard, tensors=()) for shard in shards)
    obvious = bare == tuple(ShardMetadata(rank=rank) for rank in range(len(groups)))
    members = encode_metadata(replace(content.metadata, shards=bare), shards=not obvious)
    if len(groups) != 1:
        members[SHARD_SIZES_MEMBER] = [len(group) for group in groups]
    return members


def check_updater_state(state: UpdaterState) -> list[str]:
    """One line for each array that a FlatArray can't hold. Raises LimitExceededError beyond 2 GiB."""
    total = sum(array.nbytes for arrays in state.values() for array in arrays.values())
    if total > MAX_UPDATER_BYTES:
        raise LimitExceededError(
            f"the updater state has {total} bytes, at most {MAX_UPDATER_BYTES} fit: store it as variables"
        )
    return [
        f"updater state {parameter!r}, {key!r} is {array.dtype}, which sdnb can't store"
        for parameter, arrays in state.items()
        for key, array in arrays.items()
        if dtype_name(array.dtype) not in DTYPE_CODES
    ]


def name_losses(tensors: Iterable[TensorMetadata]) -> list[str]:
    """One line for each name or rank that the format can't hold."""
    losses = [f"the name {t.name!r} holds a lone surrogate" for t in tensors if not is_unicode(t.name)]
    losses += [f"tensor {t.name!r} has rank {len(t.shape)}" for t in tensors if len(t.shape) > MAX_RANK]
    return losses


# -- the class -------------------------------------------------------------------------------------------------


class SdnbFormat(ICheckpointFormat):
    """SameDiff's container: one file, or a set of shards when the arrays exceed the limit."""

    name = "sdnb"
    extensions = (".sdnb",)
    version = str(VERSION)
    dtypes = frozenset(DTYPE_CODES)

    def __init__(
        self,
        *,
        shards: int | None = None,
        shard_limit_bytes: int = 1 << 30,
        inline_below: int = 1 << 20,
        inline_total: int = 16 << 20,
        updater_state: UpdaterState | None = None,
        load_updater_state: bool = True,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self.options = SdnbOptions(
            shards, shard_limit_bytes, inline_below, inline_total, updater_state, load_updater_state, clock
        )

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[:4]) == MAGIC or looks_like_graph(head, source.size)

    def losses(self, content: Content) -> list[str]:
        losses = super().losses(content) + name_losses(content.tensors)
        return losses + check_updater_state(self.options.updater_state or {})

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return plan_files(content, name, self.options)

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_source(source, self.options)

    def leader_prefix(self, name: str) -> str:
        """What the name of a set's shard 0 begins with, for a base name that is itself no file."""
        return ShardName.prefix_of(name)

    def leaders(self, name: str, present: Iterable[str]) -> list[str]:
        """The names among `present` that are shard 0 of a set with the base `name`."""
        return ShardName.leaders(name, present)
