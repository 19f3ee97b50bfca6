"""MLDF as a checkpoint: one row for each shard, one NDARRAY field for each tensor. Extension `.mldf`.

The structures are in header.py. A file that we write has, in this order:

================= =========================================================================================
part              content
================= =========================================================================================
magic, header     73 bytes, with the CRC32 of the data region (flag 4)
descriptors       at 73: `__asyncckpt__` (JSON), `__schema__` (JSON, where needed), the tensors (NDARRAY)
metadata table    at a multiple of 64: a row for each shard; a tensor's cell is zero in the rows of other shards
data region       at a multiple of 4096: the `asyncckpt` block, the schema, the tensors, each at a multiple of 64
allocation table  right behind the data, (u8 ptr, u4 size, u4 pad) sorted by ptr
================= =========================================================================================

The block lies in the data region, which the header's CRC32 covers, and its `outside` covers the header: therefore
`outside` counts the four bytes of that CRC32 as zeros. A file without a block is foreign: every cell is a tensor.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Need,
    ParseSteps,
    StoredTensor,
    need_exactly,
)
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, Payload, TensorBytes, aligned, lay_out
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.formats.mldf.foreign import data_digest, details, foreign_index, require_apart
from asyncckpt.formats.mldf.header import (
    DATA_CRC_AT,
    DESCRIPTOR,
    HEADER_END,
    MAGIC,
    PAGE_BYTES,
    TABLE_ALIGNMENT,
    VERSION_MAJOR,
    VERSION_MINOR,
    Descriptor,
    Header,
    TypeId,
    allocations,
    encode_allocations,
    row_offsets,
)
from asyncckpt.formats.mldf.schema import (
    BLOCK_FIELD,
    OWN_FIELDS,
    SCHEMA_FIELD,
    Field,
    Layout,
    array_arguments,
    array_of,
    encode_fields,
    parse_layout,
    parse_schema,
    sized,
)
from asyncckpt.model.checksums import crc32, crc32_of_region
from asyncckpt.model.metadata import moved
from asyncckpt.model.ranges import ByteRange

BLOCK_ARGUMENTS = b'{"asyncckpt":1}'
"""A second mark of the block's field, so that a damaged name does not make the file a foreign one."""
MAX_BLOCK_BYTES = 2**32 - 1
_CRC_MASK = (DATA_CRC_AT, bytes(4))

Table = NDArray[np.uint64]


# -- plan ------------------------------------------------------------------------------------------------------


def plan_file(content: Content, name: str) -> FilePlan:
    """The layout of one MLDF file. Raises LayoutError, LimitExceededError."""
    tensors = content.tensors
    chunking = content.chunking()
    block = build_block(content, chunking)
    arrays = [Field(t.name, TypeId.NDARRAY, array_arguments(t.dtype, t.shape)) for t in tensors]
    descriptors, schema = encode_fields(arrays)
    if max(block.size, len(schema)) > MAX_BLOCK_BYTES:
        raise LimitExceededError(f"the block has {block.size} bytes, an MLDF field {MAX_BLOCK_BYTES} at most")
    own = [Descriptor(BLOCK_FIELD, TypeId.JSON, BLOCK_ARGUMENTS)]
    own += [Descriptor(SCHEMA_FIELD, TypeId.JSON)] if schema else []
    offsets = row_offsets([*own, *descriptors])
    rows = max(1, len(content.shards))
    metadata_ptr = aligned(HEADER_END + len(offsets[1:]) * DESCRIPTOR.size, TABLE_ALIGNMENT)
    head_bytes = metadata_ptr + rows * offsets[-1]
    data_ptr = aligned(head_bytes, PAGE_BYTES)
    schema_ptr = aligned(data_ptr + block.size)
    after = bytes(schema_ptr - data_ptr - block.size) + schema if schema else b""
    inner = BlockHeader(b"", block, after, start=data_ptr)
    payloads, alloc_ptr = lay_out(tensors, inner.end)
    own_spans = [(data_ptr, block.size), (schema_ptr, len(schema))]
    entries = encode_allocations(allocations(own_spans + [(p.offset, p.size) for p in payloads]))
    size = alloc_ptr + len(entries)
    header = Header(rows, len(offsets) - 1, PAGE_BYTES, HEADER_END, metadata_ptr, data_ptr, alloc_ptr)

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        fields = b"".join(d.encode() for d in (*own, *descriptors))
        table = _table(content, payloads, digests.crc32, own_spans[: len(own)], offsets)
        front = (header.encode() + fields).ljust(metadata_ptr, b"\0") + table
        others = [(0, front), (alloc_ptr, entries)]
        text, *_ = inner.encode(digests.checksums, payloads, size=size, others=others, masks=[_CRC_MASK])
        runs = [(p.offset, p.end, own) for p, own in zip(payloads, digests.crc32, strict=True)]
        value = crc32_of_region([(data_ptr, inner.end, crc32(text)), *runs], data_ptr, alloc_ptr)
        return [replace(header, data_crc32=value).encode() + front[HEADER_END:], text, entries]

    deferred = (ByteRange(0, head_bytes), inner.region, ByteRange(alloc_ptr, size))
    return FilePlan(name, size, payloads, deferred, chunking, finish, needs_crc32=True)


# -- encode ----------------------------------------------------------------------------------------------------


def _table(
    content: Content,
    payloads: Sequence[Payload],
    sums: Sequence[int],
    own: Sequence[tuple[int, int]],
    offsets: Sequence[int],
) -> bytes:
    """The metadata table. All cells are made of u8, or of a u4 and zeros, so it is an array of u8."""
    rows = max(1, len(content.shards))
    table = np.zeros((rows, offsets[-1] // 8), "<u8")
    for column, (start, size) in enumerate(own):
        table[0, 2 * column : 2 * column + 2] = start, size
    shard = np.repeat(np.arange(len(content.shards)), content.shards)
    first = np.array(offsets[len(own) : -1], np.int64) // 8
    cells = np.array([(p.offset, p.size, crc) for p, crc in zip(payloads, sums, strict=True)], np.uint64)
    for word in range(3 if len(payloads) else 0):
        table[shard, first + word] = cells[:, word]
    return table.tobytes()


# -- decode ----------------------------------------------------------------------------------------------------


def parse_file(source: FileInfo) -> ParseSteps:
    """Raises FormatError subclasses."""
    layout = yield from parse_layout(source)
    header = layout.header
    table_bytes = header.num_samples * layout.row_bytes
    data = yield from need_exactly(header.metadata_ptr, table_bytes, "the metadata table")
    table: Table = np.ndarray((header.num_samples, layout.row_bytes // 8), "<u8", buffer=data)
    ours = _has_block(layout)
    fields, schema = yield from parse_schema(layout)
    if not ours:
        return foreign_index(layout, fields, table, source)
    block_start, block, text = yield from _parse_block(layout, table)
    block_extent = (block_start, len(text))
    stored, shards = _stored_tensors(layout, fields, table, [block_extent, schema])
    head_end = _head_end(layout)
    head = yield from need_exactly(0, head_end, "the header")
    regions = [(0, head), (block_start, text)]
    if schema[1]:
        regions.append((schema[0], (yield from need_exactly(*schema, "the schema"))))
    alloc = header.alloc_table_ptr
    regions.append((alloc, (yield from need_exactly(alloc, source.size - alloc, "the allocation table"))))
    index = indexed(
        stored,
        block,
        format=MldfFormat.name,
        version=header.version,
        regions=regions,
        size=source.size,
        masks=[_CRC_MASK],
        warnings=header.warnings,
        digests=(data_digest(header),),
        details=details(layout),
    )
    found = [len(shard.tensors) for shard in index.metadata.shards]
    if found != shards[: len(found)]:
        raise LayoutError("the rows of the tensors are not those of their shards")
    return index


def _head_end(layout: Layout) -> int:
    """Where the metadata table ends. Raises LayoutError unless all before the data stands as we write it."""
    header = layout.header
    descriptors_end = header.field_desc_ptr + header.num_fields * DESCRIPTOR.size
    end = header.metadata_ptr + header.num_samples * layout.row_bytes
    if not descriptors_end <= header.metadata_ptr <= end <= header.data_ptr:
        raise LayoutError("descriptors, metadata table and data are not in this order, as asyncckpt has them")
    return end


def _has_block(layout: Layout) -> bool:
    """Whether the file is ours. Raises LayoutError when only one of the block's two marks is there."""
    first = layout.descriptors[0]
    marks = [first.name == BLOCK_FIELD, first.arguments == BLOCK_ARGUMENTS]
    if not any(marks) and layout.position(BLOCK_FIELD) is None:
        return False
    if not all(marks) or first.type_id != TypeId.JSON:
        raise LayoutError(f"field {first.name!r} has one mark of the asyncckpt block, but not all")
    return True


def _parse_block(layout: Layout, table: Table) -> Generator[Need, memoryview, tuple[int, Block, memoryview]]:
    start, size = (int(n) for n in table[0, :2]) if len(table) else (0, 0)
    if not start:
        raise LayoutError(f"the first row has no {BLOCK_FIELD!r}")
    layout.require_payload(start, size, f"field {BLOCK_FIELD!r}")
    text = yield from need_exactly(start, size, "the asyncckpt block")
    return start, Block.decode(load_json(text, "the asyncckpt block")), text


def _stored_tensors(
    layout: Layout, fields: Sequence[Field], table: Table, taken: Sequence[tuple[int, int]]
) -> tuple[list[StoredTensor], list[int]]:
    """The tensors in the order of the fields, and how many each row has."""
    numbers = [i for i, f in enumerate(layout.descriptors) if f.name not in OWN_FIELDS]
    other = next((fields[i] for i in numbers if fields[i].type_id != TypeId.NDARRAY), None)
    if other is not None:
        raise LayoutError(f"field {other.name!r} has the type {other.type_id}, a tensor is an NDARRAY")
    columns = np.array([layout.offsets[i] // 8 for i in numbers], np.int64)
    present = table[:, columns] != 0
    if not (present.sum(axis=0) == 1).all():
        raise LayoutError("a tensor is not in exactly one row")
    rows = present.argmax(axis=0) if numbers else np.zeros(0, np.int64)
    if (np.diff(rows) < 0).any():
        raise LayoutError("the tensors are not in the order of their rows")
    starts = table[rows, columns].tolist()
    sizes = table[rows, columns + 1].tolist()
    stored = []
    for number, start, size in zip(numbers, starts, sizes, strict=True):
        tensor = sized(array_of(fields[number]), size)
        layout.require_payload(start, size, f"tensor {tensor.name!r}")
        stored.append(StoredTensor(moved(tensor, start), (Extent(start, size),)))
    require_apart([(t.extents[0].offset, t.extents[0].size) for t in stored] + list(taken))
    return stored, np.bincount(rows, minlength=len(table)).tolist()


# -- the class -------------------------------------------------------------------------------------------------


class MldfFormat(ICheckpointFormat):
    """A table of shards × tensors; also the container of datasets (operations/tables)."""

    name = "mldf"
    extensions = (".mldf",)
    version = f"{VERSION_MAJOR}.{VERSION_MINOR}"

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[: len(MAGIC)]) == MAGIC

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return [plan_file(content, name)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_file(source)
