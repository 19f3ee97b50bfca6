"""convert and migrate: between any two formats and storages, streaming, with every loss listed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncckpt
from asyncckpt.model.checksums import Buffer
from asyncckpt.operations.convert import convert, migrate
from asyncckpt.storage.base import ICheckpointStorage, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.strategies import assert_identical
from tests.formats.gptrs.test_format import v1
from tests.operations.places import EVERYWHERE, open_medium
from tests.operations.test_requests import RemoteMemory

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = asyncckpt.format_names()


def common_state() -> dict[str, Any]:
    """What every format can hold: float32 and int32, in a tree with plain values and a tied array."""
    shared = np.arange(12, dtype=np.float32).reshape(3, 4)
    return {
        "model": {"weight": shared, "tied": shared, "bias": np.array([1, -2, 3], np.int32)},
        "layers": [np.full((5, 2), i, np.float32) for i in range(3)],
        "step": 7,
        "note": "as it was",
        "nothing": (None, 2**70, float("inf")),
    }


async def save_as(name: str, storage: ICheckpointStorage, state: Any, *, stem: str = "a") -> str:
    """Returns the key to open."""
    chosen = asyncckpt.get_format(name)
    result = await asyncckpt.save(
        state, (storage, f"{stem}{chosen.extension}"), format=name, metadata={"run": 5}
    )
    return result.key


# --- every pair -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_name", FORMATS)
@pytest.mark.parametrize("source_name", FORMATS)
async def test_every_pair_of_formats_there_and_back(
    source_name: str, target_name: str, tmp_path: Path
) -> None:
    memory = MemoryStorage()
    source = await save_as(source_name, memory, common_state())
    async with asyncckpt.LocalStorage(tmp_path) as local:
        there = await convert(
            (memory, source), (local, f"b{asyncckpt.get_format(target_name).extension}"), to=target_name
        )
        assert (there.source_format, there.format) == (source_name, target_name)
        assert there.losses == ()
        assert_identical(await asyncckpt.load((local, there.key)), common_state())
        assert (await asyncckpt.verify((local, there.key))).ok
        back = await convert(
            (local, there.key), (memory, f"c{asyncckpt.get_format(source_name).extension}"), to=source_name
        )
    assert back.format == source_name
    assert_identical(await asyncckpt.load((memory, back.key)), common_state())
    async with asyncckpt.open_checkpoint((memory, back.key)) as checkpoint:
        assert checkpoint.metadata.custom_fields["run"] == 5


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_a_large_one_between_storages(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In parts on both sides; by ranges from servers, so that nothing is ever whole in memory."""
    state = {"w": [np.random.default_rng(i).random((500, 1000), np.float32) for i in range(6)], "step": 1}
    remote = RemoteMemory(part_bytes=1 << 20)
    await asyncckpt.save(state, (remote, "a.checkpoint"))
    async with open_medium(kind, tmp_path, request) as medium:
        await convert((remote, "a.checkpoint"), (medium.storage, "b.safetensors"), memory_bytes=8 << 20)
        await convert((medium.storage, "b.safetensors"), (remote, "c.checkpoint"), memory_bytes=8 << 20)
        assert medium.leftovers() == []
    assert_identical(await asyncckpt.load((remote, "c.checkpoint")), state)


async def test_the_format_follows_from_the_extension(tmp_path: Path) -> None:
    await asyncckpt.save(common_state(), tmp_path / "a.checkpoint")
    report = await convert(tmp_path / "a.checkpoint", tmp_path / "a.safetensors")
    assert (report.source_format, report.format, report.tensors) == ("mlcp", "safetensors", 5)
    assert (tmp_path / "a.safetensors").stat().st_size == report.size


async def test_from_bytes_and_to_a_url(tmp_path: Path) -> None:
    await asyncckpt.save(common_state(), tmp_path / "a.checkpoint")
    data = (tmp_path / "a.checkpoint").read_bytes()
    await convert(data, f"file://{tmp_path}/b.safetensors")
    assert_identical(await asyncckpt.load(tmp_path / "b.safetensors"), common_state())


# --- bounded ----------------------------------------------------------------------------------------------------


class Weighed(RemoteMemory):
    """Knows the most bytes that were on their way into its parts at one time."""

    def __init__(self, part_bytes: int) -> None:
        super().__init__(part_bytes=part_bytes)
        self.now = self.most = 0

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        writer = await super()._open_writer(
            key, size=size, exclusive=exclusive, part_bytes=part_bytes, write_id=write_id
        )
        write = writer.write_part

        async def weighed(index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            size = sum(memoryview(view).nbytes for view in views)
            self.now += size
            self.most = max(self.most, self.now)
            # Others get every chance to be in flight at the same time.
            for _ in range(20):
                await asyncio.sleep(0)
            await write(index, views, crc32c=crc32c)
            self.now -= size

        writer.write_part = weighed  # type: ignore[method-assign]
        return writer


class Whole(RemoteMemory):
    """Remembers the largest read of one call."""

    largest = 0

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        reader = await super()._open_reader(key, first_bytes=first_bytes)
        fetch = reader.fetch

        async def noted(requests: Any, ranges: Any, into: Any, filled: Any) -> None:
            self.largest = max(self.largest, sum(request.size for request in requests))
            await fetch(requests, ranges, into, filled)

        reader.fetch = noted  # type: ignore[method-assign]
        return reader


async def test_what_is_in_flight_stays_within_the_budget() -> None:
    budget, part = 4 << 20, 1 << 20
    source, target = Whole(), Weighed(part)
    await asyncckpt.save({"w": np.zeros((24, 1 << 18), np.float32)}, (source, "a.checkpoint"))
    await convert((source, "a.checkpoint"), (target, "b.checkpoint"), memory_bytes=budget)
    assert part < target.most <= budget
    # A tensor of 24 MiB is read part by part, rounded to checksum chunks.
    assert 0 < source.largest <= part + 2 * (1 << 20)
    assert (await asyncckpt.verify((target, "b.checkpoint"))).ok


# --- losses -----------------------------------------------------------------------------------------------------


def rich_state() -> dict[str, Any]:
    """gptrschk can store few dtypes, and names of ASCII only."""
    return {
        "kept": np.arange(4, dtype=np.float32),
        "brain": np.ones(3).astype(ml_dtypes.bfloat16),
        "bytes": np.arange(3, dtype=np.uint8),
        "long": np.arange(3),
        "nested": {"double": [np.ones(2), np.arange(3, dtype=np.int32)]},
        "step": 4,
    }


def unsupported(name: str) -> list[str]:
    own = asyncckpt.get_format(name).dtypes
    dtypes = {"brain": "bfloat16", "bytes": "uint8", "long": "int64", "nested.double.0": "float64"}
    return [tensor for tensor, dtype in dtypes.items() if own is not None and dtype not in own]


async def test_what_the_target_cannot_hold_is_an_error_that_lists_all_of_it() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(rich_state(), (storage, "a.checkpoint"))
    with pytest.raises(asyncckpt.NotRepresentableError) as caught:
        await convert((storage, "a.checkpoint"), (storage, "b.gptrschk"))
    lost = unsupported("gptrschk")
    assert len(lost) > 1
    assert len(caught.value.losses) == len(lost)
    for name, line in zip(lost, caught.value.losses, strict=True):
        assert f"{name!r}" in line
        assert "gptrschk can't store" in line
    assert f"(and {len(lost) - 1} more)" in str(caught.value)
    assert [info.key async for info in storage.list()] == ["a.checkpoint"]


async def test_an_allowed_loss_is_left_out_and_reported() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(rich_state(), (storage, "a.checkpoint"))
    report = await convert((storage, "a.checkpoint"), (storage, "b.gptrschk"), allow_loss=True)
    lost = unsupported("gptrschk")
    assert len(report.losses) == len(lost)
    assert report.tensors == 6 - len(lost)
    expected: dict[str, Any] = {k: v for k, v in rich_state().items() if k not in lost}
    expected["nested"] = {"double": [None, np.arange(3, dtype=np.int32)]}
    assert_identical(await asyncckpt.load((storage, "b.gptrschk")), expected)


async def test_nothing_is_lost_where_all_of_it_fits() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(rich_state(), (storage, "a.checkpoint"))
    report = await convert((storage, "a.checkpoint"), (storage, "b.safetensors"), allow_loss=True)
    assert report.losses == ()
    assert_identical(await asyncckpt.load((storage, "b.safetensors")), rich_state())


# --- failures ---------------------------------------------------------------------------------------------------


async def test_the_target_is_kept_unless_overwriting_was_asked_for() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(common_state(), (storage, "a.checkpoint"))
    await asyncckpt.save({"mine": 1}, (storage, "b.checkpoint"))
    with pytest.raises(asyncckpt.CheckpointExistsError, match="overwrite=True"):
        await convert((storage, "a.checkpoint"), (storage, "b.checkpoint"))
    assert await asyncckpt.load((storage, "b.checkpoint")) == {"mine": 1}
    await convert((storage, "a.checkpoint"), (storage, "b.checkpoint"), overwrite=True)
    assert_identical(await asyncckpt.load((storage, "b.checkpoint")), common_state())


async def test_over_itself() -> None:
    """The source is pinned and the target appears whole, so that this is no special case."""
    storage = MemoryStorage(part_bytes=1 << 20)
    state = {"w": np.arange(4_000_000, dtype=np.float32)}
    await asyncckpt.save(state, (storage, "a.checkpoint"))
    await convert((storage, "a.checkpoint"), (storage, "a.checkpoint"), overwrite=True)
    assert_identical(await asyncckpt.load((storage, "a.checkpoint")), state)


@pytest.mark.parametrize("size", [5_000, 3_000_000], ids=["small", "in parts"])
async def test_a_damaged_source_ends_the_conversion_and_nothing_is_written(size: int) -> None:
    storage, target = RemoteMemory(), MemoryStorage()
    await asyncckpt.save({"w": np.arange(size, dtype=np.float32)}, (storage, "a.checkpoint"))
    data = bytearray(await storage.read("a.checkpoint"))
    data[-7] ^= 1
    await storage.write("a.checkpoint", data)
    with pytest.raises(asyncckpt.ChecksumMismatchError, match="'w'"):
        await convert((storage, "a.checkpoint"), (target, "b.safetensors"))
    assert [info.key async for info in target.list()] == []
    assert target.unfinished == []


async def test_a_file_without_bytes_cannot_be_converted(tmp_path: Path) -> None:
    with pytest.raises(asyncckpt.MismatchError, match="can't be converted"):
        await convert(GOLDEN / "mlcp" / "two_shards.checkpoint", tmp_path / "b.safetensors")
    assert list(tmp_path.iterdir()) == []


class Stuck(MemoryStorage):
    """Says when a part has come, and never takes it."""

    def __init__(self) -> None:
        super().__init__(part_bytes=1 << 20)
        self.begun = asyncio.Event()

    async def _open_writer(self, key: str, **options: Any) -> ObjectWriter:
        writer = await super()._open_writer(key, **options)

        async def stuck(index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            self.begun.set()
            await asyncio.Event().wait()

        writer.write_part = stuck  # type: ignore[method-assign]
        return writer


@pytest.mark.parametrize("how", ["task", "token"])
async def test_a_cancel_leaves_nothing(how: str) -> None:
    source, target = RemoteMemory(), Stuck()
    await asyncckpt.save({"w": np.zeros(4_000_000, np.float32)}, (source, "a.checkpoint"))
    tokens = asyncckpt.CancellationTokenSource()
    converting = asyncio.create_task(
        convert((source, "a.checkpoint"), (target, "b.safetensors"), cancellation=tokens.token)
    )
    await target.begun.wait()
    if how == "task":
        converting.cancel()
    else:
        tokens.cancel("enough")
    with pytest.raises((asyncio.CancelledError, asyncckpt.OperationCancelledError)):
        await converting
    assert target.unfinished == []
    assert [info.key async for info in target.list()] == []


# --- shards, and older versions ---------------------------------------------------------------------------------


async def test_shards_and_pieces_survive() -> None:
    """Two ranks' halves of one tensor: still two shards, still one tensor, in the format that keeps both."""
    from asyncckpt import CheckpointMetadata, ShardData, ShardMetadata, TensorMetadata
    from asyncckpt.operations.reading.catalog import piece_name

    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    storage = MemoryStorage()
    shards = []
    for rank in range(2):
        part = np.ascontiguousarray(whole[rank * 2 : rank * 2 + 2])
        name = piece_name("w", (rank * 2, 0))
        tensor = TensorMetadata(name, "float32", (2, 6), global_shape=(4, 6), origin=(rank * 2, 0))
        shards.append(ShardData(ShardMetadata(rank=rank, tensors=(tensor,)), (part.data.cast("B"),)))
    saver = asyncckpt.SingleFileSaver(asyncckpt.SingleFileCheckpointFormat(), storage)
    key = await saver.save("a", shards, CheckpointMetadata(shards=tuple(s.metadata for s in shards)))
    report = await convert((storage, key), (storage, "b.checkpoint"))
    assert report.tensors == 2
    async with asyncckpt.open_checkpoint((storage, "b.checkpoint")) as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
        assert len(checkpoint.metadata.shards) == 2
        assert np.array_equal(await checkpoint.read("w"), whole)


async def test_migrate_rewrites_an_older_version_as_the_current_one() -> None:
    old_arrays = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "w": np.ones(4, np.float32)}
    source = v1(old_arrays, config=b"{}")
    storage = MemoryStorage()
    async with asyncckpt.open_checkpoint(source) as old:
        assert "version 1 is read but no longer written" in old.warnings[0]
        before = old.version
    report = await migrate(source, (storage, "new.gptrschk"))
    assert (report.source_version, report.format) == (before, "gptrschk")
    assert report.warnings
    async with asyncckpt.open_checkpoint((storage, "new.gptrschk")) as new:
        assert new.version != before
        assert new.warnings == ()
    old_state, new_state = await asyncckpt.load(source), await asyncckpt.load((storage, "new.gptrschk"))
    assert_identical(new_state, old_state)
    assert_identical(new_state, old_arrays)


async def test_migrate_refuses_a_newer_version() -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"a": 1}, (storage, "a.checkpoint"))
    data = (await storage.read("a.checkpoint")).replace(b"\x051.1.0", b"\x052.0.0", 1)
    await storage.write("a.checkpoint", data)
    with pytest.raises(asyncckpt.UnsupportedVersionError, match="upgrade asyncckpt"):
        await migrate((storage, "a.checkpoint"), (storage, "b.checkpoint"))
    assert not await storage.exists("b.checkpoint")


async def test_the_conversion_of_a_conversion_is_the_same_file() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(common_state(), (storage, "a.checkpoint"))
    first: ObjectInfo | None = None
    for name in ("b.safetensors", "c.safetensors"):
        await convert((storage, "a.checkpoint"), (storage, name))
        info = await storage.stat(name)
        assert first is None or first.size == info.size
        first = info
    assert await storage.read("b.safetensors") == await storage.read("c.safetensors")
