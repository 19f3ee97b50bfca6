"""The point of no return: once the commit has begun it runs to its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt._aio import ByteBudget, WorkerThreads
from asyncckpt.cancellation import cancel_scope
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.metadata import now
from asyncckpt.operations.location import Location, ObjectLocation
from asyncckpt.operations.runtime import Meter, Operation
from asyncckpt.operations.writing.commit import Written, writing
from asyncckpt.operations.writing.session import Destination
from asyncckpt.operations.writing.staging.capture import Captured
from asyncckpt.operations.writing.staging.stage import released, stage
from asyncckpt.operations.writing.staging.stager import NumpyStager
from asyncckpt.progress import ProgressReporter
from asyncckpt.storage import base
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.retry import RetryPolicy, retrying
from asyncckpt.testing.storage.wrappers import CountingStorage
from asyncckpt.testing.strategies import assert_identical


class SlowCommit(MemoryStorage):
    """Says when a PUT has begun, and ends it when told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        self.begun.set()
        await self.go_on.wait()
        return await super()._put(key, views, exclusive=exclusive, write_id=write_id)


async def test_a_token_that_fires_during_the_commit_is_ignored() -> None:
    storage = SlowCommit()
    source = asyncckpt.CancellationTokenSource()
    saving = asyncio.create_task(asyncckpt.save({"a": 1}, (storage, "x"), cancellation=source.token))
    await storage.begun.wait()
    source.cancel("too late")
    await asyncio.sleep(0)
    storage.go_on.set()
    result = await saving
    assert result.key == "x"
    assert await asyncckpt.load((storage, "x")) == {"a": 1}


async def test_a_task_cancel_during_the_commit_is_raised_after_it_and_progress_says_committed() -> None:
    storage = SlowCommit()
    events: list[asyncckpt.ProgressEvent] = []
    saving = asyncio.create_task(asyncckpt.save({"a": 1}, (storage, "x"), progress=events.append))
    await storage.begun.wait()
    saving.cancel()
    await asyncio.sleep(0)
    assert not saving.done()
    storage.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert (events[-1].phase, events[-1].committed) == (asyncckpt.Phase.DONE, True)
    assert await asyncckpt.load((storage, "x")) == {"a": 1}


async def test_a_silent_store_ends_in_outcome_unknown_with_the_write_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "COMMIT_TIMEOUT", 0.05)
    storage = SlowCommit()
    with pytest.raises(asyncckpt.OutcomeUnknownError, match="write id") as caught:
        await asyncckpt.save({"a": 1}, (storage, "x"))
    assert caught.value.write_id in str(caught.value)


async def test_the_tree_and_its_values_are_captured_before_the_first_await() -> None:
    storage = MemoryStorage()
    state = {"values": [1, 2], "nested": {"lr": 0.5}, "w": np.arange(3)}
    metadata = {"tags": ["a"]}
    saving = asyncio.create_task(asyncckpt.save(state, (storage, "x"), metadata=metadata))
    await asyncio.sleep(0)
    metadata["tags"].append("b")
    state["values"].append(3)  # type: ignore[attr-defined]
    state["nested"] = {}
    del state["w"]
    await saving
    loaded = await asyncckpt.load((storage, "x"))
    assert (loaded["values"], loaded["nested"]) == ([1, 2], {"lr": 0.5})
    assert np.array_equal(loaded["w"], np.arange(3))
    async with asyncckpt.open_checkpoint((storage, "x")) as checkpoint:
        assert checkpoint.metadata.custom_fields == {"tags": ["a"]}


@pytest.mark.parametrize("size", [1_000, 8_000_000])
async def test_arrays_are_captured_when_progress_leaves_the_staging(size: int) -> None:
    storage = MemoryStorage()
    array = np.zeros(size, np.float32)

    def change(event: asyncckpt.ProgressEvent) -> None:
        if event.phase is asyncckpt.Phase.PLAN:
            array[:] = 9

    await asyncckpt.save({"w": array}, (storage, "x"), progress=change)
    assert array[0] == 9
    assert not (await asyncckpt.load((storage, "x")))["w"].any()
    assert (await asyncckpt.verify((storage, "x"))).ok


# -- written, and not committed yet ------------------------------------------------------------------------------

SMALL = {"w": np.arange(100, dtype=np.float32)}
LARGE = {f"w{i}": np.full(1_500_000, i, np.float32) for i in range(3)}
KINDS = {
    "one small file": (SMALL, "model.checkpoint", None),
    "one large file": (LARGE, "model.checkpoint", None),
    "a set of small files": (SMALL | {"b": np.ones(60)}, "model.safetensors.index.json", 256),
    "a set of large files": (LARGE, "model.safetensors.index.json", 6_000_000),
}


@asynccontextmanager
async def written_of(kind: str, storage: MemoryStorage) -> AsyncIterator[Written]:
    state, key, file_bytes = KINDS[kind]
    format = MlcpFormat() if file_bytes is None else HuggingFaceSetFormat(max_file_bytes=file_bytes)
    location = ObjectLocation(storage, key, key)
    with ProgressReporter(None) as report:
        async with cancel_scope(None) as scope, WorkerThreads(2) as threads:
            operation = Operation(threads, ByteBudget(1 << 27), scope, Meter(report))
            staged = await stage(Captured.of(state, None, now), format, NumpyStager(), operation)
            async with (
                released(staged, threads),
                writing(staged, Destination(location, format), operation) as written,
            ):
                yield written


async def keys_of(storage: MemoryStorage) -> list[str]:
    return [info.key async for info in storage.list()]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_written_is_no_checkpoint_until_it_is_committed(kind: str) -> None:
    storage = MemoryStorage(part_bytes=1 << 20)
    async with written_of(kind, storage) as written:
        assert await keys_of(storage) == sorted(info.key for info in written.members)
        assert written.leader.key == KINDS[kind][1]
        expected = written.record.index()
        committed = await written.commit()
    assert await keys_of(storage) == sorted(info.key for info in committed.files)
    assert committed.files == (*written.members, committed.info)
    for info in committed.files:
        assert await storage.stat(info.key) == info
    assert_identical(await asyncckpt.load((storage, committed.info.key)), KINDS[kind][0])
    async with asyncckpt.open_checkpoint((storage, committed.info.key)) as checkpoint:
        assert [t.extents for t in expected.tensors] == [t.extents for t in checkpoint.index.tensors]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_block_that_does_not_commit_leaves_nothing(kind: str) -> None:
    storage = MemoryStorage(part_bytes=1 << 20)
    async with written_of(kind, storage):
        pass
    assert (await keys_of(storage), storage.unfinished) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_veto_leaves_nothing_and_is_raised(kind: str) -> None:
    storage = MemoryStorage(part_bytes=1 << 20)
    with pytest.raises(LookupError, match="veto"):
        async with written_of(kind, storage):
            raise LookupError("veto")
    assert (await keys_of(storage), storage.unfinished) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_name_that_was_taken_meanwhile_is_told_and_kept(kind: str) -> None:
    storage = MemoryStorage(part_bytes=1 << 20)
    with pytest.raises(asyncckpt.CheckpointExistsError, match=re.escape(KINDS[kind][1])):
        async with written_of(kind, storage) as written:
            await storage.write(written.leader.key, b"theirs")
            await written.commit()
    assert (await keys_of(storage), storage.unfinished) == ([KINDS[kind][1]], [])
    assert await storage.read(KINDS[kind][1]) == b"theirs"


# -- files side by side --------------------------------------------------------------------------------------------


class Crowded(MemoryStorage):
    """Counts how many objects are being written at a time, and in which order they are done."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.done: list[str] = []

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(50):
            await asyncio.sleep(0)
        self.now -= 1
        self.done.append(key)
        return await super()._put(key, views, exclusive=exclusive, write_id=write_id)


async def test_the_files_of_a_set_are_written_side_by_side_and_the_leader_last() -> None:
    storage = Crowded()
    state = {f"w{i:02}": np.full(64, i, np.float32) for i in range(20)}
    format = HuggingFaceSetFormat(max_file_bytes=256)
    result = await asyncckpt.save(state, (storage, "model.safetensors.index.json"), format=format)
    assert 1 < storage.most <= 4
    assert storage.done[-1] == result.key
    assert sorted(storage.done) == sorted(result.files)
    assert list(result.files[:-1]) == [f"model-{i:05}-of-00020.safetensors" for i in range(1, 21)]
    assert_identical(await asyncckpt.load(result.location), state)


# -- the result ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_are_the_calls_that_the_storage_got(kind: str) -> None:
    state, key, file_bytes = KINDS[kind]
    format = None if file_bytes is None else HuggingFaceSetFormat(max_file_bytes=file_bytes)
    storage = CountingStorage(MemoryStorage(part_bytes=1 << 20))
    result = await asyncckpt.save(state, (storage, key), format=format)
    assert result.requests == len(storage.log)
    assert result.retries == 0
    assert list(result.seconds) == ["capture", "stage", "plan", "write", "commit"]
    assert all(seconds >= 0 for seconds in result.seconds.values())
    assert "\n" not in repr(result)
    assert len(repr(result)) < 600


async def test_retries_are_counted_without_a_progress_callback() -> None:
    class Shaky(MemoryStorage):
        async def _put(self, *args: Any, **options: Any) -> ObjectInfo:
            failures = iter([True, True])

            async def put() -> ObjectInfo:
                if next(failures, False):
                    raise asyncckpt.UnavailableError("injected")
                return await MemoryStorage._put(self, *args, **options)

            return await retrying(put, policy=RetryPolicy(base_delay=0), describe="put")

    assert (await asyncckpt.save({"a": 1}, (Shaky(), "x"))).retries == 2


@pytest.mark.parametrize("given", ["pair", "path", "text", "url"])
@pytest.mark.parametrize("shards", [None, 2])
async def test_the_location_can_be_loaded_again(given: str, shards: int | None, tmp_path: Path) -> None:
    path = tmp_path / "model.sdnb"
    locations: dict[str, Location] = {
        "pair": (MemoryStorage(), "run/model.sdnb"),
        "path": path,
        "text": str(path),
        "url": path.as_uri(),
    }
    result = await asyncckpt.save(LARGE, locations[given], format=SdnbFormat(shards=shards))
    assert (result.location == locations[given]) == (shards is None)
    assert_identical(await asyncckpt.load(result.location), LARGE)


async def test_a_url_with_a_secret_is_not_printed() -> None:
    result = await asyncckpt.save({"a": 1}, "memory://user:secret@host/x.checkpoint")
    assert "secret" not in repr(result)
