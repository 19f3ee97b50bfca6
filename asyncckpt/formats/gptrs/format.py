"""GPTRSCHK and GPTRSTEN, the checkpoints and tensor archives of gpt-rs. Extensions `.gptrschk`, `.gptrsten`.

Little-endian. GPTRSTEN is the same without the parts in [brackets].

=============== ======= ==========================================================================
part            bytes   content
=============== ======= ==========================================================================
magic           8       "GPTRSCHK" or "GPTRSTEN"
version         4       u32; we write 2
[config length] 4       u32
[config]        n       JSON: `{"kind", "config"[, "runtime"]}`
index length    4       u32
index           n       u32 count and the entries, sorted by name (see index.py)
block           12 + n  "ACKPTMET", u32 length, JSON: ours; a legal gap for gpt-rs, because offsets are absolute
padding         0-63    zeros up to a multiple of 64
data            ...     the tensors, each at a multiple of 64, in the order of the index
=============== ======= ==========================================================================

gpt-rs has no scalars: they are stored with the shape [1], and the block's metadata has their places in the
index, as `scalars`. Version 1 ends in entries with their data between them; it is read, not written.

A state without tensors has one entry all the same, of no bytes, whose offset is the end of the file: without it, a
file cut behind its index would be an empty one of gpt-rs. The block's metadata says so, as `endMark`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from asyncckpt.errors import (
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.gptrs.config import CUSTOM_FIELD, decode_config, encode_config, gptrs_field
from asyncckpt.formats.gptrs.index import DTYPES, Entry, decode_index, encode_index, parse_v1_entries
from asyncckpt.formats.kit.binary import LE_U32
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.block.text import Block, has_traces
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Need,
    ParseSteps,
    StoredTensor,
    need_exactly,
)
from asyncckpt.formats.kit.plan import Content, FilePlan, lay_out
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata

CHECKPOINT_MAGIC = b"GPTRSCHK"
TENSORS_MAGIC = b"GPTRSTEN"
VERSION = 2
INLINE_VERSION = 1
ALIGNMENT = 64
BLOCK_MAGIC = b"ACKPTMET"
BLOCK_HEADER_BYTES = len(BLOCK_MAGIC) + LE_U32.size
MAX_U32 = 2**32 - 1
_FIRST_BYTES = BLOCK_HEADER_BYTES + 16
_SEARCHED_BYTES = 4096
_SCALARS = "scalars"
_END_MARK = "endMark"
_END = Entry("asyncckpt.end", "float32", (0,), False, 0, 0)


@dataclass(frozen=True, slots=True)
class Header:
    """What comes before the index. `config` is None in GPTRSTEN."""

    magic: bytes
    version: int
    config: bytes | None

    def encode(self) -> bytes:
        start = self.magic + LE_U32.pack(self.version)
        return start if self.config is None else start + LE_U32.pack(len(self.config)) + self.config


# -- plan ------------------------------------------------------------------------------------------------------


def plan_file(content: Content, name: str, magic: bytes) -> FilePlan:
    """The layout of one file. Raises LayoutError, LimitExceededError, MissingExtraError."""
    is_checkpoint = magic == CHECKPOINT_MAGIC
    start = Header(magic, VERSION, encode_config(content.metadata) if is_checkpoint else None).encode()
    order = sorted(range(len(content.tensors)), key=lambda number: content.tensors[number].name)
    tensors = [content.tensors[number] for number in order]
    chunking = content.chunking()
    block = build_block(content, chunking, order, _own_members(tensors))
    entries = _entries(tensors, content.metadata) or [_END]
    index_bytes = len(encode_index(entries, with_ids=is_checkpoint))
    _require_u32(name, {"config": len(start), "index": index_bytes, "asyncckpt block": block.size})
    header_bytes = len(start) + LE_U32.size + index_bytes + BLOCK_HEADER_BYTES + block.size
    placed, end = lay_out(tensors, header_bytes, alignment=ALIGNMENT)
    payloads = placed.of(order)
    offsets = placed.offsets.tolist() or [end]
    index = encode_index(
        [replace(entry, offset=offset) for entry, offset in zip(entries, offsets, strict=True)],
        with_ids=is_checkpoint,
    )
    before = start + LE_U32.pack(index_bytes) + index + BLOCK_MAGIC + LE_U32.pack(block.size)
    return BlockHeader(before, block).plan(name, payloads, size=end, chunking=chunking)


def _own_members(tensors: Sequence[TensorMetadata]) -> dict[str, Json]:
    """What the block's metadata says of the entries beyond what they say themselves."""
    scalars: list[Json] = [number for number, tensor in enumerate(tensors) if not tensor.shape]
    return ({} if tensors else {_END_MARK: True}) | ({_SCALARS: scalars} if scalars else {})


def _entries(tensors: Sequence[TensorMetadata], metadata: CheckpointMetadata) -> list[Entry]:
    """The entries, still without offsets."""
    grad = gptrs_field(metadata).get("requiresGrad", [])
    if not isinstance(grad, list) or not all(isinstance(name, str) for name in grad):
        raise LayoutError(f"'requiresGrad' of the custom field {CUSTOM_FIELD!r} is not a list of names")
    wanted = set(grad)
    return [Entry(t.name, t.dtype, t.shape or (1,), t.name in wanted, 0, t.size) for t in tensors]


def _require_u32(name: str, sizes: Mapping[str, int]) -> None:
    for what, size in sizes.items():
        if size > MAX_U32:
            raise LimitExceededError(
                f"the {what} of {name!r} has {size} bytes, at most {MAX_U32} are allowed"
            )


# -- decode ----------------------------------------------------------------------------------------------------


class _Regions:
    """Reads spans of the file, and keeps them for the checksum over all that is not payload."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.read: list[tuple[int, memoryview]] = []

    def take(self, position: int, size: int, what: str) -> Generator[Need, memoryview, memoryview]:
        """Raises TruncatedError."""
        if position + size > self.file_bytes:
            raise TruncatedError(f"{what} ends at byte {position + size}, the file has {self.file_bytes}")
        data = yield from need_exactly(position, size, what)
        self.read.append((position, data))
        return data


def parse_file(source: FileInfo, magic: bytes) -> ParseSteps:
    """Raises FormatError subclasses."""
    regions = _Regions(source.size)
    header, position = yield from _parse_header(regions, magic)
    config = None if header.config is None else decode_config(header.config)
    name = magic.decode("ascii")
    block = None
    warnings: tuple[str, ...] = ()
    if header.version == INLINE_VERSION:
        entries = yield from parse_v1_entries(position, source.size)
        warnings = (f"{name} version 1 is read but no longer written: convert it to version 2",)
    else:
        entries, position = yield from _parse_index(regions, position, with_ids=config is not None)
        data_start = min((entry.offset for entry in entries if entry.size), default=source.size)
        block, position = yield from _parse_block(regions, position, data_start)
    stored = _stored_tensors(entries, position)
    custom_fields = _custom_fields(config, entries)
    del entries  # of a file of very many small tensors they take as much memory as the tensors' metadata
    if block is not None:
        block, stored = _restored(block, stored)
    return indexed(
        stored,
        block,
        format=name.lower(),
        version=str(header.version),
        regions=regions.read,
        size=source.size,
        custom_fields=custom_fields,
        header_extents=None if block is None else (Extent(0, position),),
        warnings=warnings,
        details={"headerBytes": position} | ({} if config is None else {"config": config["configText"]}),
    )


def _parse_header(regions: _Regions, magic: bytes) -> Generator[Need, memoryview, tuple[Header, int]]:
    start = yield from regions.take(0, len(magic) + LE_U32.size, "the header")
    if bytes(start[:8]) != magic:
        raise LayoutError(f"not a {magic.decode('ascii')} file: it begins with {bytes(start[:8]).hex(' ')}")
    version: int = LE_U32.unpack_from(start, 8)[0]
    if version not in (VERSION, INLINE_VERSION):
        raise UnsupportedVersionError(
            f"{magic.decode('ascii')} version {version} is not supported: upgrade asyncckpt to read it"
        )
    position = len(start)
    if magic == TENSORS_MAGIC:
        return Header(magic, version, None), position
    config = yield from _take_sized(regions, position, "the config")
    return Header(magic, version, bytes(config)), position + LE_U32.size + len(config)


def _take_sized(regions: _Regions, position: int, what: str) -> Generator[Need, memoryview, memoryview]:
    """Bytes with their length, a u32, in front."""
    prefix = yield from regions.take(position, LE_U32.size, f"the length of {what}")
    return (yield from regions.take(position + LE_U32.size, LE_U32.unpack(prefix)[0], what))


def _parse_index(
    regions: _Regions, position: int, *, with_ids: bool
) -> Generator[Need, memoryview, tuple[list[Entry], int]]:
    index = yield from _take_sized(regions, position, "the index")
    return decode_index(index, with_ids=with_ids), position + LE_U32.size + len(index)


def _parse_block(
    regions: _Regions, position: int, data_start: int
) -> Generator[Need, memoryview, tuple[Block | None, int]]:
    """The block and where it ends; None, and where it would begin, in a foreign file.

    A block that is there, but not where it should be, must not make a file of ours look foreign.
    """
    start = yield Need(position, max(_FIRST_BYTES, min(_SEARCHED_BYTES, data_start - position)))
    if bytes(start[: len(BLOCK_MAGIC)]) != BLOCK_MAGIC:
        if BLOCK_MAGIC in bytes(start) or has_traces(start):
            raise LayoutError(f"the asyncckpt block at byte {position} is damaged: its magic is gone")
        return None, position
    yield from regions.take(position, len(BLOCK_MAGIC), "the asyncckpt block")
    text = yield from _take_sized(regions, position + len(BLOCK_MAGIC), "the asyncckpt block")
    block = Block.decode(load_json(text, "the asyncckpt block"))
    return block, position + BLOCK_HEADER_BYTES + len(text)


def _stored_tensors(entries: Sequence[Entry], data_start: int) -> list[StoredTensor]:
    """Gaps and any order are legal, overlaps are not."""
    end = data_start
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.size and entry.offset < end:
            raise LayoutError(
                f"tensor {entry.name!r} begins at byte {entry.offset}, inside what ends at {end}"
            )
        end = max(end, entry.offset + entry.size)
    return [
        StoredTensor(TensorMetadata(e.name, e.dtype, e.shape, e.offset), (Extent(e.offset, e.size),))
        for e in entries
    ]


def _restored(block: Block, stored: list[StoredTensor]) -> tuple[Block, list[StoredTensor]]:
    """Scalars get their shape back, and a mark of the end is not a tensor. Changes `stored`. Raises LayoutError."""
    members = dict(block.metadata) if isinstance(block.metadata, dict) else {}
    if members.pop(_END_MARK, None) is not None:
        if [(t.name, t.metadata.size) for t in stored] != [(_END.name, 0)]:
            raise LayoutError("the asyncckpt block speaks of a mark of the end, which the index has not")
        stored = []
    scalars = members.pop(_SCALARS, [])
    for number in scalars if isinstance(scalars, list) else [None]:
        if type(number) is not int or not 0 <= number < len(stored) or stored[number].metadata.shape != (1,):
            raise LayoutError(f"the asyncckpt block has {str(number)[:40]} among its scalars, which is none")
    for number in set(scalars):
        tensor = stored[number]
        stored[number] = replace(tensor, metadata=replace(tensor.metadata, shape=()))
    return replace(block, metadata=members), stored


def _custom_fields(config: dict[str, Json] | None, entries: Sequence[Entry]) -> dict[str, Json]:
    field = dict(config or {})
    grad = [entry.name for entry in entries if entry.requires_grad]
    if grad:
        field["requiresGrad"] = grad
    return {CUSTOM_FIELD: field} if field else {}


# -- the classes -----------------------------------------------------------------------------------------------


class GptrsTensorsFormat(ICheckpointFormat):
    """GPTRSTEN: named tensors and nothing else."""

    name = "gptrsten"
    extensions = (".gptrsten",)
    version = str(VERSION)
    dtypes = DTYPES
    magic = TENSORS_MAGIC

    def losses(self, content: Content) -> list[str]:
        lines = super().losses(content)
        for name in content.table().names:
            if not name.isascii():
                lines.append(f"tensor {name!a} has a name that is not ASCII, which gpt-rs refuses")
        return lines

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[:8]) == self.magic

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return [plan_file(content, name, self.magic)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_file(source, self.magic)


class GptrsCheckpointFormat(GptrsTensorsFormat):
    """GPTRSCHK: a model's config and its parameters, with their base ids, which need blake3."""

    name = "gptrschk"
    extensions = (".gptrschk",)
    magic = CHECKPOINT_MAGIC
