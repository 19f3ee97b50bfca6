"""Other metadata for an SDNB file that exists, without touching its arrays: what the new bytes are, and where.

The rebuilt graph and the manifest go behind the arrays; the header and the root's place, bytes 0 to 36, then lead
there. Arrays keep their places, so whoever writes the file can have them copied.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.binary import LE_U32
from asyncckpt.formats.block import Block, BlockText, seal
from asyncckpt.formats.flatgraph import MAX_GRAPH_BYTES
from asyncckpt.formats.flatgraph_build import replace_metadata
from asyncckpt.formats.index import Extent, Index, Need, SourceInfo
from asyncckpt.formats.plan import Content
from asyncckpt.formats.sdnb import block_metadata
from asyncckpt.formats.sdnb_header import (
    ALIGNMENT,
    BLOCK_KEY,
    HEADER_BYTES,
    RESERVED_KEYS,
    ROOT_BYTES,
    SHARD_TYPE_KEY,
    Header,
    SdnbOptions,
)
from asyncckpt.formats.sdnb_parse import SdnbFile, index_files, read_file
from asyncckpt.model.digests import Chunking


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


def amend(source: SourceInfo, metadata: Mapping[str, str]) -> Generator[Need, memoryview, Amendment]:
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
    block = None
    if file.block is not None and index is not None:
        block = _new_block(file.block, index, metadata)
        texts[BLOCK_KEY] = " " * block.size
    rebuilt = replace_metadata(file.window, file.graph.root, list(texts.items()))
    arrays_end = max((o + n for o, n in file.manifest.values() if n), default=0)
    if arrays_end:
        start = arrays_end + (file.window_start - arrays_end) % ALIGNMENT
        kept = (len(old_head), arrays_end)
    else:
        start, kept = HEADER_BYTES, (HEADER_BYTES, HEADER_BYTES)
        old_head = old_head[:HEADER_BYTES]
    root = start + rebuilt.root - HEADER_BYTES
    if start + len(rebuilt.data) > MAX_GRAPH_BYTES:
        raise LimitExceededError(
            f"the new graph would end at {start + len(rebuilt.data)}, it must end before 2 GiB: save in shards"
        )
    manifest = bytes(next(data for at, data in file.regions if at == file.header.manifest_offset))
    manifest_offset = start + len(rebuilt.data)
    head = bytearray(old_head)
    head[:HEADER_BYTES] = Header(manifest_offset, len(manifest)).encode()
    graph = bytearray(rebuilt.data)
    LE_U32.pack_into(graph if start == HEADER_BYTES else head, HEADER_BYTES if start > HEADER_BYTES else 0, root)
    if block is not None and index is not None and file.block is not None:
        at = start + rebuilt.last_value
        graph[rebuilt.last_value : rebuilt.last_value + block.size] = block.render(at, file.block.checksums)
        moved = start + len(rebuilt.data) - len(file.window)  # where the old window now begins, less what follows it
        spans = _spans(file, index, start + rebuilt.image, len(file.window))
        regions = [(0, bytes(head)), (start, bytes(graph)), (manifest_offset, manifest)]
        size = manifest_offset + len(manifest)
        sealed = seal(regions, spans, size=size, at=at + block.outside_position)
        head, graph = bytearray(sealed[0]), bytearray(sealed[1])
    tail = bytes(start - kept[1]) + bytes(graph) + manifest
    return Amendment(bytes(head), kept[0], kept[1], tail)
