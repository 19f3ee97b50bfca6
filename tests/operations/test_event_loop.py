"""The event loop stays free: no blocking call, no long slice of work on it. By counting, not by the clock.

Blockbuster watches every test; here it is shown to see what it should, and that the heavy steps of each
operation run in threads other than the loop's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import BlockingError

import asyncckpt
from asyncckpt.formats.kit import decode as assemble
from asyncckpt.formats.mlcp import file as mlcp
from asyncckpt.operations import checkpoint as reader
from asyncckpt.operations import diff as diff_module
from asyncckpt.operations import load
from asyncckpt.operations import runtime as session
from asyncckpt.operations.convert import convert
from asyncckpt.operations.diff import diff
from asyncckpt.operations.reading import chunks, files
from asyncckpt.operations.writing import hashing
from asyncckpt.operations.writing.staging import capture, layout, stage
from asyncckpt.storage.base import ObjectReader
from asyncckpt.storage.memory import MemoryStorage
from tests.operations.places import EVERYWHERE, open_medium
from tests.operations.test_requests import RemoteMemory


def large_state() -> dict[str, Any]:
    return {"w": [np.full(1_100_000, i, np.float32) for i in range(3)], "step": 2}


class Recorder:
    """Notes on which threads functions run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.threads: dict[str, set[int]] = {}

    def watch(self, owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)
        seen = self.threads.setdefault(name, set())

        def watched(*args: Any, **options: Any) -> Any:
            seen.add(threading.get_ident())
            return original(*args, **options)

        self._patch.setattr(owner, name, watched)

    def assert_off_the_loop(self) -> None:
        loop = threading.get_ident()
        assert all(self.threads.values()), f"never called: {[n for n, t in self.threads.items() if not t]}"
        assert not [name for name, threads in self.threads.items() if loop in threads]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


async def test_the_heavy_steps_of_a_save_run_in_threads(recorder: Recorder) -> None:
    """More tensors than are worth a thread, so that nothing may be done in place."""
    recorder.watch(capture, "flatten")
    recorder.watch(stage, "normalise")
    recorder.watch(mlcp.MlcpFormat, "plan")
    recorder.watch(layout.Layout, "copy")
    recorder.watch(hashing, "hash_part")
    state = {**large_state(), "many": {f"p{i}": np.zeros(3, np.float32) for i in range(2_000)}}
    await asyncckpt.save(state, (MemoryStorage(part_bytes=1 << 20), "x"))
    recorder.assert_off_the_loop()


@pytest.mark.parametrize("storage", [MemoryStorage, RemoteMemory])
async def test_the_heavy_steps_of_a_load_run_in_threads(
    recorder: Recorder, storage: Callable[[], MemoryStorage]
) -> None:
    place = (storage(), "x")
    await asyncckpt.save(large_state(), place)
    recorder.watch(files.OpenFiles, "_begin")
    recorder.watch(chunks, "check_chunk")
    await asyncckpt.load(place)
    recorder.assert_off_the_loop()


def many_values() -> dict[str, Any]:
    """No tensor, more containers than one should walk on a loop; a payload alone is worth a thread."""
    return {"log": [{"step": i, "loss": i / 7} for i in range(2_000)], "blob": bytes(100_000)}


@pytest.mark.parametrize("storage", [MemoryStorage, RemoteMemory])
@pytest.mark.parametrize("part", ["log", "blob", "both"])
async def test_a_large_tree_counts_as_large_though_it_has_no_tensors(
    recorder: Recorder, storage: Callable[[], MemoryStorage], part: str
) -> None:
    place = (storage(), "x.checkpoint")
    state = many_values() if part == "both" else {part: many_values()[part]}
    recorder.watch(capture, "flatten")
    recorder.watch(mlcp.MlcpFormat, "plan")
    recorder.watch(load, "rebuild")
    await asyncckpt.save(state, place)
    assert await asyncckpt.load(place) == state
    assert await asyncckpt.load(place, into={}) == state
    recorder.assert_off_the_loop()


async def test_a_large_tree_is_freed_in_a_thread(recorder: Recorder) -> None:
    """To free a million objects takes a tenth of a second: none of it may be left to the end of the call."""
    storage = MemoryStorage()
    places = (storage, "a.checkpoint"), (storage, "b.checkpoint")
    recorder.watch(capture, "dismantle")
    recorder.watch(load, "dismantle")
    recorder.watch(session, "dismantle")
    await asyncckpt.save(many_values(), places[0])
    await asyncckpt.load(places[0])
    await convert(*places)
    assert (await diff(*places)).same
    recorder.assert_off_the_loop()


async def test_a_small_state_needs_no_thread_to_be_put_together(recorder: Recorder) -> None:
    place = (MemoryStorage(), "x.checkpoint")
    await asyncckpt.save({"w": np.ones(2), "lr": 0.1}, place)
    recorder.watch(load, "rebuild")
    await asyncckpt.load(place)
    assert recorder.threads["rebuild"] == {threading.get_ident()}


async def test_the_capture_is_the_only_walk_over_the_state_on_the_loop(recorder: Recorder) -> None:
    """It runs before the first await: whoever changes the state then changes no checkpoint."""
    place = (MemoryStorage(), "x.checkpoint")
    recorder.watch(capture, "capture")
    state = many_values()
    saving = asyncckpt.save(state, place)
    task = asyncio.ensure_future(saving)
    await asyncio.sleep(0)
    assert recorder.threads["capture"] == {threading.get_ident()}
    state["log"][0]["step"] = "changed"
    state["log"].clear()
    await task
    assert await asyncckpt.load(place) == many_values()


async def test_very_many_tensors_are_chosen_and_compared_in_threads(recorder: Recorder) -> None:
    storage = MemoryStorage()
    state = {f"p{i}": np.zeros(1, np.float32) for i in range(2_000)}
    for name in ("a.checkpoint", "b.checkpoint"):
        await asyncckpt.save(state, (storage, name))
    recorder.watch(load, "select_names")
    recorder.watch(diff_module, "_look")
    recorder.watch(diff_module, "_metadata")
    recorder.watch(diff_module, "state_changes")
    recorder.watch(reader, "bytes_of_tensors")
    recorder.watch(layout.Layout, "batches")
    await asyncckpt.load((storage, "a.checkpoint"), only="p1*")
    await asyncckpt.save(state, (storage, "c.checkpoint"))
    assert (await diff((storage, "a.checkpoint"), (storage, "b.checkpoint"))).same
    recorder.assert_off_the_loop()


async def test_parsing_checking_and_comparing_run_in_threads(recorder: Recorder) -> None:
    storage = RemoteMemory()
    await asyncckpt.save(large_state(), (storage, "a.checkpoint"))
    recorder.watch(assemble, "crc32c")
    recorder.watch(mlcp.MlcpFormat, "parse")
    await convert((storage, "a.checkpoint"), (storage, "b.checkpoint"))
    await diff((storage, "a.checkpoint"), (storage, "b.checkpoint"), values=True)
    recorder.assert_off_the_loop()


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_no_operation_makes_a_blocking_call(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every operation on every storage under the suite's guard, which raises BlockingError."""
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, "run/a.checkpoint")
        await asyncckpt.save(large_state(), place)
        await asyncckpt.save({"small": 1}, place, overwrite=True)
        await asyncckpt.save(large_state(), place, overwrite=True, copy=False)
        await asyncckpt.load(place)
        await asyncckpt.load(place, into=large_state())
        async with asyncckpt.open_checkpoint(place) as checkpoint:
            await checkpoint.read_slice("w.1", slice(5, 10))
        await convert(place, (medium.storage, "run/b.checkpoint"))
        report = await diff(place, (medium.storage, "run/b.checkpoint"), values=True)
        assert report.same
        assert (await asyncckpt.verify(place)).ok


class Blocking(MemoryStorage):
    """Calls the disk where it should not: what the guard is for."""

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        os.fsync(0)
        return await super()._open_reader(key, first_bytes=first_bytes)


async def test_the_guard_sees_a_blocking_call_below_a_load() -> None:
    with pytest.raises(BlockingError, match="fsync"):
        await asyncckpt.load((Blocking(), "x"))


async def test_other_tasks_get_their_turns_while_a_state_is_saved_and_loaded() -> None:
    """A heartbeat turns many times in the course of one save and one load."""
    beats = 0

    async def heartbeat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    beating = asyncio.create_task(heartbeat())
    try:
        storage = MemoryStorage(part_bytes=1 << 20)
        for call in (
            lambda: asyncckpt.save(large_state(), (storage, "x")),
            lambda: asyncckpt.load((storage, "x")),
        ):
            before = beats
            await call()
            assert beats - before > 20
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
