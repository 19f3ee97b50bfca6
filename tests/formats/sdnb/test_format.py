"""SDNB: the samples, round trips, sets of shards, golden bytes, and every kind of damage."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import flatbuffers
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from asyncckpt.errors import (
    ChecksumMismatchError,
    DataAbsentError,
    FormatError,
    IncompleteCheckpointError,
    InvalidArgumentError,
    LayoutError,
    LimitExceededError,
    NotRepresentableError,
    TruncatedError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import content_of, read_shards
from asyncckpt.formats.kit.encode import render
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdnb.graph.build import VariableSpec, build_graph
from asyncckpt.formats.sdnb.header import Header
from asyncckpt.formats.sdnb.java_manifest import ArrayRange, encode_manifest
from asyncckpt.formats.sdnb.shards import ShardName, assign_shards
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata, TensorMetadata, TrainingMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.testing.strategies import assert_identical
from tests.formats import state_files
from tests.formats.attacks import (
    GOLDEN,
    HOSTILE_FILE_NAMES,
    HOSTILE_NUMBERS,
    assert_dump_matches,
    bit_flips,
    mutations,
    outcome,
    with_number,
)
from tests.formats.state_files import arrays_of, encode, encode_files
from tests.independent import sdnb_reader

SAMPLES = GOLDEN / "sdnb"
MOMENT = datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)
STATE = {
    "model": {"w": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.array([1, -2], "<i8")},
    "big": np.arange(300_000, dtype="<f8"),
    "step": 7,
    "empty": np.zeros((0, 3), "<f2"),
    "scalar": np.array(2.5, "<f4"),
}


def f32(count: int, k: float) -> np.ndarray:
    return np.arange(count, dtype="<f4") * np.float32(0.5) - np.float32(k)


def ints(count: int, k: int, dtype: str) -> np.ndarray:
    return (3 * np.arange(count) - k).astype(dtype)


def parse(
    data: bytes, name: str = "m.sdnb", files: Mapping[str, bytes] | None = None, **options: Any
) -> Index:
    return state_files.parse(SdnbFormat(**options), data, files, name=name)


def read_all(data: bytes) -> tuple[Any, ...]:
    return state_files.read_all(SdnbFormat(), data)


def smallest(**options: Any) -> bytes:
    """The golden file: one tensor of three float32."""
    tensors = {"w": np.arange(3, dtype="<f4")}
    return state_files.encode_arrays(SdnbFormat(**options), tensors, CheckpointMetadata(timestamp=MOMENT))


SMALLEST = smallest()
APPENDED = smallest(inline_below=0)


# -- the samples -------------------------------------------------------------------------------------------------


def test_the_sample_with_inline_arrays() -> None:
    data = (SAMPLES / "tiny_inline_only.sdnb").read_bytes()
    arrays = arrays_of(parse(data), data)
    assert_identical(arrays, {"w": f32(6, 0).reshape(2, 3), "n": ints(2, 1, "<i4")})


def test_the_sample_with_appended_arrays() -> None:
    data = (SAMPLES / "tiny_appended.sdnb").read_bytes()
    index = parse(data)
    expected = {
        "w": f32(6, 0).reshape(2, 3),
        "n": ints(5, 1, "<i8"),
        "odd": np.array([1, 2, 3], "u1"),
        "after_odd": f32(2, 4),
    }
    assert_identical(arrays_of(index, data), expected)
    assert index.tree is None
    assert index.metadata.timestamp == MOMENT
    assert index.details["graphMetadata"]["nd4j.format.type"] == "APPENDED_BLOB"


@pytest.mark.parametrize("opened", range(3))
def test_the_sample_in_shards_opened_by_any_of_them(opened: int) -> None:
    files = {path.name: path.read_bytes() for path in SAMPLES.glob("model.shard*")}
    name = f"model.shard{opened}-of-3.sdnb"
    index = parse(files[name], name, files)
    expected = {"A": f32(16, 1).reshape(4, 4), "B": f32(8, 2), "C": ints(3, 3, "<i4")}
    assert_identical(arrays_of(index, files[name], files), expected)
    assert index.files[0] == ""
    assert set(index.files[1:]) == set(files) - {name}


@pytest.mark.parametrize("missing", range(3))
def test_a_missing_shard_is_named(missing: int) -> None:
    files = {path.name: path.read_bytes() for path in SAMPLES.glob("model.shard*")}
    gone = f"model.shard{missing}-of-3.sdnb"
    opened = "model.shard1-of-3.sdnb" if missing == 0 else "model.shard0-of-3.sdnb"
    with pytest.raises(IncompleteCheckpointError, match=gone):
        parse(files[opened], opened, {name: data for name, data in files.items() if name != gone})


def test_a_shard_0_by_another_name_lists_its_variables_without_data() -> None:
    data = (SAMPLES / "model.shard0-of-3.sdnb").read_bytes()
    index = parse(data, "renamed.sdnb")
    assert [t.name for t in index.tensors] == ["A", "B", "C"]
    with pytest.raises(DataAbsentError, match="no file holds its data"):
        read_shards(index, memoryview(data))


# -- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline_below", [0, 1 << 20, 1 << 30])
def test_a_state_comes_back(inline_below: int) -> None:
    data = encode(SdnbFormat(inline_below=inline_below), STATE)
    index = parse(data)
    arrays = arrays_of(index, data)
    assert_identical(arrays["model.w"], STATE["model"]["w"])  # type: ignore[index]
    assert_identical(arrays["big"], STATE["big"])
    assert index.tree is not None
    inline = {
        t.name for t in index.tensors if t.extents and t.extents[0].end <= index.details["graphBytes"] + 32
    }
    assert ("big" in inline) == (inline_below == 1 << 30)


@pytest.mark.parametrize(
    "dtype", "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
async def test_every_dtype_bit_by_bit(dtype: str) -> None:
    array = np.arange(24, dtype="u1").repeat(8).view(dtype if dtype != "bool" else "u1").reshape(2, -1)
    array = array.astype(bool) if dtype == "bool" else array
    data = await SdnbFormat().serialize([ShardData.from_arrays({"x": array})], CheckpointMetadata())
    (shard,), _ = await SdnbFormat().deserialize(data)
    assert_identical(shard.array("x"), array)


async def test_bfloat16_with_nan_payloads() -> None:
    array = np.array([0x7FC1, 0xFF81, 0x0001, 0x8000], "<u2").view(ml_dtypes.bfloat16)
    data = await SdnbFormat().serialize([ShardData.from_arrays({"x": array})], CheckpointMetadata())
    (shard,), _ = await SdnbFormat().deserialize(data)
    assert shard.array("x").tobytes() == array.tobytes()


async def test_shards_and_metadata_come_back() -> None:
    metadata = CheckpointMetadata(
        timestamp=MOMENT,
        world_size=2,
        shards=(ShardMetadata(rank=1, file_path="a"), ShardMetadata(rank=0, extra={"x": 1})),
        training=TrainingMetadata(epoch=1, step=2, learning_rate=0.5),
        custom_fields={"note": "ünï", "list": [1, {"a": None}]},
        extra={"unknown": True},
    )
    shards = [
        ShardData.from_arrays({"a": f32(3, 0), "b": f32(2, 0)}),
        ShardData.from_arrays({"c": f32(1, 0)}),
    ]
    data = await SdnbFormat().serialize(shards, metadata)
    found, back = await SdnbFormat().deserialize(data)
    assert [[t.name for t in shard.tensor_info] for shard in found] == [["a", "b"], ["c"]]
    assert [(s.rank, s.file_path, s.extra) for s in back.shards] == [(1, "a", {}), (0, "", {"x": 1})]
    assert (back.training, back.custom_fields, back.extra) == (
        metadata.training,
        metadata.custom_fields,
        metadata.extra,
    )
    assert parse(data).details["graphMetadata"]["note"] == "ünï"


async def test_names_of_every_kind() -> None:
    arrays = {name: f32(2, 0) for name in ("", "ünï", "a/b", "𝄞", "nul\0", "x" * 70_000)}
    for inline_below in (0, 1 << 20):
        fmt = SdnbFormat(inline_below=inline_below)
        data = await fmt.serialize([ShardData.from_arrays(arrays)], CheckpointMetadata())
        (shard,), _ = await fmt.deserialize(data)
        assert_identical(shard.arrays(), arrays)


def test_what_does_not_fit_is_listed_as_a_whole() -> None:
    content, _ = content_of(
        [ShardData.from_arrays({"c": np.zeros(2, "c8"), "ok": f32(2, 0), "\ud800": f32(2, 0)})],
        CheckpointMetadata(),
    )
    with pytest.raises(NotRepresentableError) as caught:
        SdnbFormat().plan(content, name="x.sdnb")
    assert len(caught.value.losses) == 2
    assert "'c' is complex64" in caught.value.losses[0]


def test_payloads_are_aligned_and_the_graph_is_in_front() -> None:
    index = parse(encode(SdnbFormat(inline_below=0), STATE))
    assert {t.extents[0].offset % 64 for t in index.tensors} == {0}


def test_the_same_input_gives_the_same_bytes() -> None:
    assert smallest() == SMALLEST
    assert smallest(inline_below=0) == APPENDED


def test_the_clock_is_asked_where_there_is_no_timestamp() -> None:
    data = encode(SdnbFormat(clock=lambda: MOMENT), {"w": f32(2, 0)})
    assert parse(data).details["graphMetadata"]["creation.time"] == "1760000000000"


@pytest.mark.thorough
def test_twenty_thousand_tensors_keep_their_order() -> None:
    tensors = tuple(TensorMetadata(f"layers.{i}.weight", "float32", (8,)) for i in range(20_000))
    content = Content(tensors, (len(tensors),), CheckpointMetadata())
    (plan,) = SdnbFormat(clock=lambda: MOMENT).plan(content, name="x.sdnb")
    data = render(plan, lambda tensor, start, end: tensor.to_bytes(4, "little") * 8)
    index = parse(data)
    assert [t.name for t in index.tensors] == [t.name for t in tensors]
    assert arrays_of(index, data)["layers.777.weight"].view("<u4").tolist() == [777] * 8


# -- sets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline_below", [0, 1 << 20])
@pytest.mark.parametrize("options", [{"shards": 2}, {"shards": 4}, {"shard_limit_bytes": 50}, {"shards": 9}])
def test_a_set_comes_back_by_any_of_its_files(options: dict[str, Any], inline_below: int) -> None:
    files = encode_files(SdnbFormat(inline_below=inline_below, **options), STATE, name="run.sdnb")
    names = list(files)
    assert len(names) > 1
    assert names[-1] == f"run.shard0-of-{len(names)}.sdnb"
    for name in names:
        index = parse(files[name], name, files)
        arrays = arrays_of(index, files[name], files)
        assert_identical(arrays["big"], STATE["big"])
        assert list(arrays) == ["model.w", "model.b", "big", "empty", "scalar"]
        assert index.tree is not None


def test_small_states_stay_one_file_and_large_ones_are_cut_at_the_limit() -> None:
    sizes = [10, 700, 300, 500, 2000, 1]
    assert assign_shards(sizes, shards=None, limit_bytes=4000) is None
    assert assign_shards(sizes, shards=None, limit_bytes=1000) == [[4], [1], [0, 2, 3, 5]]
    assert assign_shards(sizes, shards=1, limit_bytes=1) is None
    assert assign_shards(sizes, shards=3, limit_bytes=1) == [[4], [0, 1, 2, 3, 5]]
    assert assign_shards([], shards=2, limit_bytes=1) == [[]]


def test_names_of_sets() -> None:
    names = ShardName.for_base("folder.model.sdnb", 3)
    assert names.shard(1) == "folder.model.shard1-of-3.sdnb"
    assert ShardName.parse("folder.model.shard1-of-3.sdnb") == ShardName("folder.model", 3, 1)
    assert ShardName.for_base("m.shard0-of-7.sdnb", 3).shard(0) == "m.shard0-of-3.sdnb"
    assert ShardName.parse("model.sdnb") is None
    assert ShardName.parse("m.shard01-of-3.sdnb") is None
    with pytest.raises(LayoutError, match="can't be shard 3 of 3"):
        ShardName.parse("m.shard3-of-3.sdnb")
    with pytest.raises(LimitExceededError, match="99999999 shards"):
        ShardName.parse("m.shard3-of-99999999.sdnb")
    present = ["m.shard0-of-3.sdnb", "m.shard1-of-3.sdnb", "m2.shard0-of-3.sdnb", "m.shard0-of-5.sdnb"]
    fmt = SdnbFormat()
    assert fmt.leaders("m.sdnb", present) == ["m.shard0-of-3.sdnb", "m.shard0-of-5.sdnb"]
    assert fmt.leader_prefix("m.sdnb") == "m.shard0-of-"


def test_shards_of_two_saves_are_not_mixed() -> None:
    other = {**STATE, "big": STATE["big"] + 1}  # type: ignore[operator]
    files = encode_files(SdnbFormat(shards=3, clock=lambda: MOMENT), STATE)
    others = encode_files(SdnbFormat(shards=3, clock=lambda: MOMENT), other)
    leader = list(files)[-1]
    for name in list(files)[:-1]:
        if files[name] != others[name]:
            with pytest.raises(LayoutError, match="different checkpoints"):
                parse(files[leader], leader, {**files, name: others[name]})


def test_a_shard_without_a_block_beside_one_that_has_it() -> None:
    files = encode_files(SdnbFormat(shards=2), {"A": f32(4, 0)}, name="model.sdnb")
    graph = build_graph([VariableSpec("A", "float32", (4,), 16)], [("shard.type", "weights")])
    manifest = encode_manifest({})
    bare = Header(32 + len(graph.data), len(manifest)).encode() + graph.data + manifest
    leader = "model.shard0-of-2.sdnb"
    with pytest.raises(LayoutError, match="different checkpoints"):
        parse(files[leader], leader, {"model.shard1-of-2.sdnb": bare})


# -- updater state -----------------------------------------------------------------------------------------------


def test_updater_state_is_written_as_the_original_has_it() -> None:
    state = {"w": {"M": f32(6, 1).reshape(2, 3), "V": np.ones(3)}}
    data = encode(SdnbFormat(updater_state=state), {"w": f32(6, 0).reshape(2, 3)})
    index = parse(data)
    arrays = arrays_of(index, data)
    assert_identical(arrays["updaterState/w/M"], state["w"]["M"])
    assert_identical(arrays["updaterState/w/V"], state["w"]["V"])
    assert all(t.checksums is not None for t in index.tensors)
    assert index.details["updaterState"] == {"w": ["M", "V"]}
    skipped = parse(data, load_updater_state=False)
    assert [t.name for t in skipped.tensors] == ["w"]


def test_updater_state_has_limits() -> None:
    huge = np.broadcast_to(np.zeros(1, "<f4"), (2**29 + 1,))
    content, _ = content_of([ShardData.from_arrays({"w": f32(2, 0)})], CheckpointMetadata())
    with pytest.raises(LimitExceededError, match="at most 2147483647 fit"):
        SdnbFormat(updater_state={"w": {"M": huge}}).plan(content, name="x.sdnb")
    with pytest.raises(NotRepresentableError, match="complex64"):
        SdnbFormat(updater_state={"w": {"M": np.zeros(2, "c8")}}).plan(content, name="x.sdnb")


# -- other writers' files ----------------------------------------------------------------------------------------


def container(graph: bytes, manifest: dict[str, ArrayRange] | None = None, arrays: bytes = b"") -> bytes:
    entries = encode_manifest(manifest or {})
    return Header(32 + len(graph) + len(arrays), len(entries)).encode() + graph + arrays + entries


def graph_with_array(fill: Any, *, dtype: int = 5, name: str = "x") -> bytes:
    """A graph of one variable whose FlatArray is made by `fill(builder)`, which returns slot → (kind, value)."""
    builder = flatbuffers.Builder(64)
    slots = fill(builder)
    builder.StartObject(8)
    for slot, (kind, value) in slots.items():
        getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
    array = builder.EndObject()
    text = builder.CreateString(name)
    builder.StartObject(10)
    builder.PrependUOffsetTRelativeSlot(1, text, 0)
    builder.PrependUOffsetTRelativeSlot(4, array, 0)
    builder.PrependInt8Slot(2, dtype, 0)
    variable = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(variable)
    variables = builder.EndVector()
    builder.StartObject(11)
    builder.PrependUOffsetTRelativeSlot(1, variables, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def longs(builder: Any, *numbers: int) -> tuple[str, int]:
    builder.StartVector(8, len(numbers), 8)
    for number in reversed(numbers):
        builder.PrependInt64(number)
    return "UOffsetTRelative", builder.EndVector()


def raw(builder: Any, data: bytes) -> tuple[str, int]:
    return "UOffsetTRelative", builder.CreateByteVector(data)


def test_fortran_order() -> None:
    expected = f32(6, 0).reshape(2, 3)
    data = container(
        graph_with_array(
            lambda b: {
                0: longs(b, 2, 3),
                1: raw(b, expected.tobytes(order="F")),
                2: ("Int8", 5),
                3: ("Int8", 1),
            }
        )
    )
    (shard,) = read_shards(parse(data), memoryview(data))
    assert_identical(shard.array("x"), expected)


def test_the_older_serialisers_descriptor_and_big_endian_bytes() -> None:
    expected = f32(6, 0).reshape(2, 3)
    graph = graph_with_array(
        lambda b: {
            0: longs(b, 2, 2, 3, 3, 1, 0, 1, 99),
            1: raw(b, expected.astype(">f4").tobytes()),
            2: ("Int8", 5),
            3: ("Int8", 1),
        }
    )
    assert SdnbFormat().sniff(memoryview(graph)[:64], FileInfo("old.fb", len(graph)))
    index = parse(graph, "old.fb")
    assert index.version == "samediff-fb"
    (shard,) = read_shards(index, memoryview(graph))
    assert_identical(shard.array("x"), expected)


def test_chunks_of_a_buffer_are_joined_in_their_order() -> None:
    values = f32(5, 0)

    def fill(builder: Any) -> dict[int, tuple[str, int]]:
        tables = []
        for index, piece in ((1, values[3:]), (0, values[:3])):
            data = builder.CreateByteVector(piece.tobytes())
            builder.StartObject(2)
            builder.PrependInt64Slot(0, index, 0)
            builder.PrependUOffsetTRelativeSlot(1, data, 0)
            tables.append(builder.EndObject())
        builder.StartVector(4, 2, 4)
        for table in tables:
            builder.PrependUOffsetTRelative(table)
        chunks = builder.EndVector()
        return {0: longs(builder, 5), 2: ("Int8", 5), 4: ("UOffsetTRelative", chunks), 5: ("Int64", 20)}

    data = container(graph_with_array(fill))
    (shard,) = read_shards(parse(data), memoryview(data))
    assert_identical(shard.array("x"), values)


def external(name: str) -> bytes:
    return container(
        graph_with_array(
            lambda b: {
                0: longs(b, 4),
                2: ("Int8", 5),
                6: ("UOffsetTRelative", b.CreateString(name)),
                7: ("Bool", True),
            }
        )
    )


def test_an_external_file_beside_this_one_is_followed() -> None:
    files = {"x.bin": f32(4, 0).tobytes()}
    data = external("x.bin")
    index = parse(data, files=files)
    assert_identical(arrays_of(index, data, files), {"x": f32(4, 0)})
    with pytest.raises(LayoutError, match="does not have 16 bytes"):
        parse(data, files={"x.bin": bytes(15)})
    with pytest.raises(IncompleteCheckpointError, match=r"x\.bin"):
        parse(data)


@pytest.mark.parametrize("name", [name for name in HOSTILE_FILE_NAMES if name.isascii() or name[0] == "ä"])
def test_an_external_file_elsewhere_is_not_followed(name: str) -> None:
    with pytest.raises(LayoutError, match="not a plain name beside the file"):
        parse(external(name), files={"x.bin": bytes(16)})


def test_text_arrays_are_left_out_with_a_warning() -> None:
    data = container(
        graph_with_array(lambda b: {0: longs(b, 1), 1: raw(b, b"abc"), 2: ("Int8", 50)}, dtype=50)
    )
    index = parse(data)
    assert index.tensors == ()
    assert index.warnings == ("variable 'x' is UTF8 text and was left out",)


def test_placeholders_are_no_tensors() -> None:
    graph = build_graph([VariableSpec("w", "float32", (2,), None)], [("k", "v")]).data
    index = parse(container(graph))
    assert [t.absent is not None for t in index.tensors] == [True]


# -- golden bytes, and the page that describes them --------------------------------------------------------------


def test_the_golden_file_is_what_we_write() -> None:
    assert (SAMPLES / "smallest.sdnb").read_bytes() == SMALLEST
    assert (SAMPLES / "smallest_appended.sdnb").read_bytes() == APPENDED


def test_the_dump_on_the_page_is_the_golden_file() -> None:
    assert_dump_matches("sdnb.md", (SAMPLES / "smallest_appended.sdnb").read_bytes())


def test_an_independent_reader_reads_the_golden_files() -> None:
    for data in (SMALLEST, APPENDED):
        found = sdnb_reader.read(data)
        assert found.arrays == {"w": (5, (3,), np.arange(3, dtype="<f4").tobytes())}
        assert found.block["block"] == 1
        assert found.metadata["nd4j.format.version"] == "1"


@pytest.mark.parametrize("seed", range(5))
def test_an_independent_reader_reads_random_files(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        f"t{i}": rng.integers(0, 200, rng.integers(0, 5, rng.integers(0, 4)), dtype="u1").astype(dtype)
        for i, dtype in enumerate(rng.choice(["<f4", "<i8", "u1", "<f2", "?"], 12))
    }
    data = encode(SdnbFormat(inline_below=int(rng.integers(0, 40))), arrays)
    found = sdnb_reader.read(data)
    assert {name: (a.shape, a.data) for name, a in found.arrays.items()} == {
        name: (a.shape, a.tobytes()) for name, a in arrays.items()
    }


# -- damage ------------------------------------------------------------------------------------------------------

WHOLE = {"inline": SMALLEST, "appended": APPENDED}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", WHOLE)
def test_every_flipped_bit_is_noticed(kind: str) -> None:
    data = WHOLE[kind]
    original = read_all(data)
    for _, what, damaged in bit_flips(data):
        assert outcome(read_all, damaged) in (None, original), what


@pytest.mark.parametrize("kind", WHOLE)
def test_every_truncation_and_extension_is_noticed(kind: str) -> None:
    data = WHOLE[kind]
    for size in range(len(data)):
        assert outcome(read_all, data[:size]) is None, size
    for extra in (b"\0", b"x" * 100):
        assert outcome(read_all, data + extra) is None


@pytest.mark.thorough
@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("code", ["<H", "<I", "<Q", ">I", ">Q"])
def test_hostile_numbers_anywhere(value: int, code: str) -> None:
    original = read_all(APPENDED)
    for at in range(len(APPENDED) - struct.calcsize(code)):
        found = outcome(read_all, with_number(APPENDED, at, code, value))
        assert found in (None, original), at


@pytest.mark.thorough
@settings(max_examples=150)
@given(mutations(APPENDED))
def test_mutations_are_noticed(data: bytes) -> None:
    assert outcome(read_all, data) in (None, read_all(APPENDED))


FOREIGN = (SAMPLES / "tiny_appended.sdnb").read_bytes()


@pytest.mark.thorough
@settings(max_examples=150)
@given(mutations(FOREIGN))
def test_mutations_of_a_foreign_file_end_in_a_format_error_or_arrays(data: bytes) -> None:
    def read(changed: bytes) -> int:
        index = parse(changed)
        present = [t for t in index.tensors if t.absent is None]
        return sum(t.metadata.size for t in present)

    found = outcome(read, data)
    assert found is None or found <= len(data)


@pytest.mark.parametrize(
    ("at", "code", "value", "error", "message"),
    [
        (0, ">i", 0, LayoutError, "not an SDNB file"),
        (4, ">i", 2, UnsupportedVersionError, "version 2 is not supported"),
        (8, ">q", -1, LayoutError, "never finished"),
        (16, ">q", -1, LayoutError, "never finished"),
        (8, ">q", 2**62, TruncatedError, "the manifest of the file ends at"),
        (8, ">q", 3, LayoutError, "can't have"),
        (16, ">q", 2**40, LayoutError, "can't have"),
        (24, ">q", 64, LayoutError, "begins at 32"),
        (32, "<I", 2**32 - 1, TruncatedError, "the graph's root lies at"),
    ],
)
def test_headers_that_can_not_be(
    at: int, code: str, value: int, error: type[FormatError], message: str
) -> None:
    with pytest.raises(error, match=message):
        parse(with_number(FOREIGN, at, code, value))


def two_arrays(first: ArrayRange, second: ArrayRange) -> bytes:
    graph = build_graph([VariableSpec("a", "int8", (4,)), VariableSpec("b", "int8", (4,))], [("k", "v")]).data
    end = 32 + len(graph)

    def moved(place: ArrayRange) -> ArrayRange:
        return ArrayRange(place.offset + end, place.length)

    return container(graph, {"a": moved(first), "b": moved(second)}, bytes(8))


def test_arrays_that_overlap_or_leave_the_file() -> None:
    assert len(parse(two_arrays(ArrayRange(0, 4), ArrayRange(4, 4))).tensors) == 2
    with pytest.raises(LayoutError, match="'a' and 'b' overlap"):
        parse(two_arrays(ArrayRange(0, 4), ArrayRange(3, 4)))
    with pytest.raises(LayoutError, match="'b' can't have 4 bytes"):
        parse(two_arrays(ArrayRange(0, 4), ArrayRange(5, 4)))
    with pytest.raises(LayoutError, match="'b' can't have -4 bytes"):
        parse(two_arrays(ArrayRange(0, 4), ArrayRange(5, -4)))
    with pytest.raises(LayoutError, match=r"'b' of shape \[4\].*3 are stored"):
        parse(two_arrays(ArrayRange(0, 4), ArrayRange(4, 3)))


def test_a_damaged_tensor_is_named() -> None:
    data = bytearray(APPENDED)
    data[parse(APPENDED).tensors[0].extents[0].offset] ^= 1
    with pytest.raises(ChecksumMismatchError, match="'w'"):
        read_all(bytes(data))


@pytest.mark.parametrize("options", [{"shards": 0}, {"shard_limit_bytes": 0}])
def test_options_that_make_no_sense(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="must be an int of at least 1"):
        SdnbFormat(**options)  # type: ignore[arg-type]
