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
from json.encoder import encode_basestring_ascii
from operator import itemgetter

import numpy as np

from asyncckpt.errors import (
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedDtypeError,
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
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata, byte_size
from asyncckpt.model.tensors import TensorTable, lay_out_sizes, sizes_column

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 64
ALIGNMENT = 64
FIRST_READ_BYTES = 128 * 1024
METADATA_KEY = "__metadata__"

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""In the package's own order, which is also the order of the data, backwards."""
_TAGS = {dtype: tag for tag, dtype in _DTYPES.items()}
_RANKS = {dtype: -number for number, dtype in enumerate(_DTYPES.values())}
_ENTRY = itemgetter("dtype", "shape", "data_offsets")
_INTEGERS = frozenset({int})
_PACKED = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


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


def file_order(tensors: Sequence[TensorMetadata]) -> list[int]:
    """The numbers of the tensors as the `safetensors` package orders their data."""
    table = TensorTable.of(tensors)
    keys = [(_RANKS[dtype], name) for dtype, name in zip(table.dtypes, table.names, strict=True)]
    return sorted(range(len(keys)), key=keys.__getitem__)


# -- encode ----------------------------------------------------------------------------------------------------


def _split_header(metadata: CheckpointMetadata, listed: TensorTable) -> tuple[bytes, bytes]:
    """The JSON text before and after the block, which is the last entry of the first member."""
    plain = {**_plain_entries(metadata), BLOCK_KEY: ""}
    before = f'{{"{METADATA_KEY}":{dump_json(plain)}'.removesuffix('"}')
    kinds = list(zip(listed.dtypes, listed.shapes, strict=True))
    # Of very many tensors most are alike.
    texts = {
        (dtype, shape): f'"dtype":"{_TAGS[dtype]}","shape":[{",".join(map(str, shape))}]'
        for dtype, shape in set(kinds)
    }
    starts, _ = lay_out_sizes(listed.sizes, 0, 1)
    columns = zip(
        map(encode_basestring_ascii, listed.names),
        kinds,
        starts.tolist(),
        (starts + listed.sizes).tolist(),
        strict=True,
    )
    entries = ",".join(
        [f'{name}:{{{texts[kind]},"data_offsets":[{start},{end}]}}' for name, kind, start, end in columns]
    )
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
    stored, data_bytes = _decode_entries(members, len(raw), number)
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


def _decode_entries(members: dict[str, Json], data_start: int, file: int) -> tuple[StoredTable, int]:
    """The tensors by position; each must begin where the one before it ends. Empties `members`."""
    table = _decode_columns(members, data_start)
    if table is None:
        # An entry is several times as large as its text: it is let go as soon as it has become a tensor.
        table = TensorTable.of([_decode_entry(name, members.pop(name), data_start) for name in list(members)])
    order = np.lexsort((table.sizes, table.offsets))
    if (np.diff(order) < 0).any():
        table = table.take(order.tolist())
    expected, end = lay_out_sizes(table.sizes, data_start, 1)
    wrong = np.flatnonzero(table.offsets != expected)
    if len(wrong):
        name = table.names[wrong[0]]
        found, position = int(table.offsets[wrong[0]]), int(expected[wrong[0]])
        kind = "overlaps the one before it" if found < position else "leaves a hole before it"
        raise LayoutError(
            f"tensor {name!r} {kind}: it begins at {found - data_start} of the data, "
            f"not at {position - data_start}"
        )
    return StoredTable(table, table.offsets, file), end - data_start


def _decode_columns(members: dict[str, Json], data_start: int) -> TensorTable | None:
    """The tensors, where every entry is what it should be. Empties `members`."""
    names = list(members)
    try:
        tags, shapes, places = zip(*map(_ENTRY, members.values()), strict=True) if members else [()] * 3
        starts, ends = zip(*places, strict=True) if members else [()] * 2
        kinds = list(zip(tags, map(tuple, shapes), strict=True))
        distinct = {kind: kind[1] for kind in kinds}
        dtypes = {tag: _DTYPES[tag] for tag in set(tags)}
    except (KeyError, TypeError, ValueError):
        return None
    if not _INTEGERS.issuperset(map(type, (*starts, *ends))) or not all(map(is_unicode, names)):
        return None
    for shape in distinct.values():
        if len(shape) > MAX_RANK or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            return None
    sizes = {kind: byte_size(dtypes[kind[0]], kind[1]) for kind in distinct}
    found = [sizes[kind] for kind in kinds]
    if min(starts, default=0) < 0 or max(ends, default=0) >= 1 << 62:
        return None
    if [start + size for start, size in zip(starts, found, strict=True)] != list(ends):
        return None
    members.clear()
    return TensorTable(
        names,
        [dtypes[tag] for tag, _ in kinds],
        [distinct[kind] for kind in kinds],
        sizes_column(found),
        np.array(starts, np.int64) + data_start,
    )


def _decode_entry(name: str, entry: Json, data_start: int) -> TensorMetadata:
    if not is_unicode(name):
        raise LayoutError(f"a tensor has the name {name[:80]!a}, which is no Unicode")
    try:
        tag, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise LayoutError(f"tensor {name!r} lacks its dtype, shape or two data_offsets") from None
    if type(shape) is not list or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise LayoutError(f"tensor {name!r} has the shape {str(shape)[:80]}")
    if len(shape) > MAX_RANK:
        raise LimitExceededError(f"tensor {name!r} has {len(shape)} dimensions, at most {MAX_RANK} are read")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise LayoutError(f"tensor {name!r} has the data_offsets [{str(start)[:40]}, {str(end)[:40]}]")
    offset = data_start + start
    tensor = TensorMetadata(name, _decode_dtype(name, tag), tuple(shape), offset)
    if tensor.size != end - start:
        raise LayoutError(
            f"tensor {name!r} of shape {shape} and dtype {tag} has {tensor.size} bytes, "
            f"the file says {end - start}"
        )
    return tensor


def _decode_dtype(name: str, tag: Json) -> str:
    dtype = _DTYPES.get(tag) if isinstance(tag, str) else None
    if dtype is not None:
        return dtype
    if isinstance(tag, str) and tag in _PACKED:
        raise UnsupportedDtypeError(
            f"tensor {name!r} is {tag}, packed in {_PACKED[tag]} bits an item, which no array here can hold"
        )
    raise UnsupportedDtypeError(f"tensor {name!r} has the unknown dtype {str(tag)[:40]!r}")


# -- the class -------------------------------------------------------------------------------------------------


class SafetensorsFormat(ICheckpointFormat):
    """One file that the `safetensors` package, and so everybody, can read."""

    name = "safetensors"
    extensions = (".safetensors",)
    dtypes = frozenset(_TAGS)

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
    for tensor in content.tensors:
        if tensor.name == METADATA_KEY:
            lines.append(f"tensor {tensor.name!r} has the name that safetensors keeps for its metadata")
        elif not is_unicode(tensor.name):
            lines.append(f"tensor {tensor.name!a} has a name that is no Unicode")
    return lines
