"""The two layouts of a METAGRAPH bundle that is written, and what closes either of them.

Plain: header, section index, NODES, EDGES, INDEX, METADATA, STORE, SIGNATURE. All sizes are known before.
Streamed (compressed, encrypted, delta): header, section index, STORE, NODES, EDGES, INDEX, METADATA, SIGNATURE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.index import FileInfo, ParseSteps, StoredTensor
from asyncckpt.formats.kit.made import MadeFile
from asyncckpt.formats.kit.metadata_json import with_shards
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, StreamPlan, TensorBytes, aligned, lay_out
from asyncckpt.formats.metagraph.codec import Codec, RandomBytes, stored_bound
from asyncckpt.formats.metagraph.delta import BaseBundle
from asyncckpt.formats.metagraph.hashing import hash_of, root_of
from asyncckpt.formats.metagraph.header import (
    HEADER_BYTES,
    SECTION_ALIGNMENT,
    SECTION_BYTES,
    STORE_ALIGNMENT,
    Flag,
    Header,
    Section,
    SectionType,
)
from asyncckpt.formats.metagraph.metadata import MAX_FRAME_BYTES, MetadataText
from asyncckpt.formats.metagraph.records import (
    Entry,
    NodeTable,
    checksum_text,
    encode_edges,
    encode_index,
    index_size,
)
from asyncckpt.formats.metagraph.signature import SIGNATURE_BYTES, sign
from asyncckpt.formats.metagraph.store import ALIGNMENT, StoreStream, hash_store
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.ranges import ByteRange

PLAIN_ORDER = (
    SectionType.NODES,
    SectionType.EDGES,
    SectionType.INDEX,
    SectionType.METADATA,
    SectionType.STORE,
)
STREAM_ORDER = (
    SectionType.STORE,
    SectionType.NODES,
    SectionType.EDGES,
    SectionType.INDEX,
    SectionType.METADATA,
)


@dataclass(frozen=True, slots=True)
class Writing:
    """What a bundle is to be, apart from its content. `bundle_id` None: taken from the root."""

    codec: Codec
    creator: str
    description: str
    creation_time: int
    bundle_id: int | None
    signing_key: bytes | None = field(repr=False)
    base: BaseBundle | None
    random: RandomBytes

    @property
    def flags(self) -> int:
        signed = Flag.SIGNED if self.signing_key is not None else 0
        return self.codec.flags | signed | (Flag.DELTA if self.base is not None else 0)

    @property
    def head_bytes(self) -> int:
        """The header and the section index."""
        count = len(PLAIN_ORDER) + (self.signing_key is not None)
        return HEADER_BYTES + count * SECTION_BYTES

    def metadata_text(self, content: Content, chunking: Chunking) -> MetadataText:
        """Raises LayoutError when the content's metadata is not JSON."""
        block = build_block(content, chunking, outside=False)
        return MetadataText.build(
            block,
            [number for number in sorted(PLAIN_ORDER) if number != SectionType.METADATA],
            creator=self.creator,
            description=self.description,
            modification_time=self.creation_time,
            compressed=bool(self.codec.flags & Flag.COMPRESSED),
            frame_bytes=chunking.chunk_bytes if self.codec.flags else 0,
            base=None if self.base is None else self.base.reference,
        )

    def close(self, sections: Sequence[Section], hashes: Mapping[int, bytes]) -> tuple[bytes, bytes]:
        """The header with the section index, and the bytes of SIGNATURE, which are none without a key."""
        rows = [section.with_hash(hashes[section.type]) for section in sections]
        end = rows[-1].end
        if self.signing_key is not None:
            signature_at = aligned(end, SECTION_ALIGNMENT)
            rows.append(Section(SectionType.SIGNATURE, 0, signature_at, SIGNATURE_BYTES, 0, 1))
            end = signature_at + SIGNATURE_BYTES
        section_index = b"".join(row.encode() for row in rows)
        root = root_of(section_index, [hashes[section.type] for section in sections])
        header = Header(
            flags=self.flags,
            total_size=end,
            creation_time=self.creation_time,
            bundle_id=int.from_bytes(root[8:16], "little") if self.bundle_id is None else self.bundle_id,
            bundle_checksum=int.from_bytes(root[:8], "little"),
            section_count=len(rows),
            delta_base_id=0 if self.base is None else self.base.reference.bundle_id & 0xFFFFFFFF,
        ).encode()
        signature = b"" if self.signing_key is None else sign(self.signing_key, header, root)
        return header + section_index, signature


# -- plain -----------------------------------------------------------------------------------------------------


def plan_plain(content: Content, name: str, writing: Writing) -> FilePlan:
    """A bundle whose layout is known before a byte is written. Raises LayoutError, LimitExceededError."""
    chunking = content.chunking()
    nodes = NodeTable.build(content.tensors)
    edges = encode_edges(content.shards)
    text = writing.metadata_text(content, chunking)
    sizes = {
        SectionType.NODES: nodes.size,
        SectionType.EDGES: len(edges),
        SectionType.INDEX: index_size(len(content.tensors)),
        SectionType.METADATA: text.size,
    }
    offsets, tables_end = _lay_out(sizes, writing.head_bytes)
    store_start = aligned(tables_end, STORE_ALIGNMENT)
    payloads, store_end = lay_out(content.tensors, store_start, alignment=ALIGNMENT)
    entries = [Entry(nodes.ids[p.tensor], p.offset, p.size, p.size) for p in payloads]
    sections = [
        Section(number, 0, offsets[number], sizes[number], 0, _items(number, content, frames=0))
        for number in sizes
    ]
    sections.append(Section(SectionType.STORE, 0, store_start, store_end - store_start, 0, len(payloads)))

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        store_hash, hashes = digests.format
        tables = {
            SectionType.NODES: nodes.encode(hashes),
            SectionType.EDGES: edges,
            SectionType.INDEX: encode_index(entries),
        }
        section_hashes: dict[int, bytes] = {number: hash_of(data) for number, data in tables.items()}
        section_hashes[SectionType.STORE] = store_hash
        tables[SectionType.METADATA] = text.render(section_hashes, digests.checksums)
        section_hashes[SectionType.METADATA] = hash_of(tables[SectionType.METADATA])
        head, signature = writing.close(sections, section_hashes)
        region = bytearray(tables_end)
        region[: len(head)] = head
        for number, data in tables.items():
            region[offsets[number] : offsets[number] + len(data)] = data
        return [bytes(region), signature] if signature else [bytes(region)]

    late, size = [ByteRange(0, tables_end)], store_end
    if writing.signing_key is not None:
        size = aligned(store_end, SECTION_ALIGNMENT) + SIGNATURE_BYTES
        late.append(ByteRange(size - SIGNATURE_BYTES, size))
    hashing = partial(hash_store, payloads, store_start)
    return FilePlan(
        name, size, payloads, tuple(late), chunking, finish, format_digest=hashing, describe=_described
    )


def _described(metadata: CheckpointMetadata, digests: Digests) -> CheckpointMetadata:
    """The metadata with the hash of every tensor."""
    _, hashes = digests.format
    own = iter(hashes)
    groups = [
        [replace(tensor, checksum=checksum_text(next(own))) for tensor in shard.tensors]
        for shard in metadata.shards
    ]
    return with_shards(metadata, groups)


def _lay_out(sizes: Mapping[SectionType, int], start: int) -> tuple[dict[SectionType, int], int]:
    offsets = {}
    for number, size in sizes.items():
        offsets[number] = aligned(start, SECTION_ALIGNMENT)
        start = offsets[number] + size
    return offsets, start


def _items(number: SectionType, content: Content, *, frames: int, stored: int | None = None) -> int:
    tensors = len(content.tensors)
    if number == SectionType.EDGES:
        return len(content.shards)
    if number == SectionType.METADATA:
        return 1
    if number == SectionType.STORE and frames:
        return frames
    return tensors if number == SectionType.NODES or stored is None else stored


# -- streamed --------------------------------------------------------------------------------------------------


def plan_stream(
    content: Content, name: str, writing: Writing, parse: Callable[[FileInfo], ParseSteps]
) -> StreamPlan:
    """A bundle that is made while it is written; `parse` reads it. Raises LayoutError, LimitExceededError."""
    stream = _Stream(content, writing)

    def stored() -> Sequence[StoredTensor]:
        # Where the tensors of a delta's base lie is in the base, which is not read here.
        if writing.base is not None:
            return ()
        return stream.made.parse(parse(FileInfo(name, stream.made.size)), stream.head()).tensors

    return StreamPlan(name, stream.size_bound(), stream.chunks, writing.head_bytes, stream.head, stored)


class _Stream:
    """The sections of one bundle, made one after another."""

    def __init__(self, content: Content, writing: Writing) -> None:
        self._content = content
        self._writing = writing
        self._chunking = content.chunking()
        if writing.codec.flags and self._chunking.chunk_bytes > MAX_FRAME_BYTES:
            raise LimitExceededError(
                f"frames of {self._chunking.chunk_bytes} bytes are too large: at most {MAX_FRAME_BYTES} are allowed"
            )
        self._nodes = NodeTable.build(content.tensors)
        self._text = writing.metadata_text(content, self._chunking)
        known = {} if writing.base is None else writing.base.hashes
        self._store = StoreStream(
            ids=self._nodes.ids,
            chunking=self._chunking,
            codec=writing.codec,
            start=aligned(writing.head_bytes, STORE_ALIGNMENT),
            known=[known.get(tensor.name) for tensor in content.tensors],
            random=writing.random,
        )
        self._sections: list[Section] = []
        self._hashes: dict[int, bytes] = {}
        self._head: bytes | None = None
        self.made = MadeFile()

    def size_bound(self) -> int:
        flags, chunking = self._writing.codec.flags, self._chunking
        frames = chunking.count if flags else 0
        tensors = len(chunking.sizes)
        # Each run adds its own overhead; for payloads without frames it is the padding.
        payload = stored_bound(sum(chunking.sizes), flags) + chunking.count * (stored_bound(0, flags) + 64)
        tables = self._nodes.size + 16 * len(self._content.shards) + index_size(tensors, frames)
        rest = stored_bound(tables + self._text.size, flags) + 8 * (
            stored_bound(0, flags) + SECTION_ALIGNMENT
        )
        return self._store.start + payload + 64 * tensors + rest + SIGNATURE_BYTES

    def head(self) -> bytes:
        if self._head is None:
            raise LayoutError("the head of a bundle is known only when all of it was made")
        return self._head

    def chunks(self, read: TensorBytes) -> Iterator[bytes]:
        """Everything behind the head, in order."""
        store = self._store
        self._sections, self._hashes, self._head = [], {}, None
        self.made = made = MadeFile(self._writing.head_bytes)
        yield made.keep(bytes(store.start - self._writing.head_bytes))
        for data in store.chunks(read):
            made.skip(data)
            yield data
        self._note(SectionType.STORE, self._writing.codec.flags, store.start, store.end, store.digest)
        yield from self._section(SectionType.NODES, self._nodes.encode(store.hashes, in_base=store.in_base))
        yield from self._section(SectionType.EDGES, encode_edges(self._content.shards))
        yield from self._section(SectionType.INDEX, encode_index(store.entries, store.frames))
        yield from self._section(SectionType.METADATA, self._text.render(self._hashes, store.checksums))
        self._head, signature = self._writing.close(self._sections, self._hashes)
        if signature:
            end = self._sections[-1].end
            yield made.keep(bytes(aligned(end, SECTION_ALIGNMENT) - end) + signature)

    def _section(self, number: SectionType, raw: bytes) -> Iterator[bytes]:
        flags, stored = self._writing.codec.encode_section(number, raw, self._writing.random)
        end = self._sections[-1].end
        offset = aligned(end, SECTION_ALIGNMENT)
        self._note(number, flags, offset, offset + len(stored), hash_of(stored))
        yield self.made.keep(bytes(offset - end) + stored)

    def _note(self, number: SectionType, flags: int, start: int, end: int, digest: bytes) -> None:
        items = _items(number, self._content, frames=len(self._store.frames), stored=len(self._store.entries))
        self._sections.append(Section(number, flags, start, end - start, 0, items))
        self._hashes[number] = digest
