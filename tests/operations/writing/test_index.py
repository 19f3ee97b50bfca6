"""The index that a save returns is the one that opening the checkpoint yields, for every format."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt._aio import ByteBudget, WorkerThreads
from asyncckpt.bundles import MetagraphFormat, base_bundle
from asyncckpt.cancellation import cancel_scope
from asyncckpt.errors import CheckpointError
from asyncckpt.formats.base import ICheckpointFormat, content_of
from asyncckpt.formats.kit.index import Index
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import Meter, Operation
from asyncckpt.operations.writing.commit import writing
from asyncckpt.operations.writing.session import Destination
from asyncckpt.operations.writing.source import MemorySource
from asyncckpt.operations.writing.staging.stage import Staged
from asyncckpt.operations.writing.staging.stager import HandedOver
from asyncckpt.progress import ProgressReporter
from asyncckpt.storage.base import Capabilities
from asyncckpt.storage.memory import MemoryStorage

MIB = 1024 * 1024


class InOrder(MemoryStorage):
    """Takes its parts one after another, as GCS does."""

    capabilities = Capabilities(any_order=False)


FORMATS: dict[str, Callable[[], ICheckpointFormat]] = {
    **{name: lambda name=name: get_format(name) for name in format_names()},  # type: ignore[misc]
    "safetensors-set of several files": lambda: HuggingFaceSetFormat(
        max_file_bytes=3 * MIB, side_files={"config.json": b"{}", "empty": b""}
    ),
    "sdnb without inline": lambda: SdnbFormat(inline_below=0),
    "sdnb in shards": lambda: SdnbFormat(shards=3),
    "sdz, stored": lambda: SdzFormat(compress=False),
}


def states() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "empty": {},
        "plain": {"lr": 0.5, "steps": [1, 2, {"deep": None}]},
        "small": {
            "w": np.arange(100, dtype=np.float32),
            "none": np.zeros((0, 3), np.float32),
            "scalar": np.array(2, np.int32),
            "nested": [rng.integers(0, 9, (3, 5), np.int32), {"step": 7}],
        },
        "large": {
            f"t{i}": rng.random(size, np.float32) for i, size in enumerate([2_500_000, 10, 600_000, 1, 7])
        },
        "many": {f"p{i}": np.full(30, i, np.float32) for i in range(2_000)},
    }


METADATA = CheckpointMetadata(
    timestamp=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
    world_size=4,
    custom_fields={"run": "a", "note": {"lr": [1, 2.5, None]}},
)


def assert_same(made: Index, read: Index) -> None:
    assert [t.name for t in made.tensors] == [t.name for t in read.tensors]
    for ours, theirs in zip(made.tensors, read.tensors, strict=True):
        assert ours.metadata == theirs.metadata
        assert (ours.extents, ours.runs, ours.order) == (theirs.extents, theirs.runs, theirs.order)
        assert (ours.chunk_bytes, ours.absent) == (theirs.chunk_bytes, theirs.absent)
        assert ours.checksums is not None
        assert theirs.checksums is not None
        assert ours.checksums.dtype == theirs.checksums.dtype
        assert np.array_equal(ours.checksums, theirs.checksums)
    assert (made.format, made.version, made.files) == (read.format, read.version, read.files)
    assert made.tree == read.tree
    assert made.metadata == read.metadata
    assert made.seals == read.seals


@pytest.mark.parametrize("storage", [MemoryStorage, InOrder])
@pytest.mark.parametrize("content", states())
@pytest.mark.parametrize("kind", FORMATS)
async def test_of_a_save(kind: str, content: str, storage: Callable[[], MemoryStorage]) -> None:
    format, place = FORMATS[kind](), storage()
    result = await asyncckpt.save(
        states()[content], (place, f"run/model{format.extension}"), format=format, metadata=METADATA
    )
    async with asyncckpt.open_checkpoint(result.location) as checkpoint:
        assert_same(result.index, checkpoint.index)


KEY = bytes(range(32))


@pytest.mark.parametrize("options", [{"compress": True}, {"key": KEY}, {"signing_key": KEY}])
async def test_of_a_bundle_that_is_compressed_encrypted_or_signed(options: dict[str, Any]) -> None:
    format = MetagraphFormat(**options)
    place = (MemoryStorage(), "model.mgb")
    result = await asyncckpt.save(states()["small"], place, format=format, metadata=METADATA)
    async with asyncckpt.open_checkpoint(place, format=format) as checkpoint:
        assert_same(result.index, checkpoint.index)


async def test_a_delta_does_not_know_where_the_tensors_of_its_base_are() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(states()["small"], (storage, "base.mgb"))
    async with asyncckpt.open_checkpoint((storage, "base.mgb")) as checkpoint:
        base = base_bundle(checkpoint.index, "base.mgb")
    result = await asyncckpt.save(
        states()["small"] | {"w": np.ones(3)}, (storage, "delta.mgb"), format=MetagraphFormat(base=base)
    )
    with pytest.raises(CheckpointError, match="lie in other files"):
        result.index  # noqa: B018


@pytest.mark.parametrize("kind", FORMATS)
async def test_of_pieces_of_larger_tensors_in_several_shards(kind: str) -> None:
    format, location = FORMATS[kind](), ObjectLocation(MemoryStorage(), "model", "model")
    shards = []
    for rank in range(3):
        arrays = {f"w@{4 * rank},0": np.full((4, 3), rank, np.float32), f"b{rank}": np.ones(rank, np.float32)}
        shards.append(ShardData.from_arrays(arrays, rank))
    content, views = content_of(shards, METADATA)
    boxed = [
        replace(t, global_shape=(12, 3), origin=(4 * (number // 2), 0)) if number % 2 == 0 else t
        for number, t in enumerate(content.tensors)
    ]
    content = replace(content, tensors=tuple(boxed))
    async with WorkerThreads(2) as threads:
        with ProgressReporter(None) as report:
            async with cancel_scope(None) as scope:
                operation = Operation(threads, ByteBudget(MIB), scope, Meter(report))
                staged = Staged(content, HandedOver(MemorySource(views)), len(views))
                async with writing(staged, Destination(location, format), operation) as written:
                    committed = await written.commit()
    leader = (location.storage, committed.info.key)
    async with asyncckpt.open_checkpoint(leader, format=format) as checkpoint:
        assert_same(committed.record.index(), checkpoint.index)


async def test_a_result_keeps_little_of_very_many_tensors() -> None:
    """Neither the tree nor an object for each tensor: dropping a million of them would hold up the loop."""
    count = 20_000
    state = {"model": {f"layers.{i // 10}.w{i % 10}": np.zeros(1, np.float32) for i in range(count)}}
    storage = MemoryStorage()
    await asyncckpt.save(state, (storage, "warm.checkpoint"))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        objects = len(gc.get_objects())
        result = await asyncckpt.save(state, (storage, "a.checkpoint"))
        await storage.delete("a.checkpoint")
        gc.collect()
        kept = sum(s.size_diff for s in tracemalloc.take_snapshot().compare_to(before, "filename"))
        assert len(gc.get_objects()) - objects < 1_000
        assert kept < 150 * count
    finally:
        tracemalloc.stop()
    assert len(result.index.tensors) == count
