"""`BlockHeader` and `indexed`: what one plans, the other reads again, and everything in between is checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asyncckpt.errors import ChecksumMismatchError, LayoutError, TruncatedError
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.encode import render
from asyncckpt.formats.kit.index import Extent, Index, StoredTensor
from asyncckpt.formats.kit.plan import Content, lay_out
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.model.checksums import crc32c
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata, TensorMetadata

ARRAYS: dict[str, np.ndarray] = {"b": np.arange(6, dtype=np.int16), "a": np.ones((2, 2), np.float32)}
TENSORS = tuple(TensorMetadata(name, str(a.dtype), a.shape) for name, a in ARRAYS.items())
BOXED = (replace(TENSORS[0], global_shape=(12,), origin=(6,)), TENSORS[1])
BEFORE, AFTER = b"<<", b">>"
ORDER = [1, 0]


def content(tensors: tuple[TensorMetadata, ...] = BOXED, *, shards: tuple[int, ...] = (1, 1)) -> Content:
    return Content(tensors, shards, CheckpointMetadata(custom_fields={"note": "x"}), {"d": []})


def header(of: Content) -> BlockHeader:
    return BlockHeader(BEFORE, build_block(of, of.chunking(), ORDER), AFTER)


def file(of: Content | None = None) -> bytes:
    """A file that lists its tensors backwards."""
    of = of or content()
    start = header(of)
    placed, size = lay_out([of.tensors[number] for number in ORDER], start.end)
    payloads = tuple(replace(payload, tensor=ORDER[payload.tensor]) for payload in placed)
    plan = start.plan("x", payloads, size=size, chunking=of.chunking())
    views = [memoryview(ARRAYS[t.name].tobytes()) for t in of.tensors]
    return render(plan, lambda tensor, begin, end: views[tensor][begin:end])


def listed(of: Content | None = None) -> list[StoredTensor]:
    of = of or content()
    bare = [TensorMetadata(t.name, t.dtype, t.shape) for t in (of.tensors[number] for number in ORDER)]
    payloads, _ = lay_out(bare, header(of).end)
    return [StoredTensor(t, (Extent(p.offset, p.size),)) for t, p in zip(bare, payloads, strict=True)]


def block_of(data: bytes) -> Block:
    return Block.decode(load_json(data[len(BEFORE) : data.index(AFTER)], "the block"))


def read(data: bytes, stored: list[StoredTensor] | None = None, *, end: int | None = None) -> Index:
    region = (0, memoryview(data)[: header(content()).end])
    return indexed(
        listed() if stored is None else stored,
        block_of(data),
        format="x",
        version="1",
        regions=[region],
        size=len(data) if end is None else end,
    )


def test_what_was_planned_is_read_again_in_its_order_with_boxes_and_shards() -> None:
    index = read(file())
    assert [stored.metadata for stored in index.tensors] == list(BOXED)
    assert [[t.name for t in shard.tensors] for shard in index.metadata.shards] == [["b"], ["a"]]
    assert index.metadata.custom_fields == {"note": "x"}
    assert index.tree == {"d": []}
    assert index.header_extents == (Extent(0, header(content()).end),)


def test_the_checksums_are_those_of_the_tensors() -> None:
    for stored in read(file()).tensors:
        assert stored.checksums is not None
        assert stored.checksums.tolist() == [crc32c(ARRAYS[stored.name].tobytes())]
        assert stored.chunk_bytes > 0


@pytest.mark.parametrize("at", [0, len(BEFORE) - 1, -1])
def test_a_changed_byte_around_the_block_is_found(at: int) -> None:
    data = bytearray(file())
    data[header(content()).end - 1 if at < 0 else at] ^= 1
    region = (0, memoryview(data)[: header(content()).end])
    with pytest.raises(ChecksumMismatchError, match="the header is damaged"):
        indexed(listed(), block_of(file()), format="x", version="1", regions=[region], size=len(data))


def test_bytes_that_are_left_over_and_bytes_that_lack_are_refused() -> None:
    data = file()
    with pytest.raises(LayoutError, match="3 bytes are left over"):
        read(data + b"abc")
    with pytest.raises(TruncatedError, match="tensor 'b' ends at"):
        read(data, end=len(data) - 1)


def test_two_tensors_of_one_name_are_refused() -> None:
    stored = listed()
    with pytest.raises(LayoutError, match="the same name"):
        read(file(), [stored[0], stored[0]])


def test_a_file_without_a_block_is_a_foreign_one() -> None:
    index = indexed(listed(), None, format="x", version="1", custom_fields={"a": 1})
    assert index.tree is None
    assert index.header_extents is None
    assert index.metadata == CheckpointMetadata(
        shards=(ShardMetadata(tensors=tuple(t.metadata for t in listed())),), custom_fields={"a": 1}
    )
    assert [stored.checksums for stored in index.tensors] == [None, None]


def test_the_formats_own_metadata_goes_before_the_blocks() -> None:
    own = CheckpointMetadata(world_size=3)
    index = indexed(listed(), block_of(file()), format="x", version="1", metadata=own)
    assert index.metadata == own
    assert [stored.name for stored in index.tensors] == ["a", "b"]
