"""MLCP, the single file that all shards are gathered into. Extension `.checkpoint`.

Little-endian, with the conventions of .NET's BinaryWriter.

=============== ======= ==========================================================================
part            bytes   content
=============== ======= ==========================================================================
magic           4       50 43 4C 4D ("PCLM", the Int32 0x4D4C4350)
version         1-5 + n a .NET string: length as LEB128, then UTF-8; we write 1.1.0
metadata length 4       Int32
metadata        n       JSON; `customFields.asyncckpt` is the block, the last member of the text
shard tables    ...     one for each shard of the metadata: Int32 count, then the tensors:
                        Int32 length + name, dtype name as .NET string, Int32 rank, Int64 dims, Int64 size
padding         0-63    zeros up to a multiple of 64 (from version 1.1.0 on)
data            ...     the tensors, each at a multiple of 64, counted from the file's start
=============== ======= ==========================================================================

Version 1.0.0, the original's, ends after the tables: it lists tensors and holds no bytes of them.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError, UnsupportedVersionError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.binary import LE_I32, Cursor, decode_utf8, encode_utf8
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.text import BLOCK_KEY, EXACT, Block, BlockTemplate
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Index,
    Need,
    ParseSteps,
    StoredTensor,
    need_exactly,
)
from asyncckpt.formats.kit.metadata_json import EXACT_MEMBER, decode_metadata, encode_metadata, with_shards
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, aligned, lay_out
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.model.boxes import Shape
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata, byte_size
from asyncckpt.model.tensors import TensorTable

MAGIC = bytes.fromhex("50434c4d")
SWAPPED_MAGIC = b"MLCP"
VERSION = "1.1.0"
TABLES_ONLY_VERSION = "1.0.0"
ALIGNMENT = 64
MAX_VERSION_BYTES = 64
MAX_METADATA_BYTES = 2**31 - 1

_DOTNET_NAMES = {
    "float16": "Float16",
    "float32": "Float32",
    "float64": "Float64",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "bool": "Bool",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "complex64": "Complex64",
    "complex128": "Complex128",
}


# -- plan ------------------------------------------------------------------------------------------------------


def plan_file(content: Content, name: str) -> FilePlan:
    """The layout of one MLCP file. Raises LayoutError, LimitExceededError."""
    chunking = content.chunking()
    relative, data_bytes = lay_out(content.tensors, 0, alignment=ALIGNMENT)
    shards = list(replace(content, tensors=content.table().at(relative.offsets)).by_shard())
    metadata = with_shards(
        replace(content.metadata, version=VERSION, format=content.metadata.format or "singlefile"), shards
    )
    before, after, exact = split_metadata(metadata)
    block = BlockTemplate.build(content, chunking, exact=exact)
    metadata_bytes = len(before) + block.size + len(after)
    if metadata_bytes > MAX_METADATA_BYTES:
        raise LimitExceededError(f"the metadata has {metadata_bytes} bytes, MLCP allows {MAX_METADATA_BYTES}")
    tables = b"".join(map(encode_table, shards))
    header = BlockHeader(encode_start(VERSION, metadata_bytes) + before, block, after + tables)
    data_start = aligned(header.end, ALIGNMENT)

    def describe(read: CheckpointMetadata, digests: Digests) -> CheckpointMetadata:
        described = replace(read, version=VERSION, format=read.format or "singlefile")
        return with_shards(described, [as_listed(shard.tensors, data_start) for shard in read.shards])

    return header.plan(
        name,
        relative.moved(data_start),
        size=data_start + data_bytes,
        chunking=chunking,
        describe=describe,
    )


def as_listed(tensors: Sequence[TensorMetadata], data_start: int) -> TensorTable:
    """As the JSON lists them: counted from the data's start, and without their boxes."""
    table = TensorTable.of(tensors)
    return table.at(table.offsets - data_start).with_boxes({})


def split_metadata(metadata: CheckpointMetadata) -> tuple[bytes, bytes, Json]:
    """The JSON text before and after the block, which is the last member of the last member, and what it has to say
    of values that the JSON does not keep exactly. Raises LayoutError, UnsupportedStateError."""
    if BLOCK_KEY in metadata.custom_fields:
        raise LayoutError(f"the custom field {BLOCK_KEY!r} is asyncckpt's own; choose another name")
    members = encode_metadata(metadata)
    exact = members.pop(EXACT_MEMBER, None)
    members["customFields"] = {**members["customFields"], BLOCK_KEY: None}
    return dump_json(members).removesuffix("null}}").encode(), b"}}", exact


# -- encode ----------------------------------------------------------------------------------------------------


def encode_start(version: str, metadata_bytes: int) -> bytes:
    """What comes before the metadata."""
    return MAGIC + dotnet_string(version) + LE_I32.pack(metadata_bytes)


def encode_table(tensors: Sequence[TensorMetadata]) -> bytes:
    """One shard's table."""
    table = TensorTable.of(tensors)
    kinds = list(zip(table.dtypes, table.shapes, strict=True))
    # Of very many tensors most are alike.
    tails = {kind: _encode_kind(*kind) for kind in set(kinds)}
    names = [encode_utf8(name, "a tensor's name") for name in table.names]
    rows = [LE_I32.pack(len(name)) + name + tails[kind] for name, kind in zip(names, kinds, strict=True)]
    return LE_I32.pack(len(rows)) + b"".join(rows)


def _encode_kind(dtype: str, shape: Shape) -> bytes:
    """What a table says of a tensor behind its name."""
    rank = len(shape)
    numbers = struct.pack(f"<i{rank + 1}q", rank, *shape, byte_size(dtype, shape))
    return dotnet_string(_DOTNET_NAMES.get(dtype, dtype)) + numbers


def dotnet_string(text: str) -> bytes:
    """Length as LEB128, then UTF-8."""
    data = text.encode()
    length, prefix = len(data), bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + data


# -- decode ----------------------------------------------------------------------------------------------------


def parse_file(source: FileInfo) -> ParseSteps:
    """Raises FormatError subclasses."""
    version, text, tables_start = yield from _parse_start(source)
    metadata, block_json = join_metadata(load_json(text, "the metadata"))
    tables_end = yield from _check_tables(metadata, tables_start, source)
    if version == TABLES_ONLY_VERSION and block_json is None:
        return _tables_only(metadata, tables_end, source)
    if block_json is None:
        raise LayoutError(f"a file of version {version} needs the custom field {BLOCK_KEY!r}")
    data_start = aligned(tables_end, ALIGNMENT)
    header = yield from need_exactly(0, data_start, "the header")
    return indexed(
        _stored_tensors(metadata, data_start),
        Block.decode(block_json),
        format=MlcpFormat.name,
        version=version,
        regions=[(0, header)],
        size=source.size,
        metadata=metadata,
        header_extents=(Extent(0, tables_end),),
        warnings=() if version == VERSION else (f"written as MLCP {version}, read as {VERSION}",),
        details={"headerBytes": tables_end, "metadataBytes": len(text)},
    )


def join_metadata(members: Json) -> tuple[CheckpointMetadata, Json]:
    """The metadata, and the block in its custom fields; None where there is none. Raises LayoutError."""
    custom = members.get("customFields") if isinstance(members, dict) else None
    block_json = custom.pop(BLOCK_KEY, None) if isinstance(custom, dict) else None
    if isinstance(block_json, dict) and EXACT in block_json:
        members[EXACT_MEMBER] = block_json[EXACT]
    return decode_metadata(members), block_json


def _parse_start(source: FileInfo) -> Generator[Need, memoryview, tuple[str, memoryview, int]]:
    """The version, the text of the metadata, and where the tables begin."""
    start = yield Need(0, len(MAGIC) + 2 + MAX_VERSION_BYTES + 4)
    magic = bytes(start[:4])
    if magic == SWAPPED_MAGIC:
        raise LayoutError(
            "this MLCP file is byte-swapped (it begins 'MLCP', not 'PCLM'): write it little-endian"
        )
    if magic != MAGIC:
        raise LayoutError(f"not an MLCP file: it begins with {magic.hex(' ')}")
    cursor = Cursor(start, 4)
    version = _dotnet_string(cursor, MAX_VERSION_BYTES, "the version")
    if version.split(".")[0] != "1":
        raise UnsupportedVersionError(
            f"MLCP version {version!r} is not supported: upgrade asyncckpt to read it"
        )
    length = cursor.number(LE_I32, "the metadata's length")
    if length < 0:
        raise LayoutError(f"the metadata has the negative length {length}")
    if length > source.size - cursor.position:
        raise TruncatedError(
            f"the metadata has {length} bytes, {source.size - cursor.position} are left in the file"
        )
    text = yield from need_exactly(cursor.position, length, "the metadata")
    return version, text, cursor.position + length


def _dotnet_string(cursor: Cursor, limit: int, what: str) -> str:
    length = shift = 0
    while True:
        byte = cursor.take(1, what)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
        if shift > 28:
            raise LayoutError(f"{what} has a malformed length")
    if length > limit:
        raise LimitExceededError(f"{what} has {length} bytes, at most {limit} are allowed")
    return decode_utf8(cursor.take(length, what), what)


def _check_tables(
    metadata: CheckpointMetadata, start: int, source: FileInfo
) -> Generator[Need, memoryview, int]:
    """The tables must say what the JSON says, so the JSON's tables are what must stand here, byte for byte."""
    expected = b"".join(encode_table(shard.tensors) for shard in metadata.shards)
    found = yield Need(start, len(expected))
    if len(found) < len(expected):
        raise TruncatedError(f"the shard tables end at byte {source.size}, they need {start + len(expected)}")
    if found != expected:
        position = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        raise LayoutError(
            f"the shard tables and the metadata disagree at byte {start + position}"
            f"{_tensor_at(metadata, position)}"
        )
    return start + len(expected)


def _tensor_at(metadata: CheckpointMetadata, position: int) -> str:
    for shard in metadata.shards:
        position -= 4
        for tensor in shard.tensors:
            position -= len(encode_table([tensor])) - 4
            if position < 0:
                return f", in tensor {tensor.name!r}"
    return ""


def _tables_only(metadata: CheckpointMetadata, tables_end: int, source: FileInfo) -> Index:
    if source.size != tables_end:
        raise LayoutError(
            f"{source.size - tables_end} bytes are left over after the tables of {len(metadata.shards)} shards"
        )
    absent = "MLCP 1.0.0 stores tables only, no tensor data"
    return indexed(
        [StoredTensor(t, absent=absent) for shard in metadata.shards for t in shard.tensors],
        None,
        format=MlcpFormat.name,
        version=TABLES_ONLY_VERSION,
        metadata=metadata,
        warnings=(absent,),
        details={"headerBytes": tables_end},
    )


def _stored_tensors(metadata: CheckpointMetadata, data_start: int) -> StoredTable:
    """Raises LayoutError unless each tensor begins where the one before it lets it."""
    table = TensorTable.joined(shard.tensors for shard in metadata.shards)
    expected, _ = lay_out(table, data_start, alignment=ALIGNMENT)
    starts = table.offsets + data_start
    wrong = np.flatnonzero(starts != expected.offsets)
    if len(wrong):
        number = int(wrong[0])
        raise LayoutError(
            f"tensor {table.names[number]!r} begins at byte {starts[number]}, "
            f"{expected.offsets[number]} was expected"
        )
    return StoredTable(table, starts)


# -- the class -------------------------------------------------------------------------------------------------


class MlcpFormat(ICheckpointFormat):
    """The default format: every dtype, a tree, checksums, one file."""

    name = "mlcp"
    extensions = (".checkpoint",)
    version = VERSION

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[:4]) in (MAGIC, SWAPPED_MAGIC)

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return [plan_file(content, name)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_file(source)


SingleFileCheckpointFormat = MlcpFormat
"""The name that the format's specification gives it."""
