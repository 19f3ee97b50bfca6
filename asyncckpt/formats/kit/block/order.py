"""Between the order of a content and the order in which a format lists its tensors.

Some formats sort their tensors and know no shards. The file's own index, and the checksums of the block with it,
then have the *file's order*; the block's metadata says how to get back, where that is not obvious:

============ =================================================================================
member       value
============ =================================================================================
shards       as in the metadata, with no tensors in it: the file lists them; absent if none were given
shardTensors how many tensors each shard has, in the order of the content; absent for one shard
fileOrder    for each tensor of the file its number in the content; absent where the two orders are one
============ =================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.block.text import Block, BlockTemplate
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.formats.kit.metadata_json import decode_metadata, encode_metadata, with_shards
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.model.checksums import Checksums, Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json, ShardMetadata, TensorMetadata
from asyncckpt.model.tensors import TensorTable

SHARD_TENSORS = "shardTensors"
_FILE_ORDER = "fileOrder"


def build_block(
    content: Content,
    chunking: Chunking,
    order: Sequence[int] | None = None,
    extra: Mapping[str, Json] | None = None,
    *,
    outside: bool = True,
) -> BlockTemplate:
    """The block of a file that lists tensor `order[i]` of the content as its i-th; None: in the content's order.

    `extra` are members that the format itself adds to the block's metadata. Without `outside` the format has its own
    hashes over all of it. Raises UnsupportedStateError for metadata that can't be kept, LayoutError when it lists other
    shards than there are.
    """
    listed = range(len(content.tensors)) if order is None else order
    members = {**_encode_arranged(content, listed), **(extra or {})}
    return BlockTemplate.build(content, chunking, metadata=members, outside=outside)


def _encode_arranged(content: Content, order: Sequence[int]) -> dict[str, Json]:
    """The members of the content's metadata, and how its tensors were arranged. Raises LayoutError."""
    metadata = content.metadata
    bare = with_shards(metadata, [()] * len(content.shards))
    members = encode_metadata(bare, shards=bool(metadata.shards))
    if len(content.shards) != 1:
        members[SHARD_TENSORS] = list(content.shards)
    if list(order) != list(range(len(order))):
        members[_FILE_ORDER] = list(order)
    return members


def in_file_order(order: Sequence[int], chunking: Chunking, checksums: Checksums) -> Checksums:
    """The checksums of the tensors `order`, one after another, from those of the whole content."""
    chosen = np.asarray(order, np.int64)
    first = chunking.positions
    counts = np.diff(first)[chosen]
    # Behind one another: position p of the result belongs to tensor i, and is p - (where i begins) of its own.
    starts = np.cumsum(counts) - counts
    own: Checksums = checksums[np.arange(counts.sum()) + np.repeat(first[:-1][chosen] - starts, counts)]
    return own


def add_checksums(stored: Sequence[StoredTensor], block: Block) -> Sequence[StoredTensor]:
    """The tensors, listed in the order of the block, with its checksums and boxes. Raises LayoutError.

    A list is changed: a second one of very many small tensors would take more memory than their file.
    """
    if isinstance(stored, StoredTable):
        return _with_checksums(stored, block)
    listed = stored if isinstance(stored, list) else list(stored)
    block.share_names([tensor.name for tensor in listed])
    chunking = block.chunking([tensor.metadata.size for tensor in listed])
    for number, tensor in enumerate(listed):
        listed[number] = StoredTensor(
            block.boxed(tensor.metadata),
            tensor.extents,
            chunking.of_tensor(number, block.checksums),
            tensor.frames,
            tensor.order,
            tensor.absent,
            block.chunk_bytes,
        )
    return listed


def _with_checksums(stored: StoredTable, block: Block) -> StoredTable:
    tensors = stored.tensors
    block.share_names(tensors.names)
    chunking = block.chunking(tensors.sizes.tolist())
    if block.boxes:
        for number, name in enumerate(tensors.names):
            if name in block.boxes:
                block.boxed(tensors[number])
        tensors = tensors.with_boxes(block.boxes)
    first = np.asarray(chunking.first, np.int64)
    return stored.with_checksums(tensors, block.checksums, first, block.chunk_bytes)


def decode_arranged(
    value: Json, stored: Sequence[StoredTensor]
) -> tuple[CheckpointMetadata, Sequence[StoredTensor]]:
    """The metadata with its shards, and the tensors, given in the file's order, in the content's order.

    Raises LayoutError for members that `build_block` never writes.
    """
    if not isinstance(value, dict):
        raise LayoutError("the asyncckpt block has no metadata")
    members = dict(value)
    counts = members.pop(SHARD_TENSORS, [len(stored)])
    order = members.pop(_FILE_ORDER, None)
    metadata = decode_metadata(members)
    arranged = stored if order is None else _restored(order, stored)
    if not _are_counts(counts) or sum(counts) != len(stored):
        raise LayoutError(
            f"the asyncckpt block spreads its tensors over shards as {str(counts)[:80]}, there are {len(stored)}"
        )
    tensors = _tensors_of(arranged)
    groups, start = [], 0
    for count in counts:
        groups.append(tensors[start : start + count])
        start += count
    return with_shards(metadata, groups), arranged


def _tensors_of(stored: Sequence[StoredTensor]) -> Sequence[TensorMetadata]:
    return stored.tensors if isinstance(stored, StoredTable) else [tensor.metadata for tensor in stored]


def _restored(order: Json, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    if not _are_counts(order) or sorted(order) != list(range(len(stored))):
        raise LayoutError(f"the asyncckpt block has an order that is none of {len(stored)} tensors")
    if isinstance(stored, StoredTable):
        return stored.take(np.argsort(np.asarray(order, np.int64)).tolist())
    restored = list(stored)
    for number, tensor in zip(order, stored, strict=True):
        restored[number] = tensor
    return restored


def _are_counts(value: Json) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def foreign_metadata(stored: Sequence[StoredTensor], custom_fields: Mapping[str, Json]) -> CheckpointMetadata:
    """What is known of a file that carries no block: its tensors, as one shard, and what it says itself."""
    listed = _tensors_of(stored)
    shard = ShardMetadata(tensors=listed if isinstance(listed, TensorTable) else tuple(listed))
    return CheckpointMetadata(shards=(shard,), custom_fields=dict(custom_fields))
