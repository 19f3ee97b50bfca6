"""The tables of a METAGRAPH bundle: NODES, EDGES and INDEX, as fixed-size little-endian records (encoding 1).

======= ===== ======================================================================================
section bytes a record
======= ===== ======================================================================================
NODES   72    id 16 (BLAKE3 of the name), BLAKE3 of the tensor's bytes 32, u64 pool offset, u32 name bytes,
              u16 dtype bytes, u16 rank, u32 flags (1 IN_BASE), u32 0. Behind all records the pool: for
              each node, in order, rank × u64 dims, dtype, name, zeros up to a multiple of 8. The offset is
              counted from the section's start.
EDGES   16    u32 kind, u32 source, u32 first, u32 count. SHARD 1: shard `source` holds the nodes
              [first, first + count). TIED 2: node `source` is stored as node `first` is.
INDEX   48    id 16, u64 offset in the file, u64 stored size, u64 raw size, u32 first frame, u32 frames;
              ascending by id. Behind all records the frames, 48 bytes each: u64 offset, u64 stored
              size, BLAKE3 of the stored bytes 32.
======= ===== ======================================================================================

Nodes have the order of the content, so a node's number is its tensor's.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError
from asyncckpt.formats.kit.binary import decode_utf8, encode_utf8
from asyncckpt.formats.kit.plan import aligned
from asyncckpt.formats.metagraph.hashing import HASH_BYTES, node_ids
from asyncckpt.model.dtype import dtype_name, numpy_dtype
from asyncckpt.model.metadata import TensorMetadata

IN_BASE = 1
SHARD_EDGE = 1
TIED_EDGE = 2
MAX_RANK = 64
MAX_ITEMS = 2**32 - 1
_MAX_DIM = 1 << 63
_POOL_ALIGNMENT = 8

_NODE = struct.Struct("<16s32sQIHHII")
_EDGE = struct.Struct("<4I")
_ENTRY = struct.Struct("<16s3Q2I")
_FRAME = struct.Struct("<2Q32s")


# -- nodes -----------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """One tensor; `tensor.checksum` spells its hash."""

    id: bytes
    hash: bytes
    in_base: bool
    tensor: TensorMetadata
    size: int


@dataclass(frozen=True, slots=True)
class NodeTable:
    """NODES, ready but for the hashes: its size is known before them."""

    ids: tuple[bytes, ...]
    rows: tuple[tuple[int, int, int, int], ...]
    pool: bytes

    @classmethod
    def build(cls, tensors: Sequence[TensorMetadata]) -> NodeTable:
        """Raises LayoutError for names that have no UTF-8 form, LimitExceededError."""
        if len(tensors) > MAX_ITEMS:
            raise LimitExceededError(f"a bundle holds at most {MAX_ITEMS} tensors, not {len(tensors)}")
        names = [encode_utf8(tensor.name, "a tensor's name") for tensor in tensors]
        rows, pool = [], bytearray()
        start = len(tensors) * _NODE.size
        for tensor, name in zip(tensors, names, strict=True):
            rank, dtype = len(tensor.shape), tensor.dtype.encode("ascii")
            rows.append((start + len(pool), len(name), len(dtype), rank))
            pool += struct.pack(f"<{rank}Q", *tensor.shape) + dtype + name
            pool += bytes(-len(pool) % _POOL_ALIGNMENT)
        return cls(tuple(node_ids(names)), tuple(rows), bytes(pool))

    @property
    def size(self) -> int:
        return len(self.rows) * _NODE.size + len(self.pool)

    def encode(self, hashes: Sequence[bytes], *, in_base: Collection[int] = ()) -> bytes:
        parts = [
            _NODE.pack(node, digest, *row, IN_BASE if number in in_base else 0, 0)
            for number, (node, digest, row) in enumerate(zip(self.ids, hashes, self.rows, strict=True))
        ]
        return b"".join(parts) + self.pool


def decode_nodes(data: memoryview, count: int) -> list[Node]:
    """Raises FormatError subclasses."""
    _require_room(count * _NODE.size, data, "NODES")
    nodes: list[Node] = []
    position = count * _NODE.size
    for node, digest, offset, name_size, dtype_size, rank, flags, _ in _NODE.iter_unpack(data[:position]):
        if rank > MAX_RANK:
            raise LimitExceededError(f"a node has {rank} dimensions, at most {MAX_RANK} are read")
        end = position + 8 * rank + dtype_size + name_size
        if offset != position or end > len(data):
            raise LayoutError(f"node {len(nodes)} lies at {offset} of the pool, not at {position}")
        if flags & ~IN_BASE:
            raise LayoutError(f"node {len(nodes)} has the unknown flags {flags:#x}")
        tensor = _decode_tensor(data[position:end], rank, dtype_size, digest)
        nodes.append(Node(node, digest, bool(flags & IN_BASE), tensor, _size_of(tensor)))
        position = aligned(end, _POOL_ALIGNMENT)
    if position != len(data):
        raise LayoutError(f"NODES has {len(data)} bytes, its {count} nodes need {position}")
    _check_names(nodes)
    return nodes


def _decode_tensor(entry: memoryview, rank: int, dtype_size: int, digest: bytes) -> TensorMetadata:
    dims = 8 * rank
    shape = struct.unpack_from(f"<{rank}Q", entry)
    name = decode_utf8(entry[dims + dtype_size :], "a tensor's name")
    text = decode_utf8(entry[dims : dims + dtype_size], f"the dtype of tensor {name!r}")
    dtype = dtype_name(numpy_dtype(text))  # the string that all tensors of the dtype share
    if shape and max(shape) >= _MAX_DIM:
        raise LimitExceededError(f"tensor {name!r} has the shape {list(shape)}")
    return TensorMetadata(name, dtype, shape, checksum=checksum_text(digest))


def _size_of(tensor: TensorMetadata) -> int:
    size = tensor.size
    if size >= _MAX_DIM:
        raise LimitExceededError(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)} is larger than any file"
        )
    return size


def _check_names(nodes: Sequence[Node]) -> None:
    names = [node.tensor.name for node in nodes]
    if len(set(names)) != len(names):
        raise LayoutError("two nodes of the bundle have the same name")
    for node, expected in zip(nodes, node_ids(map(str.encode, names)), strict=True):
        if node.id != expected:
            raise LayoutError(f"tensor {node.tensor.name!r} has an id that is not the BLAKE3 of its name")


def checksum_text(digest: bytes) -> str:
    """A tensor's hash as its metadata spells it."""
    return f"blake3:{digest.hex()}"


def checksum_bytes(text: str | None) -> bytes | None:
    """The hash of such a text; None for any other."""
    if text is None or not text.startswith("blake3:") or len(text) != len("blake3:") + 2 * HASH_BYTES:
        return None
    return bytes.fromhex(text[len("blake3:") :])


# -- edges -----------------------------------------------------------------------------------------------------


def encode_edges(shards: Sequence[int]) -> bytes:
    """Which nodes belong to which shard, from the shards' counts."""
    parts, first = [], 0
    for shard, count in enumerate(shards):
        parts.append(_EDGE.pack(SHARD_EDGE, shard, first, count))
        first += count
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Edges:
    """`shards` counts the nodes of each shard, None where no edge says; `ties` maps a node to the one it shares
    its bytes with."""

    shards: tuple[int, ...] | None
    ties: dict[int, int]


def decode_edges(data: memoryview, count: int, nodes: int) -> Edges:
    """Edges of unknown kinds are skipped. Raises LayoutError, TruncatedError."""
    _require_room(count * _EDGE.size, data, "EDGES")
    if len(data) != count * _EDGE.size:
        raise LayoutError(f"EDGES has {len(data)} bytes, its {count} edges need {count * _EDGE.size}")
    shards: list[int] = []
    ties: dict[int, int] = {}
    position = 0
    for kind, source, first, members in _EDGE.iter_unpack(data):
        if kind == SHARD_EDGE:
            if source != len(shards) or first != position:
                raise LayoutError(f"shard {source} begins at node {first}, node {position} was expected")
            shards.append(members)
            position += members
        elif kind == TIED_EDGE:
            if source in ties or source == first or max(source, first) >= nodes:
                raise LayoutError(f"node {source} can't be tied to node {first} of {nodes}")
            ties[source] = first
    if shards and position != nodes:
        raise LayoutError(f"the shards hold {position} nodes, the bundle has {nodes}")
    return Edges(tuple(shards) if shards else None, ties)


# -- the index of the store ------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """Where one node's bytes are. Without frames they lie at `offset` as they are."""

    id: bytes
    offset: int
    stored_size: int
    raw_size: int
    first_frame: int = 0
    frame_count: int = 0

    @property
    def frames_end(self) -> int:
        return self.first_frame + self.frame_count


class Frame(NamedTuple):
    offset: int
    size: int
    hash: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


def index_size(entries: int, frames: int = 0) -> int:
    return entries * _ENTRY.size + frames * _FRAME.size


def encode_index(entries: Sequence[Entry], frames: Sequence[Frame] = ()) -> bytes:
    rows = [_ENTRY.pack(*entry) for entry in sorted(entries)]
    return b"".join(rows) + b"".join(_FRAME.pack(*frame) for frame in frames)


def decode_index(data: memoryview, count: int) -> tuple[list[Entry], list[Frame]]:
    """Raises LayoutError, TruncatedError."""
    end = count * _ENTRY.size
    _require_room(end, data, "INDEX")
    if (len(data) - end) % _FRAME.size:
        raise LayoutError(f"INDEX has {len(data) - end} bytes behind its entries, no whole number of frames")
    entries = [Entry(*row) for row in _ENTRY.iter_unpack(data[:end])]
    frames = [Frame(*row) for row in _FRAME.iter_unpack(data[end:])]
    if any(a.id >= b.id for a, b in pairwise(entries)):
        raise LayoutError("the entries of INDEX are not in ascending order")
    return entries, frames


def _require_room(needed: int, data: memoryview, what: str) -> None:
    if needed > len(data):
        raise TruncatedError(f"the records of {what} need {needed} bytes, the section has {len(data)}")
