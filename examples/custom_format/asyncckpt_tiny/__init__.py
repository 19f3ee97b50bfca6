"""TINY, a checkpoint format of one's own in a hundred lines. Extension `.tiny`.

============= ===== =====================================================================================
part          bytes content
============= ===== =====================================================================================
magic         8     "TINYCKPT"
header length 8     u64, little-endian
header        n     JSON: `tensors` (name, dtype, shape of each) and `asyncckpt`, the block that keeps the
                    tree, the metadata and the checksums
padding       0-63  zeros up to a multiple of 64
data          ...   the tensors, each at a multiple of 64
============= ===== =====================================================================================

A format writes two pure functions: `plan` says where every byte goes, `parse` finds it again. Saving, loading,
slices, verify, convert, progress and cancellation follow from these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from asyncckpt import ICheckpointFormat, LayoutError, TensorMetadata, TruncatedError
from asyncckpt.formats.kit.binary import LE_U64
from asyncckpt.formats.kit.block.order import add_checksums, build_block, decode_arranged
from asyncckpt.formats.kit.block.seal import with_header_crc
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.index import Extent, FileInfo, Index, ParseSteps, StoredTensor, need_exactly
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, TensorBytes, aligned, lay_out
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.dtype import item_size
from asyncckpt.model.ranges import ByteRange

MAGIC = b"TINYCKPT"
START = len(MAGIC) + LE_U64.size
_DTYPES = ("float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool")


# -- plan ------------------------------------------------------------------------------------------------------


def plan_file(content: Content, name: str) -> FilePlan:
    """Where everything goes; the checksums are filled in by `finish`, when all tensors are written."""
    chunking = Chunking.for_sizes(tensor.size for tensor in content.tensors)
    block = build_block(content, chunking, range(len(content.tensors)))
    tensors = [{"name": t.name, "dtype": t.dtype, "shape": t.shape} for t in content.tensors]
    before = f'{{"tensors":{dump_json(tensors)},"asyncckpt":'.encode()
    header_bytes = START + len(before) + block.size + len(b"}")
    payloads, size = lay_out(content.tensors, aligned(header_bytes))
    block_start = START + len(before)

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        text = before + block.render(block_start, digests.checksums) + b"}"
        header = MAGIC + LE_U64.pack(len(text)) + text
        spans = ((payload.offset, payload.end) for payload in payloads)
        return with_header_crc([(0, header)], spans, size=size, at=block_start + block.outside_position)

    return FilePlan(name, size, payloads, (ByteRange(0, header_bytes),), chunking, finish)


# -- parse -----------------------------------------------------------------------------------------------------


def parse_file(source: FileInfo) -> ParseSteps:
    """Asks for bytes with `yield`, so it runs on memory, a mapped file or S3 alike. Believes nothing it reads."""
    start = yield from need_exactly(0, START, "the header")
    if start[: len(MAGIC)] != MAGIC:
        raise LayoutError(f"not a tiny file: it begins with {bytes(start[:8]).hex(' ')}")
    length: int = LE_U64.unpack(start[len(MAGIC) :])[0]
    if length > source.size - START:
        raise TruncatedError(f"the header has {length} bytes, {source.size - START} are left in the file")
    header = yield from need_exactly(0, START + length, "the header")
    members = load_json(header[START:], "the header")
    if not isinstance(members, dict) or not isinstance(members.get("tensors"), list):
        raise LayoutError("the header is not an object with a list of tensors")
    block = Block.decode(members.get("asyncckpt"))
    tensors = [_tensor(entry) for entry in members["tensors"]]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise LayoutError("two tensors of the file have the same name")
    payloads, end = lay_out(tensors, aligned(START + length))
    if end > source.size:
        raise TruncatedError(f"the last tensor ends at {end}, the file has {source.size} bytes")
    if end < source.size:
        raise LayoutError(f"{source.size - end} bytes are left over after the last tensor")
    block.check_outside([(0, header)], ((p.offset, p.end) for p in payloads), size=end)
    stored = [
        StoredTensor(tensor, (Extent(payload.offset, payload.size),))
        for tensor, payload in zip(tensors, payloads, strict=True)
    ]
    add_checksums(stored, block)
    metadata, arranged = decode_arranged(block.metadata, stored)
    return Index(
        format=TinyFormat.name,
        version="1",
        metadata=metadata,
        tensors=arranged,
        tree=block.tree,
        header_extents=(Extent(0, START + length),),
    )


def _tensor(entry: object) -> TensorMetadata:
    match entry:
        case {"name": str(name), "dtype": str(dtype), "shape": [*shape]} if dtype in _DTYPES:
            if all(type(n) is int and n >= 0 for n in shape) and prod(shape) * item_size(dtype) < 1 << 62:
                return TensorMetadata(name, dtype, tuple(shape))
    raise LayoutError(f"the header lists a malformed tensor: {str(entry)[:80]}")


# -- the class -------------------------------------------------------------------------------------------------


class TinyFormat(ICheckpointFormat):
    """What the entry point names. Options of a format would be arguments of its constructor."""

    name = "tiny"
    extensions = (".tiny",)
    dtypes = frozenset(_DTYPES)

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return head[: len(MAGIC)] == MAGIC

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return [plan_file(content, name)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_file(source)
