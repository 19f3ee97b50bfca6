"""What goes in comes out: trees, dtypes, metadata, slices; lazily, deterministically, recognised by the bytes."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta, timezone

import ml_dtypes
import numpy as np
import pytest

import asyncckpt
from asyncckpt._aio import run_in_thread
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.registry import format_names
from asyncckpt.model.metadata import CheckpointMetadata, TrainingMetadata
from asyncckpt.storage.base import Capabilities
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.formats.files import CLOCK, FormatFiles, array_of
from asyncckpt.testing.strategies import assert_identical


class InOrderStorage(MemoryStorage):
    """A storage that takes parts one after another only, as GCS does."""

    capabilities = Capabilities(any_order=False)


class ContentContract(FormatFiles):
    """Round trips."""

    async def test_state_comes_back_as_it_was(self) -> None:
        storage = MemoryStorage()
        state = self.small_state()
        key = await self.save(state, storage)
        loaded = await self.load(storage, key)
        assert_identical(loaded, state)
        assert loaded["model"]["weight"] is loaded["model"]["tied"]

    async def test_empty_state_comes_back(self) -> None:
        storage = MemoryStorage()
        key = await self.save({"nothing": [], "step": 3}, storage)
        assert await self.load(storage, key) == {"nothing": [], "step": 3}

    async def test_large_bytes_and_strings_come_back(self) -> None:
        """As payloads or as text, whichever the format has; they are not tensors of the state."""
        storage = MemoryStorage()
        state = {"w": np.arange(3, dtype="<f4"), "blob": bytes(range(256)) * 100, "text": ["größe" * 5_000]}
        key = await self.save(state, storage)
        assert_identical(await self.load(storage, key), state)
        assert_identical(await self.load(storage, key, only="w"), state)
        async with asyncckpt.open_checkpoint((storage, key), format=self.reading_format()) as checkpoint:
            assert list(checkpoint.tensors) == ["w"]

    async def test_every_dtype_comes_back_bit_for_bit(self) -> None:
        storage = MemoryStorage()
        state = {name: array_of(name) for name in self.dtypes()}
        key = await self.save(state, storage)
        assert_identical(await self.load(storage, key), state)

    async def test_a_rare_dtype_is_kept_or_refused_before_anything_is_written(self) -> None:
        own = self.make_format().dtypes
        storage = MemoryStorage()
        state = {"rare": np.full(2, 1 - 2j, "<c16"), "too": np.zeros(1, "<c16")}
        if own is None or "complex128" in own:
            assert_identical(await self.load(storage, await self.save(state, storage)), state)
        else:
            with pytest.raises(asyncckpt.NotRepresentableError, match="'rare'") as caught:
                await self.save(state, storage)
            assert len(caught.value.losses) == 2
            assert [info async for info in storage.list()] == []

    @pytest.mark.parametrize("storage_kind", [MemoryStorage, InOrderStorage])
    async def test_large_state_in_parts(self, storage_kind: type[MemoryStorage]) -> None:
        storage = storage_kind()
        state = self.large_state()
        key = await self.save(state, storage)
        assert_identical(await self.load(storage, key), state)
        assert (await asyncckpt.verify((storage, key), format=self.reading_format())).ok
        assert storage.unfinished == []

    async def test_parts_in_any_order_make_the_same_bytes(self) -> None:
        first, second = MemoryStorage(), InOrderStorage()
        state = self.large_state()
        key = await self.save(state, first)
        await self.save(state, second)
        assert (await first.read(key) == await second.read(key)) == self.same_bytes
        assert {i.key async for i in first.list()} == {i.key async for i in second.list()}

    async def test_same_state_same_bytes(self) -> None:
        """Or never the same, where the format says so: a nonce that comes back gives an encrypted file away."""
        first, second = await self.files_of(self.small_state()), await self.files_of(self.small_state())
        assert (first == second) == self.same_bytes

    async def test_recognised_by_its_bytes_alone(self) -> None:
        key, files = await self.files_of(self.small_state())
        name = self.make_format().name
        names = await run_in_thread(format_names)  # looks for entry points on the disk
        assert name in names, f"format {name!r} is not registered"
        head = memoryview(files[key])
        assert self.make_format().sniff(head[:64], FileInfo("anything", len(head)))
        storage = await self.storage_with(files)
        async with asyncckpt.open_checkpoint((storage, key), format=self.reading_format()) as checkpoint:
            assert checkpoint.format == name

    async def test_metadata_comes_back(self) -> None:
        storage = MemoryStorage()
        metadata = CheckpointMetadata(
            timestamp=CLOCK,
            world_size=4,
            training=TrainingMetadata(epoch=2, step=30, learning_rate=0.5, optimizer_type="adam"),
            custom_fields={"note": "größe", "list": [1, {"a": None}]},
        )
        key = await self.save(self.small_state(), storage, metadata=metadata)
        async with asyncckpt.open_checkpoint((storage, key), format=self.reading_format()) as checkpoint:
            found = checkpoint.metadata
        assert (found.timestamp, found.world_size, found.training) == (CLOCK, 4, metadata.training)
        assert {k: found.custom_fields[k] for k in metadata.custom_fields} == metadata.custom_fields

    async def test_metadata_keeps_what_json_has_no_word_for(self) -> None:
        storage = MemoryStorage()
        odd = {
            "loss": math.nan,
            "bounds": [-math.inf, {"deep": math.inf}],
            "scalars": [
                np.float32(0.1),
                np.int64(7),
                np.bool_(True),
                np.float64("nan"),
                ml_dtypes.bfloat16(1.5),
            ],
            "betas": (0.9, (0.999, None)),
            "when": np.datetime64("2026-01-02T03:04:05"),
            "raw": b"\x00\xff",
            "by rank": {0: "a", 1: OrderedDict(x=1)},
            "huge": 1 << 20_000,
            "phase": 1 - 2j,
            "no node": {"g": "float32:00000000", "f": "7ff8000000000000"},
        }
        zone = timezone(timedelta(hours=5, minutes=30))
        metadata = CheckpointMetadata(
            timestamp=CLOCK.astimezone(zone),
            training=TrainingMetadata(learning_rate=math.inf, optimizer_state=odd, extra={"best": math.nan}),
            custom_fields=odd,
            extra={"later": (1, np.int8(2))},
        )
        key = await self.save(self.small_state(), storage, metadata=metadata)
        async with asyncckpt.open_checkpoint((storage, key), format=self.reading_format()) as checkpoint:
            found = checkpoint.metadata
        assert found.timestamp is not None
        assert found.timestamp.isoformat() == CLOCK.astimezone(zone).isoformat()
        assert found.training is not None
        assert_identical({name: found.custom_fields[name] for name in odd}, odd)
        assert_identical(found.training.optimizer_state, odd)
        assert_identical([found.training.learning_rate, found.training.extra["best"]], [math.inf, math.nan])
        assert_identical(found.extra["later"], (1, np.int8(2)))

    async def test_metadata_that_cannot_be_kept_is_refused_with_its_place(self) -> None:
        storage = MemoryStorage()
        metadata = CheckpointMetadata(custom_fields={"runs": [{"lr": 1.0}, {"lr": object()}]})
        with pytest.raises(asyncckpt.UnsupportedStateError, match=r"custom_fields\['runs'\]\[1\]\['lr'\]"):
            await self.save(self.small_state(), storage, metadata=metadata)
        assert [info.key async for info in storage.list()] == []

    async def test_one_tensor_and_a_slice(self) -> None:
        storage = MemoryStorage()
        state = self.large_state()
        key = await self.save(state, storage)
        async with asyncckpt.open_checkpoint((storage, key), format=self.reading_format()) as checkpoint:
            assert checkpoint.tensors["big"].shape == (1500, 1000)
            assert_identical(await checkpoint.read("odd"), state["odd"])
            piece = await checkpoint.read_slice("big", (slice(100, 1200, 7), slice(3, 900)))
            assert np.array_equal(piece, state["big"][100:1200:7, 3:900])
            target = np.zeros((1500, 1000), np.float32)
            await checkpoint.read_into("big", target)
            assert np.array_equal(target, state["big"])
            with pytest.raises(asyncckpt.TensorNotFoundError, match="'absent'"):
                await checkpoint.read("absent")

    async def test_pieces_of_a_tensor_come_back_as_one(self) -> None:
        whole = np.arange(24, dtype="<f4").reshape(4, 6)
        cut = {(0, 0): whole[:2], (2, 0): whole[2:, :3], (2, 3): whole[2:, 3:]}
        arrays = {f"w@{a},{b}": np.ascontiguousarray(part) for (a, b), part in cut.items()}
        shard = asyncckpt.ShardData.from_arrays(arrays)
        tensors = tuple(
            replace(tensor, global_shape=(4, 6), origin=origin)
            for tensor, origin in zip(shard.tensor_info, cut, strict=True)
        )
        boxed = asyncckpt.ShardData(replace(shard.metadata, tensors=tensors), shard.views)
        storage = MemoryStorage()
        saver = asyncckpt.SingleFileSaver(self.make_format(), storage)
        await saver.save("run/pieces", [boxed], CheckpointMetadata(timestamp=CLOCK))
        key = [info.key async for info in storage.list()][-1]
        opened = await self._leader(storage, key)
        async with asyncckpt.open_checkpoint((storage, opened), format=self.reading_format()) as checkpoint:
            assert list(checkpoint.tensors) == ["w"]
            assert len(checkpoint.tensors["w"].pieces) == 3
            assert np.array_equal(await checkpoint.read("w"), whole)
            assert np.array_equal(
                await checkpoint.read_slice("w", (slice(1, 4), slice(2, 5))), whole[1:4, 2:5]
            )
            assert np.array_equal(await checkpoint.read_slice("w", (..., -1)), whole[..., -1])
            with pytest.raises(asyncckpt.MismatchError, match="index 9 is outside a dimension of 4"):
                await checkpoint.read_slice("w", 9)

    async def _leader(self, storage: MemoryStorage, fallback: str) -> str:
        """The file that opens the set: the one with the format's extension, as `save` would report it."""
        extension = self.make_format().extension
        keys = [info.key async for info in storage.list()]
        return next((key for key in keys if key.endswith(extension)), fallback)

    async def test_shards_come_back_apart(self) -> None:
        shards = [
            asyncckpt.ShardData.from_arrays({f"rank{r}.w": np.full((2, 2), r, "<f4")}, rank=r)
            for r in range(2)
        ]
        storage = MemoryStorage()
        saver = asyncckpt.SingleFileSaver(self.make_format(), storage)
        key = await saver.save("run/shards", shards, CheckpointMetadata(timestamp=CLOCK, world_size=2))
        reading = self.reading_format() or self.make_format()
        opened = key if await storage.exists(key) else await self._leader(storage, key)
        found, metadata = await asyncckpt.SingleFileLoader(reading, storage).load(opened)
        assert [shard.rank for shard in found] == [0, 1]
        assert [list(shard.arrays()) for shard in found] == [["rank0.w"], ["rank1.w"]]
        assert np.array_equal(found[1].array("rank1.w"), shards[1].array("rank1.w"))
        assert metadata.world_size == 2
