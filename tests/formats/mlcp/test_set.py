"""The set of `.shard` files: the original's files, round trips, golden bytes, damage, and commits on a storage."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import (
    CheckpointExistsError,
    ChecksumMismatchError,
    FormatError,
    IncompleteCheckpointError,
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedOperationError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import content_of
from asyncckpt.formats.kit.encode import render
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.mlcp.set import MlcpSetFormat, ShardHeader
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata, TensorMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.operations.load import load
from asyncckpt.operations.save import save
from asyncckpt.operations.verify import verify
from asyncckpt.storage.memory import MemoryStorage
from tests.formats import state_files
from tests.formats.attacks import (
    GOLDEN,
    HOSTILE_FILE_NAMES,
    HOSTILE_NUMBERS,
    assert_read_or_refused,
    bit_flips,
    mutations,
    outcome,
    with_number,
)
from tests.independent import mlcp_reader

SAMPLES = GOLDEN / "mlcp"
MOMENT = datetime(2026, 1, 8, 4, 35, 0, 123456, tzinfo=UTC)
Files = dict[str, bytes]


def parse(files: Files, name: str = "") -> Index:
    """The set whose metadata is the last of the files, or the one of that name."""
    name = name or list(files)[-1]
    return state_files.parse(MlcpSetFormat(), files[name], files, name=name)


def read_all(files: Files) -> tuple[Any, ...]:
    index = parse(files)
    arrays = state_files.arrays_of(index, files[list(files)[-1]], files)
    tensors = {stored.name: (stored.metadata, arrays[stored.name].tobytes()) for stored in index.tensors}
    return index.metadata, index.tree, tensors


def made(content: Content, views: list[memoryview], name: str = "m.metadata.json") -> Files:
    """The files as a save makes them."""
    return state_files.encode_content_files(MlcpSetFormat(), content, views, name=name)


def smallest() -> Files:
    shard = ShardData.from_arrays({"w": np.arange(3, dtype="<f4")})
    content, views = content_of([shard], CheckpointMetadata(timestamp=MOMENT))
    return made(content, views, "smallest.metadata.json")


SMALLEST = smallest()
ORIGINAL = {
    name: (SAMPLES / name).read_bytes()
    for name in ("ckpt_shard_0.shard", "ckpt_shard_1.shard", "ckpt.metadata.json")
}


def two_shards() -> tuple[Content, list[memoryview]]:
    return content_of(
        [
            ShardData.from_arrays({"a": np.arange(5, dtype="<i2"), "e": np.zeros((0, 2))}, rank=3),
            ShardData.from_arrays({"b": np.arange(4.0), "s": np.array(1)}, rank=7),
        ],
        CheckpointMetadata(shards=(ShardMetadata(rank=3), ShardMetadata(rank=7)), custom_fields={"k": "ä"}),
    )


# -- the original's set ------------------------------------------------------------------------------------------


def test_the_originals_set_has_the_right_values() -> None:
    _, tree, tensors = read_all(ORIGINAL)
    values = {name: np.frombuffer(data, np.uint8) for name, (_, data) in tensors.items()}
    assert tree is None
    weight = (np.arange(12) * 0.5 - 1).astype("<f4")
    assert values["layer.0.weight"].tobytes() == weight.tobytes()
    assert values["layer.0.bias"].tobytes() == np.arange(4, dtype="<f2").tobytes()
    assert b"".join(values[n].tobytes() for n in ("layer.1.weight", "step", "mäsk")) == bytes(range(21))
    assert tensors["mäsk"][0].dtype == "bool"


def test_the_originals_checksums_are_what_verify_compares() -> None:
    index = parse(ORIGINAL)
    assert index.files == ("", "ckpt_shard_0.shard", "ckpt_shard_1.shard")
    for digest in index.digests:
        data = ORIGINAL[index.files[digest.extent.file]]
        assert digest.algorithm == "sha256"
        assert hashlib.sha256(data[digest.extent.offset : digest.extent.end]).digest() == digest.expected
    assert all(tensor.checksums is None for tensor in index.tensors)


async def test_a_foreign_set_is_loaded_and_verified_through_the_public_calls() -> None:
    storage = MemoryStorage()
    for name, data in ORIGINAL.items():
        await storage.write(f"run/{name}", data)
    state = await load((storage, "run/ckpt.metadata.json"), format=MlcpSetFormat())
    assert state["layer.0.bias"].tolist() == [0, 1, 2, 3]
    await storage.write("run/ckpt_shard_1.shard", ORIGINAL["ckpt_shard_1.shard"][:-1] + b"\xff")
    report = await verify((storage, "run/ckpt.metadata.json"), format=MlcpSetFormat())
    assert [("ckpt_shard_1.shard" in p.message) for p in report.problems] == [True]


def test_folders_in_a_file_path_are_left_out_and_an_empty_one_is_derived() -> None:
    text = ORIGINAL["ckpt.metadata.json"].replace(b'"ckpt_shard_0.shard"', b'"old/folder/ckpt_shard_0.shard"')
    text = text.replace(b'"ckpt_shard_1.shard"', b'""')
    assert read_all({**ORIGINAL, "ckpt.metadata.json": text})[2] == read_all(ORIGINAL)[2]


# -- round trips -------------------------------------------------------------------------------------------------


def test_several_shards_come_back_with_their_ranks_and_places() -> None:
    content, views = two_shards()
    files = made(replace(content, tree={"k": 1}), views)
    assert list(files) == ["m_shard_3.shard", "m_shard_7.shard", "m.metadata.json"]
    metadata, tree, tensors = read_all(files)
    assert tree == {"k": 1}
    assert metadata.custom_fields == {"k": "ä"}
    assert [shard.rank for shard in metadata.shards] == [3, 7]
    assert {name: data for name, (_, data) in tensors.items()} == {
        t.name: bytes(v) for t, v in zip(content.tensors, views, strict=True)
    }
    for shard in metadata.shards:
        data = files[shard.file_path]
        assert len(data) == shard.file_size
        assert hashlib.sha256(data[84:]).hexdigest() == shard.checksum == data[12:76].decode()


def test_the_metadata_alone_can_be_rendered_too() -> None:
    content, views = two_shards()
    plans = MlcpSetFormat().plan(content, name="m.metadata.json")
    alone = render(plans[-1], state_files.from_views(views))
    assert alone == made(content, views)["m.metadata.json"]


def test_a_set_without_tensors_or_shards() -> None:
    for shards in ((0,), ()):
        files = made(Content((), shards, CheckpointMetadata(), {"k": 1}), [])
        assert read_all(files)[1:] == ({"k": 1}, {})


async def test_a_set_is_saved_loaded_and_never_overwritten() -> None:
    storage = MemoryStorage()
    state = {"w": np.arange(6.0).reshape(2, 3), "n": 5, "deep": [np.array(True), "x"]}
    result = await save(state, (storage, "run/m.metadata.json"), format=MlcpSetFormat())
    assert result.files == ("run/m_shard_0.shard", "run/m.metadata.json")
    again = await load((storage, "run/m.metadata.json"), format=MlcpSetFormat())
    assert again["w"].tolist() == state["w"].tolist()  # type: ignore[attr-defined]
    assert (again["n"], again["deep"][1]) == (5, "x")
    assert (await verify((storage, "run/m.metadata.json"), format=MlcpSetFormat())).ok
    with pytest.raises(CheckpointExistsError):
        await save(state, (storage, "run/m.metadata.json"), format=MlcpSetFormat())
    with pytest.raises(UnsupportedOperationError, match="save under a new name"):
        await save(state, (storage, "run/m.metadata.json"), format=MlcpSetFormat(), overwrite=True)
    assert (await load((storage, "run/m.metadata.json"), format=MlcpSetFormat()))["n"] == 5


@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_file_that_is_in_the_way_of_a_set_is_named_with_advice_that_helps(overwrite: bool) -> None:
    storage = MemoryStorage()
    await storage.write("run/m_shard_0.shard", b"left by a save that was killed")
    with pytest.raises(
        CheckpointExistsError, match=r"m_shard_0\.shard exists already: a set .* save under a new name"
    ):
        await save({"w": np.zeros(2)}, (storage, "run/m.metadata.json"), overwrite=overwrite)
    assert [info.key async for info in storage.list()] == ["run/m_shard_0.shard"]


async def test_one_file_in_memory_is_refused_with_advice() -> None:
    with pytest.raises(LayoutError, match="would write 2 files"):
        await MlcpSetFormat().serialize([ShardData.from_arrays({})], CheckpointMetadata())


# -- golden bytes ------------------------------------------------------------------------------------------------


def test_the_smallest_set_is_byte_for_byte_the_golden_one() -> None:
    assert {name: (SAMPLES / name).read_bytes() for name in SMALLEST} == SMALLEST
    assert smallest() == SMALLEST


def test_the_independent_reader_agrees() -> None:
    for files in (SMALLEST, ORIGINAL, made(*two_shards())):
        *_, name = files
        found = mlcp_reader.read_set(files[name], files)
        assert found == {tensor: data for tensor, (_, data) in read_all(files)[2].items()}


# -- refusals when writing ---------------------------------------------------------------------------------------


def test_more_data_than_an_int32_can_count_is_refused() -> None:
    tensor = TensorMetadata("w", "uint8", (2**31,))
    with pytest.raises(LimitExceededError, match=r"shard 0 has 2147483648 bytes.*use more shards"):
        MlcpSetFormat().plan(Content((tensor,), (1,), CheckpointMetadata()), name="m.metadata.json")
    fits = replace(tensor, shape=(2**31 - 1,))
    plans = MlcpSetFormat().plan(Content((fits,), (1,), CheckpointMetadata()), name="m.metadata.json")
    assert plans[0].size == 84 + 2**31 - 1


@pytest.mark.parametrize("ranks", [(1, 1), (-1, 0), (0, 2**31)])
def test_ranks_that_make_no_file_names_are_refused(ranks: tuple[int, int]) -> None:
    metadata = CheckpointMetadata(shards=tuple(ShardMetadata(rank=rank) for rank in ranks))
    with pytest.raises(LayoutError, match="need ranks of their own"):
        MlcpSetFormat().plan(Content((), (0, 0), metadata), name="m.metadata.json")


# -- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("victim", list(SMALLEST))
def test_every_flipped_bit_is_noticed(victim: str) -> None:
    for _, what, damaged in bit_flips(SMALLEST[victim]):
        assert outcome(lambda d: read_all({**SMALLEST, victim: d}), damaged) is None, (victim, what)


@pytest.mark.parametrize("victim", list(SMALLEST))
def test_every_truncation_and_extension_is_noticed(victim: str) -> None:
    data = SMALLEST[victim]
    for size in range(len(data)):
        assert outcome(lambda d: read_all({**SMALLEST, victim: d}), data[:size]) is None, size
    for extra in (b"\0", b"}", bytes(64)):
        assert outcome(lambda d: read_all({**SMALLEST, victim: d}), data + extra) is None


@given(mutations(SMALLEST["smallest_shard_0.shard"]), mutations(SMALLEST["smallest.metadata.json"]))
def test_mutations_are_noticed(shard: bytes, metadata: bytes) -> None:
    for name, damaged in (("smallest_shard_0.shard", shard), ("smallest.metadata.json", metadata)):
        found = outcome(lambda d, n=name: read_all({**SMALLEST, n: d}), damaged)  # type: ignore[misc]
        assert found is None or found == read_all(SMALLEST)


@given(mutations(ORIGINAL["ckpt.metadata.json"]), mutations(ORIGINAL["ckpt_shard_1.shard"]))
def test_mutations_of_a_foreign_set_raise_nothing_else(metadata: bytes, shard: bytes) -> None:
    for name, damaged in (("ckpt.metadata.json", metadata), ("ckpt_shard_1.shard", shard)):
        try:
            read_all({**ORIGINAL, name: damaged})
        except (FormatError, IncompleteCheckpointError) as error:
            problem = str(error)
            assert problem


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers_in_every_length_field(value: int) -> None:
    shard = SMALLEST["smallest_shard_0.shard"]
    for at in (0, 4, 8, 76, 80):
        damaged = with_number(shard, at, "<i", value)
        found = outcome(lambda d: read_all({**SMALLEST, "smallest_shard_0.shard": d}), damaged)
        assert found is None or damaged == shard, (at, value)


def test_a_missing_shard_is_named() -> None:
    files = {name: data for name, data in ORIGINAL.items() if name != "ckpt_shard_1.shard"}
    with pytest.raises(IncompleteCheckpointError, match=r"'ckpt_shard_1\.shard' of the set is missing"):
        parse(files)


def test_a_damaged_tensor_of_ours_is_named() -> None:
    shard = SMALLEST["smallest_shard_0.shard"]
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged"):
        read_all({**SMALLEST, "smallest_shard_0.shard": shard[:-1] + b"\xff"})


def changed_json(**members: Any) -> Files:
    text = json.loads(ORIGINAL["ckpt.metadata.json"]) | members
    return {**ORIGINAL, "ckpt.metadata.json": json.dumps(text).encode()}


def changed_shard(**members: Any) -> Files:
    shards = json.loads(ORIGINAL["ckpt.metadata.json"])["shards"]
    return changed_json(shards=[shards[0] | members, *shards[1:]])


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"'2\.0' is not supported"):
        parse(changed_json(version="2.0"))
    with pytest.raises(LayoutError, match=r"version 1\.1\.0 needs the custom field"):
        parse(changed_json(version="1.1.0"))
    with pytest.raises(LayoutError, match="the metadata says rank 5"):
        parse(changed_shard(rank=5))
    with pytest.raises(LayoutError, match="140 bytes by its header, 141 by the metadata"):
        parse(changed_shard(fileSize=141))
    with pytest.raises(ChecksumMismatchError, match="has the checksum 3cf6bc"):
        parse(changed_shard(checksum="0" * 64))
    with pytest.raises(LayoutError, match="the same name"):
        shards = json.loads(ORIGINAL["ckpt.metadata.json"])["shards"]
        parse(changed_json(shards=[shards[0], shards[0]]))
    tensors = json.loads(ORIGINAL["ckpt.metadata.json"])["shards"][0]["tensors"]
    with pytest.raises(LayoutError, match=r"'layer\.0\.bias' begins at 40 of the data, 48 was expected"):
        parse(changed_shard(tensors=[tensors[0], tensors[1] | {"offset": 40}]))
    with pytest.raises(LayoutError, match="have 24 bytes, its data has 56"):
        parse(changed_shard(tensors=[tensors[0] | {"shape": [4], "size": 16}, tensors[1]]))


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in HOSTILE_FILE_NAMES if name and not set(name) & set("/\\")),
        "x/..",
        "ckpt.metadata.json",
    ],
)
def test_file_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(LayoutError, match="has the file name"):
        parse(changed_shard(filePath=name))


def test_headers() -> None:
    header = ShardHeader(3, "ab" * 32, 2, 10)
    assert len(header.encode()) == 84
    assert ShardHeader.decode(memoryview(header.encode()), "s") == header
    with pytest.raises(TruncatedError, match="the header of 's'"):
        ShardHeader.decode(memoryview(header.encode()[:83]), "s")
    with pytest.raises(LayoutError, match="checksum of 1000 digits"):
        ShardHeader.decode(memoryview(b"RAHS" + struct.pack("<ii", 0, 1000) + bytes(72)), "s")
    with pytest.raises(LayoutError, match="not lower-case hexadecimal"):
        ShardHeader.decode(memoryview(header.encode().replace(b"ab", b"AB")), "s")


def test_sniffing() -> None:
    def sniff(data: bytes) -> bool:
        return MlcpSetFormat().sniff(memoryview(data[:64]), FileInfo("x.json", len(data)))

    assert sniff(SMALLEST["smallest.metadata.json"])
    assert sniff(ORIGINAL["ckpt.metadata.json"])
    assert sniff(made(Content((), (0,), CheckpointMetadata()), [])["m.metadata.json"])
    assert not sniff(b'{"metadata": {"total_size": 1}, "weight_map": {}}')
    assert not sniff(b"")
    assert not sniff(SMALLEST["smallest_shard_0.shard"])


@given(st.binary(max_size=200))
def test_noise_raises_nothing_but_format_errors(noise: bytes) -> None:
    assert_read_or_refused(lambda data: parse({"m.metadata.json": data}), noise)
    assert_read_or_refused(lambda data: parse({"m.metadata.json": data}), b'{"version":"1.0.0","x":' + noise)
