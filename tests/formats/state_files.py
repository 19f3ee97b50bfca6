"""States, contents and arrays to the bytes of one or more files and back, in memory, for the tests of formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncckpt.formats.base import ICheckpointFormat, content_of, read_shards
from asyncckpt.formats.kit.decode import check_chunks, gather
from asyncckpt.formats.kit.encode import SetDigests, digest_file, render
from asyncckpt.formats.kit.index import Extent, FileInfo, Index
from asyncckpt.formats.kit.plan import Content, FilePlan, StreamPlan, TensorBytes
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.model.dtype import array_from
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.model.state.flatten import flatten
from asyncckpt.model.state.tree import rebuild


def content_of_state(
    state: Any, metadata: CheckpointMetadata | None = None
) -> tuple[Content, tuple[memoryview, ...]]:
    flat = flatten(state)
    shard = ShardData.from_arrays(flat.tensors | flat.payloads)
    tensors = shard.tensor_info
    return Content(tensors, (len(tensors),), metadata or CheckpointMetadata(), flat.tree), shard.views


def encode_files(
    fmt: ICheckpointFormat, state: Any, metadata: CheckpointMetadata | None = None, *, name: str | None = None
) -> dict[str, bytes]:
    """Every file of a state, in the order of writing."""
    content, views = content_of_state(state, metadata)
    return encode_content_files(fmt, content, views, name=name)


def encode_content_files(
    fmt: ICheckpointFormat, content: Content, views: Sequence[memoryview], *, name: str | None = None
) -> dict[str, bytes]:
    """Every file, in the order of writing; as when saving, the last knows the digests of all others."""
    read = from_views(views)
    files = {}
    earlier = SetDigests()
    *members, leader = fmt.plan(content, name=name or f"model{fmt.extension}")
    for plan in (*members, leader):
        assert isinstance(plan, FilePlan)
        digests = digest_file(plan, read)
        files[plan.name] = render(plan, read, earlier.with_earlier(digests) if plan is leader else digests)
        earlier.add(plan.name, digests)
    return files


def encode(fmt: ICheckpointFormat, state: Any, metadata: CheckpointMetadata | None = None) -> bytes:
    """A state as one file."""
    (data,) = encode_files(fmt, state, metadata).values()
    return data


def encode_arrays(
    fmt: ICheckpointFormat,
    arrays: Mapping[str, np.ndarray],
    metadata: CheckpointMetadata | None = None,
    *,
    name: str | None = None,
) -> bytes:
    """One shard, without a tree, as one file."""
    content, views = content_of([ShardData.from_arrays(arrays)], metadata or CheckpointMetadata())
    return encode_content(fmt, content, views, name=name)


def encode_content(
    fmt: ICheckpointFormat, content: Content, views: Sequence[memoryview], *, name: str | None = None
) -> bytes:
    """A content as one file, as large as its plan says."""
    (plan,) = fmt.plan(content, name=name or f"model{fmt.extension}")
    data = render(plan, from_views(views))
    if isinstance(plan, StreamPlan):
        assert len(data) <= plan.size_bound
    else:
        assert len(data) == plan.size
    return data


def from_views(views: Sequence[memoryview]) -> TensorBytes:
    """What a plan reads the bytes of its tensors with."""

    def read(tensor: int, start: int, end: int) -> memoryview:
        return views[tensor][start:end]

    return read


def parse(
    fmt: ICheckpointFormat,
    data: bytes,
    siblings: Mapping[str, bytes] | None = None,
    *,
    name: str | None = None,
) -> Index:
    views = {sibling: memoryview(content) for sibling, content in (siblings or {}).items()}
    source = FileInfo(name or f"model{fmt.extension}", len(data))
    return parse_bytes(fmt.parse(source), memoryview(data), views)


def arrays_of(
    index: Index, data: bytes, siblings: Mapping[str, bytes] | None = None
) -> dict[str, np.ndarray]:
    """Every tensor, verified."""
    files = [data, *((siblings or {})[name] for name in index.files[1:])]

    def fetch(extent: Extent) -> memoryview:
        return memoryview(files[extent.file])[extent.offset : extent.end]

    found = {}
    for stored in index.tensors:
        view = gather(stored, fetch)
        check_chunks(stored, view)
        found[stored.name] = array_from(view, stored.metadata.dtype, stored.metadata.shape)
    return found


def decode(fmt: ICheckpointFormat, data: bytes, siblings: Mapping[str, bytes] | None = None) -> Any:
    """The state of a file, or the flat dict of a foreign one."""
    index = parse(fmt, data, siblings)
    tensors = arrays_of(index, data, siblings)
    return tensors if index.tree is None else rebuild(index.tree, tensors)


def read_all(
    fmt: ICheckpointFormat, data: bytes, siblings: Mapping[str, bytes] | None = None
) -> tuple[Any, ...]:
    """Everything a file says, comparable bit by bit."""
    index = parse(fmt, data, siblings)
    tensors = arrays_of(index, data, siblings)
    listed = {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in tensors.items()}
    return index.metadata, index.tree, listed


def read_all_shards(fmt: ICheckpointFormat, data: bytes) -> tuple[Any, ...]:
    """Everything a file says, shard by shard, comparable bit by bit."""
    index = parse(fmt, data)
    shards = read_shards(index, memoryview(data))
    return (
        index.metadata,
        index.tree,
        [[(t, bytes(v)) for t, v in shard] for shard in shards],
        [t.metadata for t in index.tensors],
    )
