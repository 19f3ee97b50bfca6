"""A Hugging Face sharded set: several safetensors files and an index. Extension `.safetensors.index.json`.

=================================== ========================================================================
file                                content
=================================== ========================================================================
model-00001-of-00003.safetensors    some of the tensors; a file of its own right, with its own block
model.safetensors.index.json        JSON, indented by two, members sorted, a line feed at the end:
                                    `metadata.total_size` (bytes of all tensors), `metadata.asyncckpt` (the block,
                                    as a string), `weight_map` (tensor -> file)
=================================== ========================================================================

The index is the file that is opened, and the last one to be written. Its block has the tree, the metadata and the
checksums of all tensors, file by file and in each in the order of its data, so a file that was swapped for another
is found out.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.errors import (
    FormatError,
    IncompleteCheckpointError,
    InvalidArgumentError,
    LayoutError,
    LimitExceededError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.block.text import BLOCK_KEY, Block
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Need,
    ParseSteps,
    StoredTensor,
    need_exactly,
    open_ahead,
)
from asyncckpt.formats.kit.plan import Content, FilePlan
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.formats.safetensors.file import (
    Header,
    SafetensorsFormat,
    file_order,
    name_losses,
    parse_header,
    plan_file_of,
)
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.file_names import is_file_name
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.ranges import ByteRange

INDEX_EXTENSION = ".safetensors.index.json"
FILE_EXTENSION = ".safetensors"
DEFAULT_FILE_BYTES = 5_000_000_000
"""Hugging Face's own limit."""
MAX_INDEX_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class SetIndex:
    """The index as it was read: its free metadata, its block, and the file of each tensor."""

    metadata: dict[str, Json]
    block: Block | None
    weight_map: dict[str, str]


# -- plan ------------------------------------------------------------------------------------------------------


def plan_set(
    content: Content, name: str, *, max_file_bytes: int, side_files: Mapping[str, bytes]
) -> list[FilePlan]:
    """The side files, the data files, the index. Raises LayoutError, LimitExceededError."""
    chunking = content.chunking()
    base = name.removesuffix(INDEX_EXTENSION)
    parts = split(content, max_file_bytes)
    plans = [_plan_side_file(side, data, chunking) for side, data in side_files.items()]
    order: list[int] = []
    weight_map: dict[str, str] = {}
    for position, numbers in enumerate(parts, 1):
        tensors = tuple(content.tensors[number] for number in numbers)
        file = f"{base}-{position:05d}-of-{len(parts):05d}{FILE_EXTENSION}"
        part = Content(tensors, (len(tensors),), CheckpointMetadata())
        plans.append(plan_file_of(part, file, numbers=numbers, chunking=chunking))
        order += [numbers[place] for place in file_order(tensors)]
        weight_map |= {tensor.name: file for tensor in tensors}
    plans.append(_plan_index(content, name, order=order, weight_map=weight_map, chunking=chunking))
    names = [plan.name for plan in plans]
    if len(set(names)) != len(names):
        raise LayoutError(f"a side file has the name of another file of the set: {sorted(names)}")
    return plans


def split(content: Content, max_file_bytes: int) -> list[list[int]]:
    """The numbers of the tensors of each file, in order; a tensor over the limit gets a file of its own."""
    parts: list[list[int]] = []
    room = -1
    for number, tensor in enumerate(content.tensors):
        size = tensor.size
        if size > room:
            parts.append([])
            room = max(max_file_bytes, size)
        parts[-1].append(number)
        room -= size
    return parts


def _plan_side_file(name: str, data: bytes, chunking: Chunking) -> FilePlan:
    late = (ByteRange(0, len(data)),) if data else ()
    content = [data] if data else []
    return FilePlan(name, len(data), (), late, chunking, lambda digests, read: content, is_side_file=True)


def _plan_index(
    content: Content, name: str, *, order: Sequence[int], weight_map: Mapping[str, str], chunking: Chunking
) -> FilePlan:
    if BLOCK_KEY in content.metadata.custom_fields:
        raise LayoutError(f"the custom field {BLOCK_KEY!r} is asyncckpt's own; choose another name")
    before, after = encode_index(sum(chunking.sizes), weight_map)
    header = BlockHeader(before, build_block(content, chunking, order).escaped(), after)
    if header.size > MAX_INDEX_BYTES:
        raise LimitExceededError(
            f"the index {name!r} has {header.size} bytes, at most {MAX_INDEX_BYTES} are allowed"
        )
    return header.plan(name, (), size=header.size, chunking=chunking, listed=order)


# -- encode ----------------------------------------------------------------------------------------------------


def encode_index(total_size: int, weight_map: Mapping[str, str]) -> tuple[bytes, bytes]:
    """The index's text before and after the block, which is the first string of all."""
    members = {"metadata": {BLOCK_KEY: "", "total_size": total_size}, "weight_map": dict(weight_map)}
    text = json.dumps(members, indent=2, sort_keys=True) + "\n"
    before, mark, after = text.partition(f'"{BLOCK_KEY}": "')
    return (before + mark).encode("ascii"), after.encode("ascii")


# -- decode ----------------------------------------------------------------------------------------------------


def parse_set(source: FileInfo) -> ParseSteps:
    """Raises FormatError subclasses, IncompleteCheckpointError for a file that is missing."""
    index = yield from _read_index(source)
    files = sorted(set(index.weight_map.values()))
    stored: list[StoredTensor] = []
    extents = [Extent(0, source.size)]
    warnings = []
    yield from open_ahead(files)
    for number, file in enumerate(files, 1):
        header = yield from _read_file(file, number)
        own = [tensor for tensor in header.stored if index.weight_map.get(tensor.name) == file]
        stored += own
        extents.append(Extent(0, header.data_start, number))
        if len(own) != len(header.stored):
            left_out = len(header.stored) - len(own)
            warnings.append(f"{left_out} tensors of {file!r} are not in the index and were left out")
    _require_all(index, stored)
    total = index.metadata.pop("total_size", None)
    held = sum(tensor.metadata.size for tensor in stored)
    if total != held:
        warnings.append(f"the index says {str(total)[:40]} bytes in all, the files hold {held}")
    return indexed(
        stored,
        index.block,
        format=HuggingFaceSetFormat.name,
        version=HuggingFaceSetFormat.version,
        custom_fields=index.metadata,
        header_extents=tuple(extents),
        files=("", *files),
        warnings=tuple(warnings),
        details={"files": files, "totalSize": total},
    )


def _read_index(source: FileInfo) -> Generator[Need, memoryview, SetIndex]:
    if source.size > MAX_INDEX_BYTES:
        raise LimitExceededError(f"the index has {source.size} bytes, at most {MAX_INDEX_BYTES} are read")
    raw = yield from need_exactly(0, source.size, "the index")
    members = load_json(raw, "the index")
    weight_map = members.get("weight_map") if isinstance(members, dict) else None
    if not isinstance(weight_map, dict):
        raise LayoutError("the index has no weight_map")
    known: dict[str, str] = {}
    for name, file in weight_map.items():
        if not is_file_name(file) or not file.endswith(FILE_EXTENSION) or file == source.name:
            raise LayoutError(
                f"the index has tensor {name[:80]!a} in {str(file)[:80]!a}, "
                f"which is no *{FILE_EXTENSION} beside it"
            )
        weight_map[name] = known.setdefault(file, file)
    metadata = members.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise LayoutError("the metadata of the index is not an object")
    block = Block.decode_string(metadata.pop(BLOCK_KEY, None), raw)
    if block is not None:
        block.check_outside([(0, raw)], (), size=source.size)
    return SetIndex(metadata, block, weight_map)


def _read_file(file: str, number: int) -> Generator[Need, memoryview, Header]:
    """The header of one data file; errors have its name."""
    try:
        return (yield from parse_header(file=file, number=number))
    except IncompleteCheckpointError as error:
        raise IncompleteCheckpointError(f"the set is incomplete: {file!r} is missing") from error
    except FormatError as error:
        error.locate(file)
        raise


def _require_all(index: SetIndex, stored: Sequence[StoredTensor]) -> None:
    missing = index.weight_map.keys() - {tensor.name for tensor in stored}
    if missing:
        name = min(missing)
        raise LayoutError(f"tensor {name!r} is not in {index.weight_map[name]!r}, where the index has it")


# -- the class -------------------------------------------------------------------------------------------------


class HuggingFaceSetFormat(ICheckpointFormat):
    """A set as transformers and vLLM load it, of files of at most `max_file_bytes` bytes of tensors.

    `side_files` (config.json, the tokenizer's) are written first and the index last, so that nobody who waits for
    the index sees half of a published folder.
    """

    name = "safetensors-set"
    extensions = (INDEX_EXTENSION,)
    dtypes = SafetensorsFormat.dtypes

    @checked
    def __init__(
        self,
        *,
        max_file_bytes: AtLeastOne = DEFAULT_FILE_BYTES,
        side_files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        for side, data in side_files.items():
            if not isinstance(data, bytes):
                raise InvalidArgumentError(
                    f"side file {side!a} must be bytes, not {type(data).__name__}: text needs .encode()"
                )
            if not is_file_name(side):
                raise LayoutError(f"side file {side[:80]!a} is not the name of a file beside the index")
        self._max_file_bytes = max_file_bytes
        self._side_files = dict(side_files)

    def losses(self, content: Content) -> list[str]:
        return super().losses(content) + name_losses(content)

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        text = bytes(head)
        if not text.lstrip().startswith(b"{"):
            return False
        signs = (b'"weight_map"', b'"total_size"', b'"asyncckpt": "{\\"block')
        return source.name.endswith(INDEX_EXTENSION) or any(sign in text for sign in signs)

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return plan_set(content, name, max_file_bytes=self._max_file_bytes, side_files=self._side_files)

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_set(source)
