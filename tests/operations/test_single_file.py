"""SingleFileSaver and SingleFileLoader: shards in, one file out, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import asyncckpt
from asyncckpt import (
    CheckpointMetadata,
    ShardData,
    SingleFileCheckpointFormat,
    SingleFileLoader,
    SingleFileSaver,
)
from asyncckpt.storage.memory import MemoryStorage
from tests.operations.places import EVERYWHERE, open_medium


def shards(items: int = 5) -> list[ShardData]:
    first = ShardData.from_arrays({"a": np.arange(items, dtype="<f4"), "b": np.ones((2, 2), "<i8")}, 0)
    second = ShardData.from_arrays({"c": np.full(items, 7, "<i4")}, 1)
    return [first, second]


def values(found: list[ShardData]) -> list[dict[str, bytes]]:
    return [
        {t.name: bytes(view) for t, view in zip(shard.tensor_info, shard.views, strict=True)}
        for shard in found
    ]


@pytest.mark.parametrize("items", [5, 3_000_000])
@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_shards_come_back(
    kind: str, items: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        codec = SingleFileCheckpointFormat()
        metadata = CheckpointMetadata(custom_fields={"epoch": 3})
        saver = SingleFileSaver(codec, medium.storage)
        key = await saver.save("run/step-1", shards(items), metadata)
        assert key == "run/step-1.checkpoint"
        loaded, described = await SingleFileLoader(codec, medium.storage).load(key)
        assert values(loaded) == values(shards(items))
        assert [shard.metadata.rank for shard in loaded] == [0, 1]
        assert described.custom_fields["epoch"] == 3
        assert medium.leftovers() == []
        report = await asyncckpt.verify((medium.storage, key))
        assert report.ok


async def test_the_file_is_what_serialize_makes() -> None:
    storage = MemoryStorage()
    codec = SingleFileCheckpointFormat()
    metadata = CheckpointMetadata(custom_fields={"epoch": 3})
    key = await SingleFileSaver(codec, storage).save("x", shards(), metadata)
    assert await storage.read(key) == await codec.serialize(shards(), metadata)


async def test_an_existing_file_is_kept_unless_overwriting_was_asked_for() -> None:
    storage = MemoryStorage()
    saver = SingleFileSaver(SingleFileCheckpointFormat(), storage)
    key = await saver.save("x", shards(5), CheckpointMetadata())
    before = await storage.read(key)
    with pytest.raises(asyncckpt.CheckpointExistsError, match=r"x\.checkpoint exists already"):
        await saver.save("x", shards(6), CheckpointMetadata())
    assert await storage.read(key) == before
    await saver.save("x", shards(6), CheckpointMetadata(), overwrite=True)
    assert await storage.read(key) != before


async def test_a_token_ends_both() -> None:
    storage = MemoryStorage()
    codec = SingleFileCheckpointFormat()
    await SingleFileSaver(codec, storage).save("x", shards(), CheckpointMetadata())
    source = asyncckpt.CancellationTokenSource()
    source.cancel("enough")
    with pytest.raises(asyncckpt.OperationCancelledError, match="enough"):
        await SingleFileSaver(codec, storage).save(
            "y", shards(), CheckpointMetadata(), cancellation=source.token
        )
    assert not await storage.exists("y.checkpoint")
    with pytest.raises(asyncckpt.OperationCancelledError, match="enough"):
        await SingleFileLoader(codec, storage).load("x.checkpoint", cancellation=source.token)


async def test_what_is_missing_or_damaged_is_said() -> None:
    storage = MemoryStorage()
    codec = SingleFileCheckpointFormat()
    loader = SingleFileLoader(codec, storage)
    with pytest.raises(asyncckpt.CheckpointNotFoundError, match=r"nothing\.checkpoint"):
        await loader.load("nothing.checkpoint")
    key = await SingleFileSaver(codec, storage).save("x", shards(), CheckpointMetadata())
    data = bytearray(await storage.read(key))
    data[data.index(np.full(5, 7, "<i4").tobytes())] ^= 1
    await storage.write(key, data)
    with pytest.raises(asyncckpt.ChecksumMismatchError, match="'c'"):
        await loader.load(key)
