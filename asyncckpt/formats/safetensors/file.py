"""safetensors, the format that everybody reads. Extension `.safetensors`.

============== ====== =====================================================================================
part           bytes  content
============== ====== =====================================================================================
header length  8      u64, little-endian, at most 100 000 000
header         n      JSON, begins with '{': `__metadata__` (string -> string) and for each tensor
                      `name: {"dtype", "shape", "data_offsets": [start, end]}`, counted from the data's start;
                      `__metadata__.asyncckpt` is the block, as a string. Spaces up to a multiple of 64
data           ...    the tensors, little-endian, C order, without any gap, to the end of the file
============== ====== =====================================================================================

The tensors are sorted as the `safetensors` package sorts them: by dtype, wide ones first, then by name. So every
tensor is aligned to its items although no gap is allowed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from asyncckpt.errors import (
    LayoutError,
    LimitExceededError,
    TruncatedError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.binary import LE_U64, is_unicode
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.block.text import BLOCK_KEY, Block
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Need,
    ParseSteps,
    need_exactly,
)
from asyncckpt.formats.kit.plan import Content, FilePlan, aligned, lay_out
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.formats.safetensors.entries import TAGS, decode_entries, encode_entries, file_order
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.tensors import TensorTable

MAX_HEADER_BYTES = 100_000_000
ALIGNMENT = 64
FIRST_READ_BYTES = 128 * 1024
METADATA_KEY = "__metadata__"


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says before its data. `stored` has the tensors in the order of the data, not yet verified."""

    raw: memoryview
    metadata: dict[str, str]
    block: Block | None
    stored: StoredTable

    @property
    def data_start(self) -> int:
        return len(self.raw)


# -- plan ------------------------------------------------------------------------------------------------------


def plan_file(content: Content, name: str) -> FilePlan:
    """The layout of one file. Raises LayoutError, LimitExceededError."""
    return plan_file_of(content, name, numbers=range(len(content.tensors)), chunking=content.chunking())


def plan_file_of(part: Content, name: str, *, numbers: Sequence[int], chunking: Chunking) -> FilePlan:
    """The layout of a file with some of a content's tensors: `part.tensors[i]` is number `numbers[i]` of it.

    `chunking` is that of the whole content. Raises LayoutError, LimitExceededError.
    """
    table = part.table()
    order = file_order(table)
    own_chunking = Chunking.of(chunking.chunk_bytes, table.sizes.tolist())
    block = build_block(part, own_chunking, order).escaped()
    listed = table.take(order)
    before, after = _split_header(part.metadata, listed)
    data_start = aligned(LE_U64.size + len(before) + block.size + len(after), ALIGNMENT)
    if data_start - LE_U64.size > MAX_HEADER_BYTES:
        raise LimitExceededError(
            f"the header of {name!r} has {data_start} bytes, safetensors allows {MAX_HEADER_BYTES}: "
            "save fewer tensors in one file"
        )
    length = LE_U64.pack(data_start - LE_U64.size)
    spaces = data_start - LE_U64.size - len(before) - block.size - len(after)
    header = BlockHeader(length + before, block, after + b" " * spaces)
    placed, end = lay_out(listed, header.end, alignment=1)
    payloads = placed.of([numbers[place] for place in order])
    return header.plan(name, payloads, size=end, chunking=chunking)


# -- encode ----------------------------------------------------------------------------------------------------


def _split_header(metadata: CheckpointMetadata, listed: TensorTable) -> tuple[bytes, bytes]:
    """The JSON text before and after the block, which is the last entry of the first member."""
    plain = {**_plain_entries(metadata), BLOCK_KEY: ""}
    before = f'{{"{METADATA_KEY}":{dump_json(plain)}'.removesuffix('"}')
    entries = encode_entries(listed)
    after = f'"}},{entries}}}' if entries else '"}}'
    return before.encode("ascii"), after.encode("ascii")


def _plain_entries(metadata: CheckpointMetadata) -> dict[str, str]:
    """Custom fields that are strings stand in `__metadata__` for others to read; transformers insists on `format`."""
    if BLOCK_KEY in metadata.custom_fields:
        raise LayoutError(f"the custom field {BLOCK_KEY!r} is asyncckpt's own; choose another name")
    strings = {
        name: value
        for name, value in metadata.custom_fields.items()
        if isinstance(value, str) and is_unicode(name) and is_unicode(value)
    }
    return {"format": "pt", **strings}


# -- decode ----------------------------------------------------------------------------------------------------


def parse_file(source: FileInfo) -> ParseSteps:
    """Raises FormatError subclasses."""
    header = yield from parse_header(size=source.size)
    return indexed(
        header.stored,
        header.block,
        format=SafetensorsFormat.name,
        version=SafetensorsFormat.version,
        custom_fields=header.metadata,
        header_extents=(Extent(0, header.data_start),),
        details={"headerBytes": header.data_start, "metadata": header.metadata},
    )


def parse_header(
    *, size: int | None = None, file: str = "", number: int = 0
) -> Generator[Need, memoryview, Header]:
    """The header of a file, whose size is None where it is not known. Raises FormatError subclasses.

    `number` is the file's number in the index.
    Where there is a block, the header's own checksum is verified; the tensors' checksums are not handed out yet.
    """
    raw, size = yield from _read_header(size, file)
    members = load_json(raw[LE_U64.size :], "the header")
    if not isinstance(members, dict):
        raise LayoutError("the header is not an object")
    metadata = _string_pairs(members.pop(METADATA_KEY, None))
    stored, data_bytes = decode_entries(members, len(raw), number)
    if size is not None and len(raw) + data_bytes > size:
        raise TruncatedError(f"the data ends at byte {len(raw) + data_bytes}, the file has {size}")
    if size is not None and len(raw) + data_bytes < size:
        raise LayoutError(f"{size - len(raw) - data_bytes} bytes are left over after the last tensor")
    block = Block.decode_string(metadata.pop(BLOCK_KEY, None), raw)
    if block is not None:
        # There is nothing but the header and the data, which has no gap.
        end = len(raw) + data_bytes
        block.check_outside([(0, raw)], [(len(raw), end)], size=end)
    return Header(raw, metadata, block, stored)


def _read_header(size: int | None, file: str) -> Generator[Need, memoryview, tuple[memoryview, int | None]]:
    """The header with its length in front, still text, and the file's size, where a first read has shown it."""
    first = yield Need(0, FIRST_READ_BYTES, file)
    if len(first) < FIRST_READ_BYTES:
        size = len(first)
    if len(first) < LE_U64.size + 2:
        raise TruncatedError(f"a safetensors file has at least 10 bytes, this one has {len(first)}")
    length: int = LE_U64.unpack_from(first)[0]
    if length > MAX_HEADER_BYTES:
        raise LimitExceededError(f"the header has {length} bytes, safetensors allows {MAX_HEADER_BYTES}")
    if length < 2 or first[LE_U64.size] != ord("{"):
        raise LayoutError("not a safetensors file: no JSON object follows the header's length")
    end = LE_U64.size + length
    if size is not None and end > size:
        raise TruncatedError(f"the header ends at byte {end}, the file has {size}")
    if end <= len(first):
        return first[:end], size
    return (yield from need_exactly(0, end, "the header", file=file)), size


def _string_pairs(value: Json) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise LayoutError(f"{METADATA_KEY!r} is {type(value).__name__}, not an object")
    for name, text in value.items():
        if not isinstance(text, str) or not is_unicode(name) or not is_unicode(text):
            raise LayoutError(f"entry {name[:80]!a} of {METADATA_KEY!r} is not a string")
    return value


# -- the class -------------------------------------------------------------------------------------------------


class SafetensorsFormat(ICheckpointFormat):
    """One file that the `safetensors` package, and so everybody, can read."""

    name = "safetensors"
    extensions = (".safetensors",)
    dtypes = frozenset(TAGS)

    def losses(self, content: Content) -> list[str]:
        return super().losses(content) + name_losses(content)

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        if len(head) < LE_U64.size + 2 or LE_U64.unpack_from(head)[0] > MAX_HEADER_BYTES:
            return False
        return head[8] == ord("{") and head[9] in b'"} \t\r\n'

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return [plan_file(content, name)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_file(source)


def name_losses(content: Content) -> list[str]:
    """One line for each name that can't stand in the header."""
    lines = []
    for name in content.table().names:
        if name == METADATA_KEY:
            lines.append(f"tensor {name!r} has the name that safetensors keeps for its metadata")
        elif not is_unicode(name):
            lines.append(f"tensor {name!a} has a name that is no Unicode")
    return lines
