"""The companions of MLCP: one `.shard` file for each shard, and the `.metadata.json` that names them.

`{prefix}_shard_{rank}.shard`, little-endian:

=============== ======= ==========================================================================
part            bytes   content
=============== ======= ==========================================================================
magic           4       52 41 48 53 ("RAHS", the Int32 0x53484152)
rank            4       Int32
checksum length 4       Int32, 64
checksum        64      SHA-256 of the data, lower-case hex
tensor count    4       Int32
data length     4       Int32
data            n       the tensors back to back, in the order of the metadata
=============== ======= ==========================================================================

`{prefix}.metadata.json` is MLCP's metadata as a file of its own. It is written last and exclusively: until it is
there, the set does not exist. The original writes 0 in every tensor's offset, which means back to back; we write
the offset within the data. The block stands in `customFields.asyncckpt`; its `outside` covers the JSON file, and the
shards' headers must be what the JSON says, byte for byte. Version 1.1.0 says that the block must be there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from asyncckpt.errors import (
    ChecksumMismatchError,
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.binary import LE_I32, Cursor
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.text import BLOCK_KEY, Block, BlockTemplate
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Need,
    ParseSteps,
    RegionDigest,
    StoredTensor,
    need_exactly,
    open_ahead,
)
from asyncckpt.formats.kit.metadata_json import with_shards
from asyncckpt.formats.kit.plan import Content, Digests, FilePlan, Payload, TensorBytes
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.formats.mlcp.file import MAX_METADATA_BYTES, as_listed, join_metadata, split_metadata
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.file_names import is_file_name
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata
from asyncckpt.model.ranges import ByteRange

MAGIC = bytes.fromhex("52414853")
VERSION = "1.1.0"
ORIGINAL_VERSION = "1.0.0"
SUFFIX = ".metadata.json"
CHECKSUM_BYTES = 64
HEADER_BYTES = 20 + CHECKSUM_BYTES
MAX_DATA_BYTES = 2**31 - 1
_HASH_BYTES = 4 * 1024 * 1024
_BEGINNING = re.compile(rb'\s*\{\s*"version"\s*:\s*"[^"]{0,16}"\s*,\s*"(?:timestamp|worldSize)')
_CHECKSUM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What comes before a shard's data."""

    rank: int
    checksum: str
    tensors: int
    data_bytes: int

    def encode(self) -> bytes:
        return b"".join(
            (
                MAGIC,
                LE_I32.pack(self.rank),
                LE_I32.pack(len(self.checksum)),
                self.checksum.encode("ascii"),
                LE_I32.pack(self.tensors),
                LE_I32.pack(self.data_bytes),
            )
        )

    @classmethod
    def decode(cls, data: memoryview, name: str) -> ShardHeader:
        """Raises LayoutError, TruncatedError."""
        cursor = Cursor(data, what=f"the header of {name!r}")
        magic = bytes(cursor.take(4))
        if magic != MAGIC:
            raise LayoutError(f"{name!r} is not a shard: it begins with {magic.hex(' ')}")
        rank = cursor.number(LE_I32)
        length = cursor.number(LE_I32)
        if length != CHECKSUM_BYTES:
            raise LayoutError(f"{name!r} has a checksum of {length} digits, SHA-256 has {CHECKSUM_BYTES}")
        checksum = cursor.text(length)
        if not _CHECKSUM.fullmatch(checksum):
            raise LayoutError(f"{name!r} has a checksum that is not lower-case hexadecimal")
        tensors, data_bytes = cursor.number(LE_I32), cursor.number(LE_I32)
        if tensors < 0 or data_bytes < 0:
            raise LayoutError(f"{name!r} has {tensors} tensors in {data_bytes} bytes")
        return cls(rank, checksum, tensors, data_bytes)


# -- plan ------------------------------------------------------------------------------------------------------


def plan_set(content: Content, name: str) -> list[FilePlan]:
    """One file for each shard, and the one that names them. Raises LayoutError, LimitExceededError."""
    chunking = content.chunking()
    metadata = _described(content, name.removesuffix(SUFFIX))
    plans, first = [], 0
    for shard in metadata.shards:
        payloads = tuple(
            Payload(first + i, HEADER_BYTES + t.offset, t.size) for i, t in enumerate(shard.tensors)
        )
        plans.append(_plan_shard(shard, payloads, chunking))
        first += len(payloads)
    return [*plans, _plan_metadata(name, content, metadata, plans, chunking)]


def _described(content: Content, prefix: str) -> CheckpointMetadata:
    """The metadata with every tensor's place; checksums are still zeros, of their final length."""
    given = replace(content.metadata, version=VERSION, format=content.metadata.format or "multishard")
    shards = []
    for shard in with_shards(given, list(content.by_shard())).shards:
        tensors, position = [], 0
        for tensor in shard.tensors:
            tensors.append(replace(tensor, offset=position))
            position += tensor.size
        if position > MAX_DATA_BYTES:
            raise LimitExceededError(
                f"shard {shard.rank} has {position} bytes, a .shard file holds {MAX_DATA_BYTES}: "
                "use more shards, or the format mlcp"
            )
        shards.append(
            replace(
                shard,
                file_path=f"{prefix}_shard_{shard.rank}.shard",
                file_size=HEADER_BYTES + position,
                tensors=tuple(tensors),
                checksum="0" * CHECKSUM_BYTES,
            )
        )
    ranks = [shard.rank for shard in shards]
    if len(set(ranks)) != len(ranks) or any(not 0 <= rank < 2**31 for rank in ranks):
        raise LayoutError(f"the shards of a set need ranks of their own, not {ranks[:20]}")
    return replace(given, shards=tuple(shards))


def _plan_shard(shard: ShardMetadata, payloads: tuple[Payload, ...], chunking: Chunking) -> FilePlan:
    """A shard; the metadata, which is written last, has its SHA-256 too."""

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        data_bytes = shard.file_size - HEADER_BYTES
        return [ShardHeader(shard.rank, digests.format, len(payloads), data_bytes).encode()]

    deferred = (ByteRange(0, HEADER_BYTES),)
    hashing = partial(_sha256, payloads)
    return FilePlan(
        shard.file_path, shard.file_size, payloads, deferred, chunking, finish, format_digest=hashing
    )


def _sha256(payloads: Sequence[Payload], read: TensorBytes) -> str:
    """Of the payloads, one behind the other, in lower-case hex."""
    value = hashlib.sha256()
    for payload in payloads:
        for start in range(0, payload.size, _HASH_BYTES):
            value.update(read(payload.tensor, start, min(payload.size, start + _HASH_BYTES)))
    return value.hexdigest()


def _plan_metadata(
    name: str,
    content: Content,
    metadata: CheckpointMetadata,
    shards: Sequence[FilePlan],
    chunking: Chunking,
) -> FilePlan:
    before, after, exact = split_metadata(metadata)
    header = BlockHeader(before, BlockTemplate.build(content, chunking, exact=exact), after)
    if header.size > MAX_METADATA_BYTES:
        raise LimitExceededError(f"the metadata has {header.size} bytes, {MAX_METADATA_BYTES} are allowed")

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        # Whoever writes the set knows the shards' digests; whoever renders this file alone does not.
        known = (digests.earlier.get(plan.name) or _sha256(plan.payloads, read) for plan in shards)
        described = tuple(
            replace(shard, checksum=checksum) for shard, checksum in zip(metadata.shards, known, strict=True)
        )
        text, _, _ = split_metadata(replace(metadata, shards=described))
        return replace(header, before=text).encode(digests.checksums, (), size=header.size)

    bare = [replace(shard, tensors=()) for shard in metadata.shards]
    file_type = metadata.format

    def describe(read: CheckpointMetadata, digests: Digests) -> CheckpointMetadata:
        shards = tuple(replace(shard, checksum=digests.earlier[shard.file_path]) for shard in bare)
        described = replace(read, version=VERSION, format=file_type, shards=shards)
        return with_shards(described, [as_listed(shard.tensors, HEADER_BYTES) for shard in read.shards])

    return FilePlan(name, header.size, (), (header.region,), chunking, finish, describe=describe)


# -- decode ----------------------------------------------------------------------------------------------------


def parse_set(source: FileInfo) -> ParseSteps:
    """Raises FormatError subclasses, and IncompleteCheckpointError when a shard is missing."""
    if source.size > MAX_METADATA_BYTES:
        raise LimitExceededError(f"the metadata has {source.size} bytes, {MAX_METADATA_BYTES} are allowed")
    text = yield from need_exactly(0, source.size, "the metadata")
    metadata, block_json = join_metadata(load_json(text, "the metadata"))
    if metadata.version.split(".")[0] != "1":
        raise UnsupportedVersionError(
            f"metadata of version {metadata.version!r} is not supported: upgrade asyncckpt to read it"
        )
    if block_json is None and metadata.version != ORIGINAL_VERSION:
        raise LayoutError(f"a set of version {metadata.version} needs the custom field {BLOCK_KEY!r}")
    block = None if block_json is None else Block.decode(block_json)
    if block is not None:
        # Before the shards are asked for: what it says of them is to be believed.
        block.check_outside([(0, text)], (), size=source.size)
    files, digests, stored = [""], [], []
    extents = [Extent(0, source.size)]
    names = [_file_name(shard, source) for shard in metadata.shards]
    yield from open_ahead(names)
    for shard, name in zip(metadata.shards, names, strict=True):
        header = yield from _parse_shard(shard, name, ours=block is not None)
        extents.append(Extent(0, HEADER_BYTES, len(files)))
        extent = Extent(HEADER_BYTES, header.data_bytes, len(files))
        digests.append(
            RegionDigest(f"the data of {name!r}", "sha256", extent, bytes.fromhex(header.checksum))
        )
        stored += _stored_tensors(shard, header, len(files))
        files.append(name)
    if len(set(files)) != len(files):
        raise LayoutError("two shards of the set have the same name")
    return indexed(
        stored,
        block,
        format=MlcpSetFormat.name,
        version=metadata.version,
        metadata=metadata,
        header_extents=None if block is None else tuple(extents),
        files=tuple(files),
        digests=tuple(digests),
        details={"shards": len(metadata.shards), "metadataBytes": source.size},
    )


def _file_name(shard: ShardMetadata, source: FileInfo) -> str:
    """The shard's file, beside the metadata: folders of its path, the original's own, are left out."""
    name = re.split(r"[/\\]", shard.file_path)[-1]
    if not name:
        name = f"{source.name.removesuffix(SUFFIX)}_shard_{shard.rank}.shard"
    if not is_file_name(name) or name == source.name:
        raise LayoutError(f"shard {shard.rank} has the file name {name[:80]!r}")
    return name


def _parse_shard(shard: ShardMetadata, name: str, *, ours: bool) -> Generator[Need, memoryview, ShardHeader]:
    start = yield Need(0, HEADER_BYTES, name)
    header = ShardHeader.decode(start, name)
    if shard.checksum and shard.checksum != header.checksum:
        raise ChecksumMismatchError(
            f"{name!r} has the checksum {header.checksum}, the metadata {shard.checksum}"
        )
    if header.rank != shard.rank or header.tensors != len(shard.tensors):
        raise LayoutError(
            f"{name!r} is rank {header.rank} with {header.tensors} tensors, the metadata says rank {shard.rank} "
            f"with {len(shard.tensors)}"
        )
    size = HEADER_BYTES + header.data_bytes
    if shard.file_size not in ((size,) if ours else (size, 0)):
        raise LayoutError(f"{name!r} has {size} bytes by its header, {shard.file_size} by the metadata")
    # The last byte must be there, and nothing behind it.
    end = yield Need(size - 1, 2, name)
    if len(end) != 1:
        raise TruncatedError(
            f"{name!r} {'is longer' if end else 'is shorter'} than its {size} bytes of header and data"
        )
    return header


def _stored_tensors(shard: ShardMetadata, header: ShardHeader, file: int) -> list[StoredTensor]:
    """Raises LayoutError unless the tensors fill the data, one behind the other."""
    back_to_back = all(tensor.offset == 0 for tensor in shard.tensors)
    stored, position = [], 0
    for tensor in shard.tensors:
        if not back_to_back and tensor.offset != position:
            raise LayoutError(
                f"tensor {tensor.name!r} begins at {tensor.offset} of the data, {position} was expected"
            )
        extent = Extent(HEADER_BYTES + position, tensor.size, file)
        stored.append(StoredTensor(tensor, (extent,)))
        position += tensor.size
    if position != header.data_bytes:
        raise LayoutError(
            f"the tensors of shard {shard.rank} have {position} bytes, its data has {header.data_bytes}"
        )
    return stored


# -- the class -------------------------------------------------------------------------------------------------


class MlcpSetFormat(ICheckpointFormat):
    """One file for each shard, as the original's multi-shard checkpoints are."""

    name = "mlcp-set"
    extensions = (SUFFIX,)
    version = VERSION

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return _BEGINNING.match(bytes(head[:128])) is not None

    def plan(self, content: Content, *, name: str) -> Sequence[FilePlan]:
        self.require_representable(content)
        return plan_set(content, name)

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_set(source)
