"""MLCP: the originals' files, round trips, golden bytes, and every kind of damage."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import (
    ChecksumMismatchError,
    DataAbsentError,
    FormatError,
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedStateError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import content_of, read_shards
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.kit.metadata_json import MetadataSerializer, decode_timestamp
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.kit.tensors import DTYPE_NUMBERS
from asyncckpt.formats.mlcp.file import MlcpFormat, SingleFileCheckpointFormat, dotnet_string
from asyncckpt.model.metadata import CheckpointMetadata, ShardingMetadata, ShardMetadata, TrainingMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.testing.strategies import arrays
from tests.formats import state_files
from tests.formats.attacks import (
    GOLDEN,
    HOSTILE_NUMBERS,
    assert_dump_matches,
    assert_read_or_refused,
    bit_flips,
    mutations,
    outcome,
    with_number,
)
from tests.independent import mlcp_reader

SAMPLES = GOLDEN / "mlcp"
MOMENT = datetime(2026, 1, 8, 4, 35, 0, 123456, tzinfo=UTC)
FORMAT = MlcpFormat()


def parse(data: bytes) -> Index:
    return state_files.parse(FORMAT, data)


def read_all(data: bytes) -> tuple[Any, ...]:
    return state_files.read_all_shards(FORMAT, data)


def smallest() -> bytes:
    """The golden file: one tensor of three float32."""
    tensors = {"w": np.arange(3, dtype="<f4")}
    return state_files.encode_arrays(FORMAT, tensors, CheckpointMetadata(timestamp=MOMENT))


SMALLEST = smallest()


def made_from(metadata_json: str, *, version: str = "1.0.0", tail: bytes = b"") -> bytes:
    text = metadata_json.encode()
    return b"PCLM" + dotnet_string(version) + len(text).to_bytes(4, "little") + text + tail


# -- the originals' files ----------------------------------------------------------------------------------------


def test_two_shards_written_by_dotnet_are_listed_tensor_by_tensor() -> None:
    index = parse((SAMPLES / "two_shards.checkpoint").read_bytes())
    assert [[(t.name, t.dtype, t.shape, t.size) for t in s.tensors] for s in index.metadata.shards] == [
        [("layer.0.weight", "float32", (4, 3), 48), ("layer.0.bias", "float16", (4,), 8)],
        [("layer.1.weight", "bfloat16", (2, 2), 8), ("step", "int64", (), 8), ("mäsk", "bool", (5,), 5)],
    ]
    assert index.version == "1.0.0"
    assert index.metadata.timestamp == MOMENT
    assert index.metadata.sharding == ShardingMetadata(
        "fsdp", 2, "fp32", {"zero_stage": 3, "sharding_strategy": "full_shard"}
    )
    assert index.tree is None
    assert index.warnings == ("MLCP 1.0.0 stores tables only, no tensor data",)


async def test_reading_a_tensor_of_a_tables_only_file_says_that_there_is_no_data() -> None:
    data = (SAMPLES / "two_shards.checkpoint").read_bytes()
    with pytest.raises(DataAbsentError, match=r"'layer\.0\.weight'.*tables only"):
        await MlcpFormat().deserialize(data)


def test_tables_without_their_shards_are_leftover_bytes() -> None:
    with pytest.raises(LayoutError, match="bytes are left over after the tables of 0 shards"):
        parse((SAMPLES / "shards_list_empty.checkpoint").read_bytes())


def test_a_tables_only_file_is_cut_or_extended_noticeably() -> None:
    data = (SAMPLES / "two_shards.checkpoint").read_bytes()
    for size in range(len(data)):
        assert outcome(parse, data[:size]) is None, size
    assert outcome(parse, data + b"\0") is None


def test_the_string_that_binarywriter_made() -> None:
    assert dotnet_string("x" * 300) == (SAMPLES / "binarywriter_string_300.bin").read_bytes()


def test_the_original_metadata_survives_a_round_trip_but_for_nulls_and_the_copied_sharding() -> None:
    metadata = MetadataSerializer.deserialize((SAMPLES / "ckpt.metadata.json").read_bytes())
    text = MetadataSerializer.serialize(metadata)
    assert MetadataSerializer.deserialize(text) == metadata
    original = json.loads((SAMPLES / "ckpt.metadata.json").read_bytes())
    written = json.loads(text)
    assert "shardingStrategy" not in written
    assert written["sharding"] == original["sharding"]
    assert written["shards"] == original["shards"]
    assert MetadataSerializer.validate(metadata) == []


# -- round trips -------------------------------------------------------------------------------------------------


async def test_shards_and_metadata_come_back_as_they_were() -> None:
    shards = [
        ShardData.from_arrays({"w": np.arange(12, dtype="<f4").reshape(3, 4), "s": np.array(3)}, rank=0),
        ShardData.from_arrays({"b": np.ones(5, ml_dtypes.bfloat16), "e": np.zeros((0, 3), "?")}, rank=1),
    ]
    metadata = CheckpointMetadata(
        timestamp=MOMENT,
        world_size=2,
        sharding=ShardingMetadata("ddp", 2, "bf16"),
        training=TrainingMetadata(3, 400, 1e-3, "adam", {"beta": 0.9}),
        custom_fields={"note": "ä", "list": [1, None, {"x": True}]},
        extra={"unknown": [1, 2]},
    )
    data = await MlcpFormat().serialize(shards, metadata)
    again, described = await MlcpFormat().deserialize(data)
    assert [shard.rank for shard in again] == [0, 1]
    for before, after in zip(shards, again, strict=True):
        assert before.arrays().keys() == after.arrays().keys()
        for name, array in before.arrays().items():
            assert after.array(name).tobytes() == array.tobytes()
            assert (after.array(name).dtype, after.array(name).shape) == (array.dtype, array.shape)
    assert described.custom_fields == metadata.custom_fields
    assert described.training == metadata.training
    assert described.sharding == metadata.sharding
    assert described.extra == metadata.extra
    assert (described.version, described.format) == ("1.1.0", "singlefile")


@given(st.lists(arrays(), max_size=4))
def test_any_array_survives(values: list[np.ndarray]) -> None:
    shard = ShardData.from_arrays({f"t{i}": value for i, value in enumerate(values)})
    data = state_files.encode_content(FORMAT, *content_of([shard], CheckpointMetadata()))
    (again,) = read_shards(parse(data), memoryview(data))
    assert [(t.name, t.dtype, t.shape) for t in again.tensor_info] == [
        (t.name, t.dtype, t.shape) for t in shard.tensor_info
    ]
    assert [bytes(view) for view in again.views] == [bytes(view) for view in shard.views]
    assert mlcp_reader.read(data)["tensors"].keys() == shard.arrays().keys()


def test_every_payload_begins_at_a_multiple_of_64_and_boxes_come_back() -> None:
    shard = ShardData.from_arrays({f"t{i}": np.zeros(i, "u1") for i in range(5)})
    content, views = content_of([shard], CheckpointMetadata())
    boxed = tuple(replace(t, global_shape=(100,), origin=(i,)) for i, t in enumerate(content.tensors))
    data = state_files.encode_content(FORMAT, replace(content, tensors=boxed, tree={"k": 1}), views)
    index = parse(data)
    assert index.tree == {"k": 1}
    assert all(t.extents[0].offset % 64 == 0 for t in index.tensors)
    assert [(t.metadata.global_shape, t.metadata.origin) for t in index.tensors] == [
        ((100,), (i,)) for i in range(5)
    ]


@pytest.mark.thorough
def test_twenty_thousand_tensors_are_planned_and_parsed() -> None:
    names = [f"layers.{i}.weight" for i in range(20_000)]
    data = state_files.encode_arrays(FORMAT, dict.fromkeys(names, np.zeros(2, "<f4")))
    assert [t.name for t in parse(data).tensors] == names


# -- golden bytes ------------------------------------------------------------------------------------------------


def test_the_smallest_file_is_byte_for_byte_the_golden_one() -> None:
    assert (SAMPLES / "smallest.checkpoint").read_bytes() == SMALLEST
    assert smallest() == SMALLEST


def test_the_documented_dump_is_the_golden_file() -> None:
    assert_dump_matches("mlcp.md", (SAMPLES / "smallest.checkpoint").read_bytes())


def test_the_independent_reader_agrees() -> None:
    found = mlcp_reader.read((SAMPLES / "smallest.checkpoint").read_bytes())
    assert found["tensors"] == {"w": ("Float32", [3], np.arange(3, dtype="<f4").tobytes())}
    assert found["metadata"]["timestamp"] == "2026-01-08T04:35:00.123456Z"
    foreign = mlcp_reader.read((SAMPLES / "two_shards.checkpoint").read_bytes())
    assert foreign["tensors"]["mäsk"] == ("Bool", [5], None)


def test_the_independent_reader_notices_damage() -> None:
    for position in (20, 200, len(SMALLEST) - 1):
        damaged = bytearray(SMALLEST)
        damaged[position] ^= 1
        with pytest.raises(ValueError):
            mlcp_reader.read(bytes(damaged))


# -- refusals when writing ---------------------------------------------------------------------------------------


def plan_of(content: Content) -> None:
    MlcpFormat().plan(content, name="m.checkpoint")


def test_a_wrong_number_of_shards_is_refused_before_anything_is_written() -> None:
    shard = ShardData.from_arrays({"w": np.zeros(1)})
    content, _ = content_of([shard], CheckpointMetadata(shards=(ShardMetadata(), ShardMetadata(rank=1))))
    with pytest.raises(LayoutError, match="lists 2 shards, 1 are to be written"):
        plan_of(content)


def test_our_own_custom_field_is_refused() -> None:
    with pytest.raises(LayoutError, match="'asyncckpt' is asyncckpt's own"):
        plan_of(Content((), (), CheckpointMetadata(custom_fields={"asyncckpt": 1})))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(2)])
def test_custom_fields_that_can_t_be_kept_are_refused(value: object) -> None:
    with pytest.raises(UnsupportedStateError, match=r"custom_fields\['x'\]"):
        plan_of(Content((), (), CheckpointMetadata(custom_fields={"x": value})))
    with pytest.raises(UnsupportedStateError, match=r"custom_fields\['x'\]"):
        MetadataSerializer.serialize(CheckpointMetadata(custom_fields={"x": value}))


def test_two_tensors_of_one_name_are_refused() -> None:
    shards = [ShardData.from_arrays({"w": np.zeros(1)}, rank=rank) for rank in range(2)]
    with pytest.raises(LayoutError, match="two tensors have the name 'w'"):
        plan_of(content_of(shards, CheckpointMetadata())[0])


def test_a_name_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(LayoutError, match="not valid Unicode"):
        parse(made_from(shard_json(TENSOR.replace('"w"', '"\\ud800"'))))
    shard = ShardData.from_arrays({"\ud800": np.zeros(1)})
    with pytest.raises(FormatError):
        plan_of(content_of([shard], CheckpointMetadata())[0])


# -- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_flipped_bit_is_noticed_or_changes_nothing() -> None:
    # Padding is zeros that nobody reads; `verify` looks at it, opening a file does not.
    (structure,) = parse(SMALLEST).header_extents or ()
    padding = range(structure.end, -(-structure.end // 64) * 64)
    for position, what, damaged in bit_flips(SMALLEST):
        found = outcome(read_all, damaged)
        assert found is None or (position in padding and found == read_all(SMALLEST)), what


def test_every_flipped_bit_of_an_empty_checkpoint_is_noticed() -> None:
    # Padded so that the tables end at a multiple of 64: nothing but the version tells it from a 1.0.0 file.
    for pad in range(64):
        metadata = CheckpointMetadata(custom_fields={"pad": "x" * pad})
        data = state_files.encode_content(FORMAT, Content((), (0,), metadata, {"k": 1}), [])
        if data[-4:] == bytes(4) and len(data) % 64 == 0 and data[-5:-4] == b"}":
            break
    assert len(data) % 64 == 0
    for _, what, damaged in bit_flips(data):
        assert outcome(read_all, damaged) is None, what


def test_a_damaged_tensor_is_named() -> None:
    damaged = SMALLEST[:-1] + b"\xff"
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged") as caught:
        read_all(damaged)
    assert caught.value.tensor == "w"


def test_every_truncation_and_extension_is_noticed() -> None:
    for size in range(len(SMALLEST)):
        assert outcome(read_all, SMALLEST[:size]) is None, size
    for extra in (b"\0", b"x", bytes(64)):
        assert outcome(read_all, SMALLEST + extra) is None


def test_a_cut_file_says_so() -> None:
    with pytest.raises(TruncatedError, match="tensor 'w' ends at"):
        parse(SMALLEST[:-1])


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers_in_every_length_field(value: int) -> None:
    tables = SMALLEST.index(b"\x01\0\0\0\x01\0\0\0w")
    fields = [(4, "B"), (10, "<i"), (tables, "<i"), (tables + 4, "<i"), (tables + 9, "B")]
    fields += [(tables + 17, "<i"), (tables + 21, "<q"), (tables + 29, "<q")]
    for at, layout in fields:
        damaged = with_number(SMALLEST, at, layout, value)
        assert damaged == SMALLEST or outcome(read_all, damaged) is None, (at, value)


def test_a_version_of_endless_length_is_refused() -> None:
    with pytest.raises(LayoutError, match="malformed length"):
        parse(b"PCLM" + b"\xff" * 60)
    with pytest.raises(LimitExceededError, match="the version has 16384 bytes"):
        parse(b"PCLM" + b"\x80\x80\x01" + b"1" * 100)


@given(mutations(SMALLEST))
def test_mutations_are_noticed(damaged: bytes) -> None:
    found = outcome(read_all, damaged)
    assert found is None or found == read_all(SMALLEST)


@given(mutations((SAMPLES / "two_shards.checkpoint").read_bytes()))
def test_mutations_of_a_tables_only_file_raise_nothing_but_format_errors(damaged: bytes) -> None:
    assert_read_or_refused(parse, damaged)


@given(st.binary(max_size=200))
def test_noise_after_the_magic_raises_nothing_but_format_errors(noise: bytes) -> None:
    assert_read_or_refused(parse, b"PCLM" + noise)
    assert_read_or_refused(parse, b"PCLM\x051.1.0" + noise)
    assert_read_or_refused(parse, noise)


def test_the_byte_swapped_variant_is_recognised_and_refused_by_name() -> None:
    data = b"MLCP" + SMALLEST[4:]
    assert MlcpFormat().sniff(memoryview(data), FileInfo("x", len(data)))
    with pytest.raises(LayoutError, match="byte-swapped"):
        parse(data)


def test_sniffing() -> None:
    sniff = MlcpFormat().sniff
    assert sniff(memoryview(SMALLEST[:64]), FileInfo("anything", len(SMALLEST)))
    assert not sniff(memoryview(b"PCL"), FileInfo("m.checkpoint", 3))
    assert not sniff(memoryview(b""), FileInfo("m.checkpoint", 0))
    assert SingleFileCheckpointFormat is MlcpFormat


def test_versions() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"'2\.0\.0' is not supported: upgrade"):
        parse(made_from("{}", version="2.0.0"))
    with pytest.raises(LayoutError, match=r"version 1\.1\.0 needs the custom field 'asyncckpt'"):
        parse(made_from('{"shards":[]}', version="1.1.0"))


# -- metadata ----------------------------------------------------------------------------------------------------

TENSOR = '{"name":"w","shape":[1],"dataType":1,"offset":0,"size":4}'


def shard_json(tensor: str) -> str:
    return f'{{"shards":[{{"rank":0,"tensors":[{tensor}]}}]}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "\xff",
        '{"version":1}',
        '{"version":"1","version":"2"}',
        '{"worldSize":"2"}',
        '{"worldSize":true}',
        '{"worldSize":1e3}',
        '{"worldSize":' + "9" * 30 + "}",
        '{"worldSize":' + "9" * 5000 + "}",
        '{"timestamp":"yesterday"}',
        '{"timestamp":"2026-13-01T00:00:00Z"}',
        '{"timestamp":"0001-01-01T00:00:00+23:59"}',
        '{"customFields":[]}',
        '{"customFields":{"x":NaN}}',
        '{"sharding":[]}',
        '{"shards":{}}',
        '{"shards":[1]}',
        '{"training":{"learningRate":"fast"}}',
        '{"training":{"learningRate":' + "9" * 400 + "}}",
        "[" * 100_000,
        '{"customFields":{"x":' + "[" * 100_000 + "]" * 100_000 + "}}",
        shard_json("1"),
        shard_json('{"name":"w"}'),
        shard_json(TENSOR.replace('"w"', "3")),
        shard_json(TENSOR.replace("[1]", "[-1]")),
        shard_json(TENSOR.replace("[1]", "[1.0]")),
        shard_json(TENSOR.replace("[1]", "[true]")),
        shard_json(TENSOR.replace("[1]", "1")),
        shard_json(TENSOR.replace('"size":4', '"size":8')),
        shard_json(TENSOR.replace("[1]", f"[{2**62}]").replace('"size":4', f'"size":{2**64}')),
        shard_json(TENSOR.replace('"offset":0', '"offset":-1')),
        shard_json(TENSOR.replace('"dataType":1', '"dataType":99')),
        shard_json(TENSOR.replace('"dataType":1', '"dataType":"Nothing"')),
        shard_json(TENSOR.replace('"dataType":1', '"dataType":[]')),
    ],
)
def test_malformed_metadata_raises_one_clear_line(text: str) -> None:
    data = text.encode("latin-1")
    file = b"PCLM\x051.0.0" + len(data).to_bytes(4, "little") + data + bytes(64)
    for read, source in ((parse, file), (MetadataSerializer.deserialize, data)):
        with pytest.raises(FormatError) as caught:
            read(source)
        assert str(caught.value)
        assert "\n" not in str(caught.value)


def test_nulls_count_as_absent_and_both_spellings_of_sharding_are_read() -> None:
    assert MetadataSerializer.deserialize('{"sharding":null,"training":null,"shards":null}') == (
        CheckpointMetadata()
    )
    old = MetadataSerializer.deserialize('{"shardingStrategy":{"strategy":"ddp"}}')
    assert old.sharding == ShardingMetadata("ddp")
    assert old.extra == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-08T04:35:00.1234567Z", MOMENT),
        ("2026-01-08T04:35:00.123456", MOMENT),
        ("2026-01-08T05:35:00.123456+01:00", MOMENT),
        ("2026-01-08T04:35:00Z", MOMENT.replace(microsecond=0)),
    ],
)
def test_timestamps(text: str, expected: datetime) -> None:
    assert decode_timestamp(text) == expected


def test_a_naive_or_foreign_clock_is_written_in_utc() -> None:
    naive = MetadataSerializer.serialize(CheckpointMetadata(timestamp=MOMENT.replace(tzinfo=None)))
    assert json.loads(naive)["timestamp"] == "2026-01-08T04:35:00.123456Z"


def test_validation_lists_every_contradiction() -> None:
    tensor = ShardData.from_arrays({"w": np.zeros(1)}).tensor_info
    metadata = CheckpointMetadata(
        world_size=0,
        ddp_rank=3,
        sharding=ShardingMetadata(shard_count=5),
        shards=(ShardMetadata(tensors=tensor), ShardMetadata(tensors=tensor)),
    )
    assert MetadataSerializer.validate(metadata) == [
        "worldSize is 0, at least 1 is needed",
        "ddpRank is 3, worldSize 0",
        "two shards have the same rank: [0, 0]",
        "shardCount is 5, there are 2 shards",
        "two tensors have the name 'w'",
    ]


def test_every_number_of_the_dtype_enum() -> None:
    for name, number in DTYPE_NUMBERS.items():
        shard = ShardData.from_arrays({"w": np.zeros(1, "<f4")})
        tensor = replace(shard.tensor_info[0], dtype=name)
        text = MetadataSerializer.serialize(CheckpointMetadata(shards=(ShardMetadata(tensors=(tensor,)),)))
        assert json.loads(text)["shards"][0]["tensors"][0]["dataType"] == number
        assert MetadataSerializer.deserialize(text).shards[0].tensors == (tensor,)
    with pytest.raises(UnsupportedDtypeError, match="unknown dtype 17"):
        MetadataSerializer.deserialize(shard_json(TENSOR.replace('"dataType":1', '"dataType":17')))


def test_a_table_that_contradicts_the_metadata_names_the_tensor() -> None:
    data = (SAMPLES / "two_shards.checkpoint").read_bytes()
    at = data.rindex(b"layer.1.weight")
    with pytest.raises(LayoutError, match=r"disagree at byte \d+, in tensor 'layer\.1\.weight'"):
        parse(data[:at] + b"L" + data[at + 1 :])
