"""MLDF as a checkpoint: the seed's file, round trips, golden bytes, and every kind of damage."""

from __future__ import annotations

import json
import struct
import zlib
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
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedStateError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import content_of, read_shards
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.mldf.format import MldfFormat
from asyncckpt.formats.mldf.header import (
    DATA_CRC_AT,
    HEADER_END,
    MAGIC,
    Descriptor,
    Flags,
    Header,
    TypeId,
    allocations,
    row_offsets,
)
from asyncckpt.model.checksums import crc32_of_zeros
from asyncckpt.model.metadata import (
    CheckpointMetadata,
    ShardingMetadata,
    ShardMetadata,
    TensorMetadata,
    TrainingMetadata,
)
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
from tests.independent import mldf_reader

SAMPLES = GOLDEN / "mldf"
MOMENT = datetime(2026, 1, 8, 4, 35, 0, 123456, tzinfo=UTC)
FORMAT = MldfFormat()


def parse(data: bytes) -> Index:
    return state_files.parse(FORMAT, data)


def read_all(data: bytes) -> tuple[Any, ...]:
    return state_files.read_all_shards(FORMAT, data)


def made(content: Content, views: list[memoryview]) -> bytes:
    return state_files.encode_content(FORMAT, content, views)


def of_arrays(values: dict[str, np.ndarray]) -> bytes:
    return state_files.encode_arrays(FORMAT, values, CheckpointMetadata(timestamp=MOMENT))


SMALLEST = of_arrays({"w": np.arange(3, dtype="<f4")})


# -- the seed's file ---------------------------------------------------------------------------------------------


def test_the_seeds_own_file_loads_as_runs_of_bytes() -> None:
    data = (SAMPLES / "bytes_only_page4096.mldf").read_bytes()
    index = parse(data)
    (shard,) = read_shards(index, memoryview(data))
    assert {name: array.tobytes() for name, array in shard.arrays().items()} == {
        f"payload.{i}": bytes((j * 7 + i) & 255 for j in range(10 + 5 * i)) for i in range(3)
    }
    assert index.tree is None
    assert all(tensor.checksums is None for tensor in index.tensors)
    assert index.digests == ()
    assert index.details["samples"] == 3


def test_the_independent_reader_reads_the_seeds_file() -> None:
    found = mldf_reader.read((SAMPLES / "bytes_only_page4096.mldf").read_bytes())
    assert found["samples"] == [
        {"payload": bytes((j * 7 + i) & 255 for j in range(10 + 5 * i))} for i in range(3)
    ]


# -- round trips -------------------------------------------------------------------------------------------------


async def test_shards_and_metadata_come_back_as_they_were() -> None:
    shards = [
        ShardData.from_arrays({"w": np.arange(12, dtype="<f4").reshape(3, 4), "s": np.array(3)}, rank=4),
        ShardData.from_arrays({}, rank=5),
        ShardData.from_arrays({"b": np.ones(5, ml_dtypes.bfloat16), "e": np.zeros((0, 3), "?")}, rank=6),
    ]
    metadata = CheckpointMetadata(
        version="7",
        timestamp=MOMENT,
        world_size=3,
        sharding=ShardingMetadata("ddp", 3, "bf16"),
        shards=tuple(ShardMetadata(rank=4 + i, extra={"host": i}) for i in range(3)),
        training=TrainingMetadata(3, 400, 1e-3, "adam", {"beta": 0.9}),
        custom_fields={"note": "ä", "list": [1, None, {"x": True}]},
        extra={"unknown": [1, 2]},
    )
    data = await MldfFormat().serialize(shards, metadata)
    again, described = await MldfFormat().deserialize(data)
    assert [shard.rank for shard in again] == [4, 5, 6]
    for before, after in zip(shards, again, strict=True):
        assert before.arrays().keys() == after.arrays().keys()
        for name, array in before.arrays().items():
            assert after.array(name).tobytes() == array.tobytes()
            assert (after.array(name).dtype, after.array(name).shape) == (array.dtype, array.shape)
    assert [shard.extra for shard in described.shards] == [{"host": i} for i in range(3)]
    assert replace(described, shards=()) == replace(metadata, shards=())


@given(st.lists(arrays(), max_size=4), st.lists(st.text(max_size=80), min_size=4, max_size=4, unique=True))
def test_any_array_under_any_name_survives(values: list[np.ndarray], names: list[str]) -> None:
    shard = ShardData.from_arrays(dict(zip(names, values, strict=False)))
    content, views = content_of([shard], CheckpointMetadata())
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in name):
        return
    data = made(content, views)
    (again,) = read_shards(parse(data), memoryview(data))
    assert [(t.name, t.dtype, t.shape) for t in again.tensor_info] == [
        (t.name, t.dtype, t.shape) for t in shard.tensor_info
    ]
    assert [bytes(view) for view in again.views] == [bytes(view) for view in shard.views]
    (row,) = mldf_reader.read(data)["samples"]
    assert {name: row[name][2] for name in shard.arrays()} == {t.name: bytes(view) for t, view in shard}


# numpy 1 has at most 32 dimensions, whose shape still fits a descriptor.
_MOST_DIMENSIONS = 60 if int(np.__version__.partition(".")[0]) >= 2 else 32


def test_names_and_shapes_that_do_not_fit_a_descriptor_are_kept_in_the_schema() -> None:
    values = {
        "n" * 63: np.zeros(1),
        "n" * 64: np.ones(1),
        "ä" * 32: np.full(1, 2.0),
        "": np.full(1, 3.0),
        "a\0b": np.full(1, 4.0),
        "__schema__": np.full(1, 5.0),
        "__asyncckpt__": np.full(1, 6.0),
        "__field_3__": np.full(1, 7.0),
        "long shape": np.full((1,) * _MOST_DIMENSIONS, 8.0),
    }
    data = of_arrays(values)
    index = parse(data)
    assert [t.name for t in index.tensors] == list(values)
    (shard,) = read_shards(index, memoryview(data))
    assert {name: array.sum() for name, array in shard.arrays().items()} == {
        name: array.sum() for name, array in values.items()
    }
    assert len(index.header_extents or ()) == 4


def test_payloads_are_aligned_and_the_tree_and_boxes_come_back() -> None:
    shard = ShardData.from_arrays({f"t{i}": np.zeros(i, "u1") for i in range(5)})
    content, views = content_of([shard], CheckpointMetadata())
    boxed = tuple(replace(t, global_shape=(100,), origin=(i,)) for i, t in enumerate(content.tensors))
    data = made(replace(content, tensors=boxed, tree={"k": 1}), views)
    index = parse(data)
    assert index.tree == {"k": 1}
    assert all(t.extents[0].offset % 64 == 0 for t in index.tensors)
    assert [(t.metadata.global_shape, t.metadata.origin) for t in index.tensors] == [
        ((100,), (i,)) for i in range(5)
    ]


def test_a_checkpoint_without_tensors_and_one_without_shards() -> None:
    for shards in ((0,), ()):
        data = made(Content((), shards, CheckpointMetadata(), {"k": 1}), [])
        assert parse(data).tree == {"k": 1}
        assert parse(data).tensors == ()
        for _, what, damaged in bit_flips(data[:512]):
            found = outcome(read_all, damaged + data[512:])
            assert found is None or found == read_all(data), what


@pytest.mark.thorough
def test_twenty_thousand_tensors_are_planned_and_parsed() -> None:
    names = [f"layers.{i}.weight" for i in range(20_000)]
    data = of_arrays(dict.fromkeys(names, np.zeros(2, "<f4")))
    assert [t.name for t in parse(data).tensors] == names


def test_the_bytes_do_not_depend_on_anything_but_the_content() -> None:
    assert of_arrays({"w": np.arange(3, dtype=">f4")}) == SMALLEST


# -- the format's own checksums ----------------------------------------------------------------------------------


def test_the_headers_crc32_is_that_of_the_data_region_and_each_cell_has_its_own() -> None:
    values = {"a": np.arange(100, dtype="<i2"), "b": np.zeros((0,)), "c": np.arange(7.0)}
    data = of_arrays(values)
    header = Header.decode(memoryview(data), len(data))
    assert header.flags == Flags.LITTLE_ENDIAN | Flags.CRC32
    region = data[header.data_ptr : header.alloc_table_ptr]
    assert header.data_crc32 == zlib.crc32(region)
    (digest,) = parse(data).digests
    assert (digest.algorithm, digest.expected) == ("crc32", zlib.crc32(region).to_bytes(4, "big"))
    cells = struct.unpack_from("<9Q", data, header.metadata_ptr + 16)
    assert cells[2::3] == tuple(zlib.crc32(a.tobytes()) for a in values.values())


def test_the_allocation_table_lists_every_payload_in_order() -> None:
    data = of_arrays({"a": np.arange(100, dtype="<i2"), "b": np.zeros((0,)), "c": np.arange(7.0)})
    header = Header.decode(memoryview(data), len(data))
    entries = list(struct.iter_unpack("<QII", data[header.alloc_table_ptr :]))
    assert entries == sorted(entries)
    tensors = [t.extents[0] for t in parse(data).tensors if t.metadata.size]
    assert entries[1:] == [(e.offset, e.size, 0) for e in tensors]
    assert entries[0][0] == header.data_ptr


@pytest.mark.parametrize("count", [0, 1, 63, 4095, 4096, 4097, 8192, 123_457])
def test_the_crc32_of_zeros_is_zlibs(count: int) -> None:
    begun = zlib.crc32(b"before")
    assert crc32_of_zeros(count, begun) == zlib.crc32(bytes(count), begun)
    assert crc32_of_zeros(count) == zlib.crc32(bytes(count))


def test_payloads_beyond_four_gigabytes_are_split_over_several_entries() -> None:
    assert allocations([(64, 2**33), (0, 5), (9, 0)]) == [
        (0, 5),
        (64, 2**32 - 1),
        (64 + 2**32 - 1, 2**32 - 1),
        (64 + 2**33 - 2, 2),
    ]


def test_a_tensor_beyond_four_gigabytes_can_be_planned() -> None:
    content = Content((TensorMetadata("w", "uint8", (5 * 2**30,)),), (1,), CheckpointMetadata())
    (plan,) = MldfFormat().plan(content, name="m.mldf")
    assert plan.size == plan.payloads[0].end + 3 * 16


# -- golden bytes ------------------------------------------------------------------------------------------------


def test_the_smallest_file_is_byte_for_byte_the_golden_one() -> None:
    assert (SAMPLES / "smallest.mldf").read_bytes() == SMALLEST


def test_the_documented_dump_is_the_golden_file() -> None:
    assert_dump_matches("mldf.md", SMALLEST)


def test_the_independent_reader_agrees() -> None:
    found = mldf_reader.read(SMALLEST)
    (row,) = found["samples"]
    assert row["w"] == ("float32", [3], np.arange(3, dtype="<f4").tobytes())
    assert json.loads(row["__asyncckpt__"])["metadata"]["timestamp"] == "2026-01-08T04:35:00.123456Z"


def test_the_independent_reader_notices_damage() -> None:
    for position in (13, 600, 4200, len(SMALLEST) - 35):
        damaged = bytearray(SMALLEST)
        damaged[position] ^= 1
        with pytest.raises(ValueError):
            mldf_reader.read(bytes(damaged))


# -- refusals when writing ---------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_more_fields_than_the_format_can_count_are_refused_before_anything_is_written() -> None:
    tensors = tuple(TensorMetadata(f"t{i}", "uint8", ()) for i in range(65_534))
    with pytest.raises(LimitExceededError, match="there are 65534 fields"):
        MldfFormat().plan(Content(tensors, (65_534,), CheckpointMetadata()), name="m.mldf")
    (plan,) = MldfFormat().plan(Content(tensors[1:], (65_533,), CheckpointMetadata()), name="m.mldf")
    assert len(plan.payloads) == 65_533


def test_two_tensors_of_one_name_and_names_that_are_no_unicode_are_refused() -> None:
    shards = [ShardData.from_arrays({"w": np.zeros(1)}, rank=rank) for rank in range(2)]
    with pytest.raises(LayoutError, match="two tensors have the name 'w'"):
        MldfFormat().plan(content_of(shards, CheckpointMetadata())[0], name="m.mldf")
    with pytest.raises(LayoutError, match="not valid Unicode"):
        of_arrays({"\ud800": np.zeros(1)})


def test_metadata_that_is_not_json_and_other_shards_are_refused() -> None:
    with pytest.raises(UnsupportedStateError, match=r"custom_fields\['x'\]"):
        made(Content((), (0,), CheckpointMetadata(custom_fields={"x": object()})), [])
    with pytest.raises(LayoutError, match="lists 2 shards, 1 are to be written"):
        made(Content((), (0,), CheckpointMetadata(shards=(ShardMetadata(), ShardMetadata(rank=1)))), [])


# -- damage ------------------------------------------------------------------------------------------------------


def meaningful(data: bytes) -> list[range]:
    """The bytes that are not padding."""
    index = parse(data)
    extents = [*(index.header_extents or ()), *(e for t in index.tensors for e in t.extents)]
    return [range(extent.offset, extent.end) for extent in extents]


@pytest.mark.thorough
def test_every_flipped_bit_is_noticed_or_changes_nothing() -> None:
    whole = read_all(SMALLEST)
    for part in meaningful(SMALLEST):
        for position in part:
            for bit in range(8):
                damaged = bytearray(SMALLEST)
                damaged[position] ^= 1 << bit
                found = outcome(read_all, bytes(damaged))
                # The CRC32 of the data is what `verify` compares; nothing else depends on these four bytes.
                is_crc = DATA_CRC_AT <= position < DATA_CRC_AT + 4
                assert found is None or (is_crc and found == whole), f"bit {bit} of byte {position}"


def test_flipped_padding_changes_nothing() -> None:
    whole = read_all(SMALLEST)
    used = {position for part in meaningful(SMALLEST) for position in part}
    for position in [p for p in range(len(SMALLEST)) if p not in used][::101]:
        damaged = SMALLEST[:position] + b"\xff" + SMALLEST[position + 1 :]
        assert outcome(read_all, damaged) == whole


def test_a_damaged_tensor_is_named() -> None:
    (tensor,) = parse(SMALLEST).tensors
    at = tensor.extents[0].offset
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged") as caught:
        read_all(SMALLEST[:at] + b"\xff" + SMALLEST[at + 1 :])
    assert caught.value.tensor == "w"


def test_every_truncation_and_extension_is_noticed() -> None:
    for size in range(len(SMALLEST)):
        assert outcome(read_all, SMALLEST[:size]) is None, size
    for extra in (b"\0", bytes(16), bytes(64)):
        assert outcome(read_all, SMALLEST + extra) is None


def test_the_seeds_file_cut_anywhere_is_noticed() -> None:
    data = (SAMPLES / "bytes_only_page4096.mldf").read_bytes()
    for size in range(len(data) - 48):
        assert outcome(parse, data[:size]) is None, size


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers_in_every_field_of_the_structures(value: int) -> None:
    header = Header.decode(memoryview(SMALLEST), len(SMALLEST))
    places = [(9, "<H"), (11, "<H"), (13, "<I"), (17, "<Q"), (25, "<H"), (29, "<I")]
    places += [(33 + 8 * i, "<Q") for i in range(4)]
    places += [
        (HEADER_END + 204 * i + at, w) for i in (0, 1) for at, w in ((64, "<H"), (66, "<H"), (68, "<I"))
    ]
    places += [(header.metadata_ptr + 8 * i, "<Q") for i in range(5)]
    places += [(header.alloc_table_ptr + at, w) for at, w in ((0, "<Q"), (8, "<I"), (16, "<Q"), (24, "<I"))]
    for at, layout in places:
        damaged = with_number(SMALLEST, at, layout, value)
        assert damaged == SMALLEST or outcome(read_all, damaged) is None, (at, value)


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers_in_a_foreign_file_raise_nothing_but_format_errors(value: int) -> None:
    data = (SAMPLES / "bytes_only_page4096.mldf").read_bytes()
    for at in [*range(9, 73, 2), *range(137, 151), *range(320, 368)]:
        for layout in ("<H", "<I", "<Q"):
            assert_read_or_refused(read_all, with_number(data, at, layout, value))


@given(mutations(SMALLEST))
def test_mutations_are_noticed(damaged: bytes) -> None:
    found = outcome(read_all, damaged)
    assert found is None or found == read_all(SMALLEST)


@given(mutations(SMALLEST[:700]))
def test_mutations_of_the_front_are_noticed(damaged: bytes) -> None:
    found = outcome(read_all, damaged + SMALLEST[700:])
    assert found is None or found == read_all(SMALLEST)


@given(mutations((SAMPLES / "bytes_only_page4096.mldf").read_bytes()), st.binary(max_size=300))
def test_foreign_mutations_and_noise_raise_nothing_but_format_errors(damaged: bytes, noise: bytes) -> None:
    assert_read_or_refused(read_all, damaged)
    assert_read_or_refused(read_all, MAGIC + noise)
    assert_read_or_refused(read_all, MAGIC + bytes.fromhex("0100000001000000") + noise)


def test_versions_and_flags() -> None:
    def changed(**members: int) -> bytes:
        header = replace(Header.decode(memoryview(foreign), len(foreign)), **members)
        return header.encode() + foreign[HEADER_END:]

    foreign = (SAMPLES / "bytes_only_page4096.mldf").read_bytes()
    with pytest.raises(UnsupportedVersionError, match=r"2\.0 is not supported, only 1\.x: upgrade"):
        parse(changed(version_major=2))
    with pytest.raises(UnsupportedVersionError, match="use an older reader"):
        parse(changed(version_major=0))
    with pytest.raises(LayoutError, match="compressed"):
        parse(changed(flags=3))
    with pytest.raises(LayoutError, match="encrypted"):
        parse(changed(flags=9))
    with pytest.raises(LayoutError, match="not little-endian"):
        parse(changed(flags=0))
    with pytest.raises(LayoutError, match="no fields"):
        parse(changed(num_fields=0))
    assert parse(changed(version_minor=3)).warnings == ("written as MLDF 1.3, read as 1.0",)
    assert parse(changed(flags=0x101)).warnings == ("the unknown flags 0x100 were ignored",)
    (digest,) = parse(changed(flags=5, data_crc32=7)).digests
    assert digest.expected == b"\0\0\0\7"


def test_sniffing() -> None:
    sniff = MldfFormat().sniff
    assert sniff(memoryview(SMALLEST[:64]), FileInfo("anything", len(SMALLEST)))
    assert not sniff(memoryview(MAGIC[:8]), FileInfo("m.mldf", 8))
    with pytest.raises(LayoutError, match="not an MLDF file"):
        parse(b"\x89PNG" + bytes(100))
    with pytest.raises(TruncatedError, match="needs 73 bytes, the file has 40"):
        parse(SMALLEST[:40])


# -- foreign files -----------------------------------------------------------------------------------------------


def foreign_file(
    fields: list[Descriptor],
    rows: list[bytes],
    data: bytes,
    *,
    stride: int = 204,
    metadata_last: bool = False,
) -> bytes:
    """A file as another writer might lay it out: the table behind the data, or wider descriptors."""
    descriptors = b"".join(field.encode().ljust(stride, b"\0") for field in fields)
    table = b"".join(rows)
    data_ptr = 4096
    alloc = data_ptr + len(data) + (len(table) if metadata_last else 0)
    metadata_ptr = data_ptr + len(data) if metadata_last else 2048
    header = Header(
        len(rows), len(fields), 4096, HEADER_END, metadata_ptr, data_ptr, alloc, flags=Flags.LITTLE_ENDIAN
    )
    front = (header.encode() + descriptors).ljust(2048, b"\0")
    if metadata_last:
        return front.ljust(4096, b"\0") + data + table
    return (front + table).ljust(4096, b"\0") + data


FOREIGN_FIELDS = [
    Descriptor("label", TypeId.INT),
    Descriptor("score", TypeId.FLOAT),
    Descriptor("image", TypeId.IMAGE_RAW),
    Descriptor("sound", TypeId.AUDIO_WAVEFORM),
    Descriptor("array", TypeId.NDARRAY, b'{"dtype":"int16","shape":[-1,2]}'),
    Descriptor("clip", 32),
]


def foreign_row(number: int) -> bytes:
    return b"".join(
        (
            struct.pack("<qd", number, number / 2),
            struct.pack("<QIHHBB6x", 4096, 6, 1, 2, 3, 0),
            struct.pack("<QIIIHBB", 4102, 2, 1, 16000, 1, 16, 0),
            struct.pack("<QQQ", 4104, 8, zlib.crc32(bytes(range(8, 16)))),
            struct.pack("<QI4x", 0, 0),
        )
    )


@pytest.mark.parametrize(("stride", "metadata_last"), [(204, False), (208, False), (204, True)])
def test_every_type_of_a_foreign_file_becomes_a_tensor(stride: int, metadata_last: bool) -> None:
    data = foreign_file(
        FOREIGN_FIELDS, [foreign_row(3)], bytes(range(16)), stride=stride, metadata_last=metadata_last
    )
    index = parse(data)
    (shard,) = read_shards(index, memoryview(data))
    found = shard.arrays()
    assert list(found) == ["label", "score", "image", "sound", "array"]
    assert (found["label"].dtype.name, int(found["label"])) == ("int64", 3)
    assert (found["score"].dtype.name, float(found["score"])) == ("float64", 1.5)
    assert found["image"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert found["sound"].tolist() == [6, 7]
    assert found["array"].shape == (2, 2)
    assert [d.what for d in index.digests] == ["tensor 'array'"]


def test_overlapping_payloads_of_a_foreign_file_are_refused() -> None:
    with pytest.raises(LayoutError, match="overlap at byte 4096"):
        parse(foreign_file(FOREIGN_FIELDS, [foreign_row(0), foreign_row(1)], bytes(range(16))))


def test_a_large_foreign_table_is_no_checkpoint() -> None:
    rows = [struct.pack("<q", i) for i in range(70_000)]
    header = Header(len(rows), 1, 4096, HEADER_END, 320, 600_000, 600_000, flags=Flags.LITTLE_ENDIAN)
    front = (header.encode() + Descriptor("n", TypeId.INT).encode()).ljust(320, b"\0")
    data = (front + b"".join(rows)).ljust(600_000, b"\0")
    with pytest.raises(LimitExceededError, match="read it with open_table"):
        parse(data)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (b"", LayoutError),
        (b"{", LayoutError),
        (b"[]", LayoutError),
        (b'{"dtype":"float32"}', LayoutError),
        (b'{"dtype":1,"shape":[]}', LayoutError),
        (b'{"dtype":"object","shape":[4]}', UnsupportedDtypeError),
        (b'{"dtype":"int16","shape":[-1,-1]}', LayoutError),
        (b'{"dtype":"int16","shape":[-2]}', LayoutError),
        (b'{"dtype":"int16","shape":[5]}', LayoutError),
        (b'{"dtype":"int16","shape":[0,-1]}', LayoutError),
        (b'{"dtype":"int16","shape":[true]}', LayoutError),
        (b'{"dtype":"int16","shape":[9223372036854775808]}', LayoutError),
    ],
)
def test_malformed_arguments_are_refused(arguments: bytes, error: type[Exception]) -> None:
    field = Descriptor("array", TypeId.NDARRAY, arguments)
    with pytest.raises(error):
        parse(foreign_file([field], [struct.pack("<QQQ", 4096, 8, 0)], bytes(8)))


def test_rows_are_the_sum_of_their_cells() -> None:
    assert row_offsets(FOREIGN_FIELDS) == [0, 8, 16, 40, 64, 88, 104]
