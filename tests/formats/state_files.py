"""Whole states to the bytes of one or more files and back, in memory, for the tests of formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncckpt.formats.assemble import check_chunks, gather
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.index import Extent, Index, SourceInfo, parse_bytes
from asyncckpt.formats.plan import Content, FilePlan
from asyncckpt.formats.render import digest_file, render
from asyncckpt.model.dtype import array_from
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.model.structure import rebuild
from asyncckpt.model.tree import flatten


def content_of_state(
    state: Any, metadata: CheckpointMetadata | None = None
) -> tuple[Content, tuple[memoryview, ...]]:
    flat = flatten(state)
    shard = ShardData.from_arrays(flat.tensors)
    tensors = shard.tensor_info
    return Content(tensors, (len(tensors),), metadata or CheckpointMetadata(), flat.structure), shard.views


def encode_files(
    fmt: ICheckpointFormat, state: Any, metadata: CheckpointMetadata | None = None, *, name: str | None = None
) -> dict[str, bytes]:
    """Every file of a state, in the order of writing; as when saving, each knows the digests of those before it."""
    content, views = content_of_state(state, metadata)

    def read(tensor: int, start: int, end: int) -> memoryview:
        return views[tensor][start:end]

    files = {}
    checksums = None
    for plan in fmt.plan(content, name=name or f"model{fmt.extension}"):
        assert isinstance(plan, FilePlan)
        digests = digest_file(plan, read, checksums)
        checksums = digests.checksums
        files[plan.name] = render(plan, read, digests)
    return files


def encode(fmt: ICheckpointFormat, state: Any, metadata: CheckpointMetadata | None = None) -> bytes:
    """A state as one file."""
    (data,) = encode_files(fmt, state, metadata).values()
    return data


def parse(fmt: ICheckpointFormat, data: bytes, siblings: Mapping[str, bytes] | None = None) -> Index:
    views = {name: memoryview(content) for name, content in (siblings or {}).items()}
    return parse_bytes(fmt.parse(SourceInfo(f"model{fmt.extension}", len(data))), memoryview(data), views)


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
        check_chunks(stored, index.chunk_bytes, view)
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
    return index.tree, index.metadata, listed
