"""Other metadata for an SDNB file that exists, without touching its arrays: what the new bytes are, and where.

The rebuilt graph and the manifest go behind the arrays; the header and the root's place, bytes 0 to 36, then lead
there. Arrays keep their places, so whoever writes the file can have them copied.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.kit.binary import LE_U32
from asyncckpt.formats.kit.block.seal import with_header_crc
from asyncckpt.formats.kit.block.text import Block, BlockTemplate
from asyncckpt.formats.kit.index import FileInfo, Index, Need
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.sdnb.format import block_metadata
from asyncckpt.formats.sdnb.graph.amend import replace_metadata
from asyncckpt.formats.sdnb.graph.read import MAX_GRAPH_BYTES
from asyncckpt.formats.sdnb.header import (
    ALIGNMENT,
    BLOCK_KEY,
    HEADER_BYTES,
    RESERVED_KEYS,
    ROOT_BYTES,
    SHARD_TYPE_KEY,
    Header,
    SdnbOptions,
)
from asyncckpt.formats.sdnb.parse import index_files, read_file
from asyncckpt.formats.sdnb.variables import SdnbFile
from asyncckpt.model.checksums import Chunking


@dataclass(frozen=True, slots=True)
class Amendment:
    """A new file: `head`, then bytes [kept_start, kept_end) of the old one as they are, then `tail`."""

    head: bytes
    kept_start: int
    kept_end: int
    tail: bytes

    @property
    def size(self) -> int:
        return self.kept_end + len(self.tail)


def amend(source: FileInfo, metadata: Mapping[str, str]) -> Generator[Need, memoryview, Amendment]:
    """Asks for the file's header, graph and manifest as a parser does.

    Raises FormatError subclasses: the file is verified first, as far as it can be without reading the arrays.
    """
    file = yield from read_file("", source.size)
    _check_metadata(metadata, file)
    index = None
    if file.block is not None:
        index = yield from index_files([file], ("",), SdnbOptions(load_updater_state=False))
    taken = sorted(offset for offset, length in file.manifest.values() if length)
    first = min(taken, default=file.header.manifest_offset)
    old_head = yield from _old_head(file, first)
    return _plan(file, index, metadata, old_head)


def _old_head(file: SdnbFile, end: int) -> Generator[Need, memoryview, bytes]:
    data = yield Need(0, end)
    if len(data) != end:
        raise LayoutError(f"the file ended at {len(data)} while it was read")
    return bytes(data)


def _check_metadata(metadata: Mapping[str, str], file: SdnbFile) -> None:
    for key, value in metadata.items():
        if key in RESERVED_KEYS:
            raise LayoutError(f"the metadata key {key!r} is the format's own; choose another one")
        if not isinstance(key, str) or not isinstance(value, str):
            raise LayoutError(f"metadata is text, {key!r} has a value of type {type(value).__name__}")
    if file.graph.metadata.get(SHARD_TYPE_KEY) == "weights":
        raise LayoutError("metadata belongs to shard 0 of a set; this shard holds arrays only")


def _plan(file: SdnbFile, index: Index | None, metadata: Mapping[str, str], old_head: bytes) -> Amendment:
    texts = {key: text for key, text in file.graph.metadata.items() if key != BLOCK_KEY} | dict(metadata)
    block = None if file.block is None or index is None else _new_block(file.block, index, metadata)
    if block is not None:
        texts[BLOCK_KEY] = " " * block.size
    rebuilt = replace_metadata(file.window, file.graph.root, list(texts.items()))
    arrays_end = max((offset + length for offset, length in file.manifest.values() if length), default=0)
    start = arrays_end + (file.window_start - arrays_end) % ALIGNMENT if arrays_end else HEADER_BYTES
    manifest_offset = start + len(rebuilt.data)
    if manifest_offset > MAX_GRAPH_BYTES:
        raise LimitExceededError(
            f"the new graph would end at {manifest_offset}, readers of SDNB need it before 2 GiB: save in shards"
        )
    # Without arrays nothing has to keep its place: the new graph takes the old one's.
    front = bytearray(old_head if arrays_end else old_head[:HEADER_BYTES])
    manifest = bytes(next(data for at, data in file.regions if at == file.header.manifest_offset))
    front[:HEADER_BYTES] = Header(manifest_offset, len(manifest)).encode()
    graph = bytearray(rebuilt.data)
    root = LE_U32.pack(start + rebuilt.root - HEADER_BYTES)
    if arrays_end:
        front[HEADER_BYTES : HEADER_BYTES + ROOT_BYTES] = root
    else:
        graph[:ROOT_BYTES] = root
    if block is not None and index is not None and file.block is not None:
        at = start + rebuilt.last_value
        graph[rebuilt.last_value : rebuilt.last_value + block.size] = block.render(at, file.block.checksums)
        spans = _spans(file, index, moved=start + rebuilt.image - file.window_start)
        regions = [(0, bytes(front)), (start, bytes(graph)), (manifest_offset, manifest)]
        size = manifest_offset + len(manifest)
        front_bytes, graph_bytes, manifest = with_header_crc(
            regions, spans, size=size, at=at + block.outside_position
        )
    else:
        front_bytes, graph_bytes = bytes(front), bytes(graph)
    kept_start = len(front_bytes)
    kept_end = max(kept_start, arrays_end)
    return Amendment(front_bytes, kept_start, kept_end, bytes(start - kept_end) + graph_bytes + manifest)


def _new_block(block: Block, index: Index, metadata: Mapping[str, str]) -> BlockTemplate:
    """The same block, with the new texts among the custom fields."""
    old = index.metadata
    shards = tuple(len(shard.tensors) for shard in old.shards)
    tensors = tuple(stored.metadata for stored in index.tensors)
    changed = replace(old, custom_fields={**old.custom_fields, **metadata})
    content = Content(tensors, shards, changed, block.tree)
    chunking = Chunking.of(block.chunk_bytes, [tensor.size for tensor in tensors])
    return BlockTemplate.build(content, chunking, metadata=block_metadata(content))


def _spans(file: SdnbFile, index: Index, *, moved: int) -> list[tuple[int, int]]:
    """Where the arrays lie in the new file: the appended ones as before, those in the graph moved with it."""
    spans = []
    window = range(file.window_start, file.window_start + len(file.window))
    for stored in index.tensors:
        for extent in stored.extents:
            shift = moved if extent.offset in window else 0
            spans.append((extent.offset + shift, extent.end + shift))
    return spans
