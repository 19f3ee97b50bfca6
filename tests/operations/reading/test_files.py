"""The files of a checkpoint: keys under its folder, opened when they are needed, several at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.errors import IncompleteCheckpointError, LayoutError, ObjectChangedError, TruncatedError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import (
    DeclaredFile,
    Extent,
    FileInfo,
    Index,
    ParseSteps,
    StoredTensor,
    need_exactly,
)
from asyncckpt.formats.kit.plan import AnyPlan, Content
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.model.metadata import CheckpointMetadata, TensorMetadata
from asyncckpt.storage.base import ObjectReader
from asyncckpt.testing.storage.wrappers import CountingStorage
from tests.operations.test_requests import RemoteMemory


class Manifest(ICheckpointFormat):
    """A list of files below the manifest, each one tensor of float32; none is opened to parse it."""

    name = "manifest-test"
    extensions = (".json",)

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return False

    def plan(self, content: Content, *, name: str) -> Sequence[AnyPlan]:
        raise NotImplementedError

    def parse(self, source: FileInfo) -> ParseSteps:
        files = json.loads(bytes((yield from need_exactly(0, source.size, "it"))))
        tensors = tuple(
            StoredTensor(TensorMetadata(f"t{i}", "float32", (size // 4,)), (Extent(0, size, i),))
            for i, (_, size, _) in enumerate(files, 1)
        )
        return Index(
            format=self.name,
            version="1",
            metadata=CheckpointMetadata(),
            tensors=tensors,
            files=("", *(key for key, _, _ in files)),
            declared={key: DeclaredFile(kept, version) for key, kept, version in files},
        )


async def written(storage: asyncckpt.ICheckpointStorage, count: int = 3) -> list[list[Any]]:
    """Files below `run/ckpt`, and what a manifest says of them."""
    listed: list[list[Any]] = []
    for i in range(count):
        info = await storage.write(f"run/ckpt/data/f{i}", np.full(8, i, np.float32).tobytes())
        listed.append([f"data/f{i}", info.size, info.version])
    await storage.write("run/ckpt/manifest.json", json.dumps(listed).encode())
    return listed


PLACE = "run/ckpt/manifest.json"


async def test_only_the_files_that_are_read_are_opened() -> None:
    storage = CountingStorage(RemoteMemory())
    await written(storage)
    storage.log.clear()
    async with asyncckpt.open_checkpoint((storage, PLACE), format=Manifest()) as checkpoint:
        assert storage.calls["open_reader"] == 1
        assert checkpoint.size == sum(file.size for file in checkpoint.files)
        assert np.array_equal(await checkpoint.read("t2"), np.full(8, 1, np.float32))
        assert storage.calls["open_reader"] == 2
        assert np.array_equal(await checkpoint.read_slice("t2", slice(3)), np.full(3, 1, np.float32))
        assert storage.calls["open_reader"] == 2
        loaded = await checkpoint.read_many(["t1", "t2", "t3"])
        assert storage.calls["open_reader"] == 4
    assert [array[0] for array in loaded.values()] == [0, 1, 2]
    assert storage.calls["close_reader"] == 4


async def test_a_file_that_is_missing_or_another_is_told_when_it_is_read() -> None:
    storage = RemoteMemory()
    await written(storage)
    await storage.delete("run/ckpt/data/f0")
    await storage.write("run/ckpt/data/f1", bytes(32))
    await storage.write("run/ckpt/data/f2", bytes(31))
    async with asyncckpt.open_checkpoint((storage, PLACE), format=Manifest()) as checkpoint:
        with pytest.raises(IncompleteCheckpointError, match=r"run/ckpt/data/f0 is missing from the set"):
            await checkpoint.read("t1")
        for name, file in (("t2", "f1"), ("t3", "f2")):
            with pytest.raises(
                ObjectChangedError, match=rf"data/{file}' is not the version that was known of it"
            ):
                await checkpoint.read(name)


@pytest.mark.parametrize("key", ["../secret", "/secret", "data//x", "data/../../secret", "data/\0", "."])
async def test_a_hostile_key_is_a_bad_file(key: str) -> None:
    storage = RemoteMemory()
    await storage.write("secret", bytes(8))
    await storage.write(PLACE, json.dumps([[key, 8, None]]).encode())
    with pytest.raises(LayoutError, match="of the set can't be opened"):
        async with asyncckpt.open_checkpoint((storage, PLACE), format=Manifest()):
            pass


async def test_a_tensor_that_leaves_its_declared_file_is_refused_without_opening_it() -> None:
    class Short(Manifest):
        def parse(self, source: FileInfo) -> ParseSteps:
            index = yield from super().parse(source)
            short = {key: DeclaredFile(declared.size - 1) for key, declared in index.declared.items()}
            return Index(index.format, "1", index.metadata, index.tensors, files=index.files, declared=short)

    storage = CountingStorage(RemoteMemory())
    await written(storage)
    storage.log.clear()
    with pytest.raises(TruncatedError, match=r"tensor 't1' ends at byte 32 of 'data/f0', which has 31"):
        async with asyncckpt.open_checkpoint((storage, PLACE), format=Short()):
            pass
    assert storage.calls["open_reader"] == 1


class SlowOpening(RemoteMemory):
    """Counts how many objects are being opened at a time."""

    now = most = 0

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.005)
        self.now -= 1
        return await super()._open_reader(key, first_bytes=first_bytes)


async def test_the_files_of_a_set_are_opened_side_by_side() -> None:
    storage = SlowOpening()
    state = {f"t{i}": np.full(1000, i, np.float32) for i in range(6)}
    place = (storage, "m.safetensors.index.json")
    await asyncckpt.save(state, place, format=HuggingFaceSetFormat(max_file_bytes=4000))
    loaded = await asyncckpt.load(place)
    assert [array[0] for array in loaded.values()] == list(range(6))
    assert 4 <= storage.most <= 8
