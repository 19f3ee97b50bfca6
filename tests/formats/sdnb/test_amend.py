"""Metadata added to SDNB files that exist: arrays stay in place, foreign graphs come through, one atomic step."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.errors import (
    CheckpointNotFoundError,
    ChecksumMismatchError,
    FormatError,
    LayoutError,
    ObjectChangedError,
)
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.sdnb.amend import amend
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.operations.add_metadata import add_metadata
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.strategies import assert_identical
from tests.formats import state_files
from tests.formats.attacks import GOLDEN, bit_flips, outcome
from tests.formats.parser_steps import drive
from tests.formats.sdnb.test_format import container
from tests.formats.sdnb.test_graph import foreign
from tests.formats.state_files import encode
from tests.independent import sdnb_reader

SAMPLES = GOLDEN / "sdnb"
FMT = SdnbFormat()
STATE = {"w": np.arange(6, dtype="<f4").reshape(2, 3), "big": np.arange(400_000, dtype="<f8"), "step": 3}


def amended(data: bytes, metadata: dict[str, str], name: str = "m.sdnb") -> bytes:
    change = drive(amend(FileInfo(name, len(data)), metadata), data, len(data))
    new: bytes = change.head + data[change.kept_start : change.kept_end] + change.tail
    assert len(new) == change.size
    return new


def read_all(data: bytes) -> tuple[Any, ...]:
    return state_files.read_all(FMT, data)


@pytest.mark.parametrize("name", ["tiny_inline_only.sdnb", "tiny_appended.sdnb"])
def test_a_foreign_file_keeps_its_arrays(name: str) -> None:
    data = (SAMPLES / name).read_bytes()
    once = amended(data, {"note": "ünï"})
    twice = amended(once, {"note": "other", "more": ""})
    for new, texts in ((once, {"note": "ünï"}), (twice, {"note": "other", "more": ""})):
        metadata, _, arrays = read_all(new)
        assert metadata.custom_fields == texts
        assert arrays == read_all(data)[2]
        assert sdnb_reader.read(new).metadata["nd4j.format.type"] == "APPENDED_BLOB"


def test_only_the_first_36_bytes_before_the_arrays_change() -> None:
    data = (SAMPLES / "tiny_appended.sdnb").read_bytes()
    new = amended(data, {"note": "x"})
    old_manifest = struct.unpack_from(">q", data, 8)[0]
    assert new[36:old_manifest] == data[36:old_manifest]
    assert new[:8] == data[:8]
    assert new[24:32] == data[24:32]
    offset, length = struct.unpack_from(">qq", new, 8)
    assert new[offset:] == data[old_manifest:]
    assert offset + length == len(new)
    assert 32 + struct.unpack_from("<I", new, 32)[0] > old_manifest


@pytest.mark.parametrize("metadata", [True, False])
def test_tables_and_slots_that_nobody_knows_come_through(metadata: bool) -> None:
    data = container(foreign(metadata=metadata))
    for new in (amended(data, {"k": "v"}), amended(amended(data, {"k": "u"}), {"k": "v"})):
        index = state_files.parse(FMT, new)
        assert index.metadata.custom_fields["k"] == "v"
        assert index.details["graph"]["nodeNames"] == ["matmul_1"]
        assert index.details["graph"]["unknownSlots"] == [13, 14, 15]
        assert index.details["graph"]["trainingConfig"] == '{"updater":"adam"}'


@pytest.mark.thorough
@pytest.mark.parametrize("inline_below", [0, 1 << 20])
def test_every_bit_of_an_amended_file_of_ours_is_still_covered(inline_below: int) -> None:
    fmt = SdnbFormat(inline_below=inline_below)
    data = amended(encode(fmt, {"w": np.arange(3, dtype="<f4"), "v": np.ones(20), "step": 3}), {"note": "x"})
    original = read_all(data)
    assert original[0].custom_fields == {"note": "x"}
    for position, what, damaged in bit_flips(data):
        if position % 3 == 0 or position < 64:
            assert outcome(read_all, damaged) in (None, original), what
    for size in range(0, len(data), 7):
        assert outcome(read_all, data[:size]) is None, size


async def test_a_state_and_what_was_said_about_it_before_are_kept() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(STATE, (storage, "run/m.sdnb"), format=FMT)
    for number in range(3):
        info = await add_metadata((storage, "run/m.sdnb"), {f"k{number}": str(number), "last": str(number)})
        assert info.key == "run/m.sdnb"
    async with asyncckpt.open_checkpoint((storage, "run/m.sdnb"), format=FMT) as checkpoint:
        assert dict(checkpoint.metadata.custom_fields) == {"k0": "0", "k1": "1", "k2": "2", "last": "2"}
        assert checkpoint.details["graphMetadata"]["k1"] == "1"
    assert_identical(await asyncckpt.load((storage, "run/m.sdnb"), format=FMT), STATE)
    assert (await asyncckpt.verify((storage, "run/m.sdnb"), format=FMT)).ok


async def test_a_large_file_is_copied_part_by_part(tmp_path: Path) -> None:
    state = {"big": np.arange(3_000_000, dtype="<f4"), "w": np.ones(3)}
    memory = MemoryStorage()
    for location in (tmp_path / "m.sdnb", (memory, "m.sdnb")):
        await asyncckpt.save(state, location, format=FMT)
        await add_metadata(location, {"note": "x"})
        assert_identical(await asyncckpt.load(location, format=FMT), state)
        assert (await asyncckpt.verify(location, format=FMT)).ok
    assert [path.name for path in tmp_path.iterdir()] == ["m.sdnb"]
    assert memory.unfinished == []


async def test_a_set_is_amended_through_its_leader_by_any_name() -> None:
    storage = MemoryStorage()
    result = await asyncckpt.save(STATE, (storage, "run/m.sdnb"), format=SdnbFormat(shards=3))
    await add_metadata((storage, result.key), {"a": "1"})
    await add_metadata((storage, "run/m.sdnb"), {"b": "2"})
    async with asyncckpt.open_checkpoint((storage, result.key), format=FMT) as checkpoint:
        assert dict(checkpoint.metadata.custom_fields) == {"a": "1", "b": "2"}
    assert_identical(await asyncckpt.load((storage, result.key), format=FMT), STATE)
    with pytest.raises(LayoutError, match="belongs to shard 0"):
        await add_metadata((storage, "run/m.shard1-of-3.sdnb"), {"c": "3"})


async def test_what_is_not_there_and_what_is_not_one() -> None:
    storage = MemoryStorage()
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint"):
        await add_metadata((storage, "m.sdnb"), {"a": "b"})
    for count in (2, 3):
        await asyncckpt.save(STATE, (storage, "m.sdnb"), format=SdnbFormat(shards=count))
    with pytest.raises(LayoutError, match="several sets"):
        await add_metadata((storage, "m.sdnb"), {"a": "b"})


@pytest.mark.parametrize(
    "metadata", [{"asyncckpt": "x"}, {"shard.index": "1"}, {"creation.time": "0"}, {"k": 1}]
)
async def test_keys_and_values_that_can_not_be_added(metadata: dict[str, Any]) -> None:
    storage = MemoryStorage()
    await asyncckpt.save(STATE, (storage, "m.sdnb"), format=FMT)
    before = await storage.read("m.sdnb")
    with pytest.raises(LayoutError, match=r"the format's own|metadata is text"):
        await add_metadata((storage, "m.sdnb"), metadata)
    assert await storage.read("m.sdnb") == before


async def test_a_damaged_file_is_left_alone() -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"w": np.ones(3)}, (storage, "m.sdnb"), format=FMT)
    data = bytearray(await storage.read("m.sdnb"))
    data[data.index(b'"metadata"')] ^= 1
    await storage.write("m.sdnb", bytes(data))
    with pytest.raises(FormatError):
        await add_metadata((storage, "m.sdnb"), {"a": "b"})
    assert await storage.read("m.sdnb") == bytes(data)


async def test_a_damaged_array_is_still_noticed_afterwards() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(STATE, (storage, "m.sdnb"), format=FMT)
    data = bytearray(await storage.read("m.sdnb"))
    data[len(data) // 2] ^= 1
    await storage.write("m.sdnb", bytes(data))
    await add_metadata((storage, "m.sdnb"), {"a": "b"})
    with pytest.raises(ChecksumMismatchError, match="'big'"):
        await asyncckpt.load((storage, "m.sdnb"), format=FMT)


async def test_a_file_that_somebody_else_replaces_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    await asyncckpt.save(STATE, (storage, "m.sdnb"), format=FMT)
    exists = MemoryStorage._open_reader

    async def replaced(self: MemoryStorage, key: str, *, first_bytes: int) -> Any:
        reader = await exists(self, key, first_bytes=first_bytes)
        await self.write(key, b"something else")
        return reader

    monkeypatch.setattr(MemoryStorage, "_open_reader", replaced)
    with pytest.raises(ObjectChangedError, match="was replaced"):
        await add_metadata((storage, "m.sdnb"), {"a": "b"})
    assert storage.unfinished == []
