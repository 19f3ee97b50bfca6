"""Names of the files of a set, on real storages: what was saved loads; what an index invents is a bad file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.bundles import MetagraphFormat, base_bundle
from asyncckpt.errors import FormatError, IncompleteCheckpointError, LayoutError
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from tests.formats.attacks import HOSTILE_FILE_NAMES

STATE = {"a": np.arange(3, dtype=np.float32), "b": np.arange(2, dtype=np.float32)}
TEMPORARY = f".x.safetensors.{'0' * 32}.tmp"
"""A name that local disks keep for unfinished files."""


@pytest.mark.parametrize("base", ["a:b", ".hidden", "a\u3000b", "a\x85b", " x ", "ü" * 100, "%2e%2e"])
@pytest.mark.parametrize("extension", [".safetensors.index.json", ".metadata.json", ".sdnb"])
async def test_a_set_loads_under_every_name_that_it_can_be_saved_as(
    tmp_path: Path, base: str, extension: str
) -> None:
    path = tmp_path / f"{base}{extension}"
    await asyncckpt.save(STATE, path, format=SdnbFormat(shards=3) if extension == ".sdnb" else None)
    assert len(list(tmp_path.iterdir())) > 1
    found = await asyncckpt.load(path)
    assert all(np.array_equal(found[name], array) for name, array in STATE.items())


async def test_a_delta_finds_its_base_under_every_name(tmp_path: Path) -> None:
    base_path = tmp_path / "a:\x85b.mgb"
    await asyncckpt.save(STATE, base_path)
    async with asyncckpt.open_checkpoint(base_path) as checkpoint:
        base = base_bundle(checkpoint.index, base_path.name)
    await asyncckpt.save(STATE, tmp_path / "next.mgb", format=MetagraphFormat(base=base))
    assert np.array_equal((await asyncckpt.load(tmp_path / "next.mgb"))["a"], STATE["a"])


def hugging_face(name: str) -> tuple[str, dict[str, Any]]:
    return "x.safetensors.index.json", {"weight_map": {"w": name}}


def shards(name: str) -> tuple[str, dict[str, Any]]:
    tensor = {"name": "w", "shape": [1], "dataType": "float32", "size": 4, "offset": 0}
    shard = {"rank": 0, "filePath": name, "fileSize": 88, "tensors": [tensor], "checksum": "0" * 64}
    metadata = {"version": "1.0.0", "timestamp": "2026-01-01T00:00:00Z", "worldSize": 1, "ddpRank": 0}
    return "x.metadata.json", {**metadata, "shards": [shard]}


@pytest.mark.parametrize("index", [hugging_face, shards])
@pytest.mark.parametrize("name", HOSTILE_FILE_NAMES)
async def test_a_hostile_name_in_an_index_is_a_bad_file(tmp_path: Path, index: Any, name: str) -> None:
    """Never an InvalidKeyError: the caller's key was good. (The folders of a shard's path are left out, so what is
    left of some names is that of a file which is not there.)"""
    refusals = (FormatError, IncompleteCheckpointError) if index is shards else FormatError
    endings = ("", ".safetensors") if name.strip(".") else ("",)
    for whole in (name + ending for ending in endings):
        key, content = index(whole)
        for storage in (MemoryStorage(), LocalStorage(tmp_path)):
            async with storage:
                await storage.write(key, json.dumps(content).encode())
                with pytest.raises(refusals):
                    await asyncckpt.load((storage, key))


async def test_a_name_that_only_this_storage_refuses_is_a_bad_file_too(tmp_path: Path) -> None:
    key, content = shards(TEMPORARY)
    async with LocalStorage(tmp_path) as storage:
        await storage.write(key, json.dumps(content).encode())
        with pytest.raises(
            LayoutError, match=r"x\.metadata\.json: the file .* of the set can't be opened: .*unfinished"
        ):
            await asyncckpt.load((storage, key))


async def test_a_name_that_makes_the_key_too_long_is_a_bad_file_too() -> None:
    key, content = hugging_face("x" * 240 + ".safetensors")
    deep = "/".join(["d" * 200] * 4) + f"/{key}"
    async with MemoryStorage() as storage:
        await storage.write(deep, json.dumps(content).encode())
        with pytest.raises(LayoutError, match="can't be opened: invalid key"):
            await asyncckpt.load((storage, deep))
