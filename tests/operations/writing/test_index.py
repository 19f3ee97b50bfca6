"""The index that a save returns is the one that opening the checkpoint yields, for every format."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Index
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.model.metadata import CheckpointMetadata
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
