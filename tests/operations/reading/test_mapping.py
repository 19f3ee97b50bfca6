"""Local files that are mapped, and `map=False`, for files that others change in place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt import blocking
from asyncckpt._aio import run_in_thread
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from tests.forks import exit_code_of_fork

FORMATS = ["mlcp", "safetensors", "mldf", "sdnb", "gptrschk", "metagraph"]


def a_state() -> dict[str, Any]:
    return {"w": np.arange(600_000, dtype=np.float32), "small": np.arange(10, dtype=np.int32)}


def assert_equal(found: Any, expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def is_mapped(path: Path) -> bool:
    return (
        re.search(rf" {re.escape(str(path))}$", Path("/proc/self/maps").read_text(), re.MULTILINE) is not None
    )


@pytest.mark.parametrize("format", FORMATS)
async def test_without_a_map_another_writer_changes_nothing(format: str, tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    await asyncckpt.save(a_state(), path, format=format)
    loaded = await asyncckpt.load(path, map=False)
    async with asyncckpt.open_checkpoint(path, map=False) as checkpoint:
        read = {name: await checkpoint.read(name) for name in loaded}
        piece = await checkpoint.read_slice("w", slice(10, 20))
        assert not is_mapped(path)
    with open(path, "r+b") as file:
        file.write(b"\xff" * os.path.getsize(path))
    assert_equal(loaded, a_state())
    assert_equal(read, a_state())
    assert np.array_equal(piece, np.arange(10, 20, dtype=np.float32))
    loaded["w"][:] = 1  # the arrays are writable, as they are with a map


def test_without_a_map_a_shortened_file_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    blocking.save(a_state(), path)

    def load_and_shorten() -> None:
        loaded = blocking.load(path, map=False)
        os.truncate(path, 0)
        assert_equal(loaded, a_state())

    assert exit_code_of_fork(load_and_shorten) == 0


async def test_a_local_file_is_mapped_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    await asyncckpt.save(a_state(), path)
    async with asyncckpt.open_checkpoint(path):
        assert await run_in_thread(is_mapped, path)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("format", FORMATS)
async def test_a_save_onto_the_file_that_its_state_is_mapped_from(
    format: str, copy: bool, tmp_path: Path, file_size: str
) -> None:
    path = tmp_path / "a.checkpoint"
    expected = a_state()
    await asyncckpt.save(expected, path, format=format)
    loaded = await asyncckpt.load(path)
    for _ in range(2):
        for state in (loaded, expected):
            state["w"][1000:2000] *= 2  # the rest is still in the file
        await asyncckpt.save(loaded, path, format=format, overwrite=True, copy=copy)
        assert_equal(loaded, expected)
        assert_equal(await asyncckpt.load(path), expected)
    assert os.listdir(tmp_path) == ["a.checkpoint"]


@pytest.mark.parametrize("map", [True, False])
@pytest.mark.parametrize("kind", ["path", "local storage", "memory"])
async def test_a_read_after_the_block_says_so(kind: str, map: bool, tmp_path: Path) -> None:
    storage = MemoryStorage() if kind == "memory" else LocalStorage(tmp_path)
    async with storage:
        location = tmp_path / "a.checkpoint" if kind == "path" else (storage, "a.checkpoint")
        await asyncckpt.save(a_state(), location)
        async with asyncckpt.open_checkpoint(location, map=map) as checkpoint:
            kept = await checkpoint.read("w")
        for call in (
            checkpoint.read("w"),
            checkpoint.read_many(["w", "small"]),
            checkpoint.read_slice("w", slice(0, 5)),
            checkpoint.read_into("w", np.empty(600_000, np.float32)),
            checkpoint.read_stored("w"),
            checkpoint.read_bytes("w", 0, 8),
        ):
            with pytest.raises(asyncckpt.CheckpointError, match=r"is closed; read inside the block"):
                await call
        assert np.array_equal(kept, a_state()["w"])
        assert checkpoint.tensors["small"].shape == (10,)


async def test_load_and_save_with_a_closed_storage(tmp_path: Path) -> None:
    async with LocalStorage(tmp_path) as storage:
        await asyncckpt.save(a_state(), (storage, "a.checkpoint"))
    for call in (
        asyncckpt.load((storage, "a.checkpoint")),
        asyncckpt.save(a_state(), (storage, "b.checkpoint")),
        asyncckpt.verify((storage, "a.checkpoint")),
    ):
        with pytest.raises(asyncckpt.StorageError, match=r"LocalStorage\(.*\) is closed; open it again"):
            await call
    assert os.listdir(tmp_path) == ["a.checkpoint"]
