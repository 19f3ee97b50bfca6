"""METAGRAPH, plain bundles: round trips, golden bytes, versions, and every kind of damage."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import (
    ChecksumMismatchError,
    FormatError,
    LayoutError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
    UnsupportedStateError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import content_of
from asyncckpt.formats.kit.index import Extent, FileInfo
from asyncckpt.formats.kit.plan import Content, FilePlan
from asyncckpt.formats.metagraph import hashing as metagraph_hash
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.metagraph.hashing import hash_of
from asyncckpt.formats.metagraph.records import TIED_EDGE, checksum_text
from asyncckpt.model.metadata import (
    CheckpointMetadata,
    ShardingMetadata,
    ShardMetadata,
    TrainingMetadata,
)
from asyncckpt.model.shard import ShardData
from asyncckpt.testing.strategies import arrays
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
from tests.formats.metagraph.files import Opened, made, parsed, read_back, resealed, with_header
from tests.formats.parser_steps import drive_noting
from tests.formats.state_files import encode_content, read_all
from tests.independent import metagraph_reader

MOMENT = datetime(2026, 1, 8, 4, 35, tzinfo=UTC)
NODES, EDGES, STORE, INDEX, METADATA = 1, 2, 3, 4, 5
PLAIN = MetagraphFormat()


def smallest() -> bytes:
    """The golden file: one tensor of three float32."""
    return made(PLAIN, {"w": np.arange(3, dtype="<f4")}, CheckpointMetadata(timestamp=MOMENT))


SMALLEST = smallest()
ROWS = {row.type: row for row in Opened.of(SMALLEST).rows}


# -- round trips -------------------------------------------------------------------------------------------------


async def test_shards_and_metadata_come_back_as_they_were() -> None:
    shards = [
        ShardData.from_arrays({"w": np.arange(12, dtype="<f4").reshape(3, 4), "s": np.array(3)}, rank=0),
        ShardData.from_arrays({}, rank=1),
        ShardData.from_arrays({"b": np.ones(5, ml_dtypes.bfloat16), "e": np.zeros((0, 3), "?")}, rank=2),
    ]
    metadata = CheckpointMetadata(
        timestamp=MOMENT,
        world_size=3,
        sharding=ShardingMetadata("ddp", 3, "bf16"),
        shards=tuple(ShardMetadata(rank=rank, file_path=f"r{rank}") for rank in range(3)),
        training=TrainingMetadata(3, 400, 1e-3, "adam", {"beta": 0.9}),
        custom_fields={"note": "ä", "list": [1, None, {"x": True}], "asyncckpt": 1},
        extra={"unknown": [1, 2]},
    )
    data = await PLAIN.serialize(shards, metadata)
    again, described = await PLAIN.deserialize(data)
    assert [shard.rank for shard in again] == [0, 1, 2]
    for before, after in zip(shards, again, strict=True):
        assert before.arrays().keys() == after.arrays().keys()
        for name, array in before.arrays().items():
            assert after.array(name).tobytes() == array.tobytes()
            assert (after.array(name).dtype, after.array(name).shape) == (array.dtype, array.shape)
    assert replace(described, shards=()) == replace(metadata, shards=())
    assert [shard.file_path for shard in described.shards] == ["r0", "r1", "r2"]
    assert parsed(PLAIN, data).details["creationTime"] == int(MOMENT.timestamp())


@given(st.lists(arrays(), max_size=4))
def test_any_array_survives(values: list[np.ndarray]) -> None:
    shard = ShardData.from_arrays({f"t{i}": value for i, value in enumerate(values)})
    data = encode_content(PLAIN, *content_of([shard], CheckpointMetadata()))
    again = read_back(PLAIN, data)
    assert {n: (a.dtype.name, a.shape) for n, a in again.items()} == {
        n: (a.dtype.name, a.shape) for n, a in shard.arrays().items()
    }
    assert [a.tobytes() for a in again.values()] == [bytes(view) for view in shard.views]


def test_every_payload_begins_at_a_multiple_of_64_and_boxes_come_back() -> None:
    shard = ShardData.from_arrays({f"t{i}": np.zeros(i, "u1") for i in range(5)})
    content, views = content_of([shard], CheckpointMetadata())
    boxed = tuple(replace(t, global_shape=(100,), origin=(i,)) for i, t in enumerate(content.tensors))
    index = parsed(PLAIN, encode_content(PLAIN, replace(content, tensors=boxed, tree={"k": 1}), views))
    assert index.tree == {"k": 1}
    assert all(t.extents[0].offset % 64 == 0 for t in index.tensors)
    assert [(t.metadata.global_shape, t.metadata.origin) for t in index.tensors] == [
        ((100,), (i,)) for i in range(5)
    ]


def test_a_tensors_hash_is_its_checksum() -> None:
    (tensor,) = parsed(PLAIN, SMALLEST).tensors
    assert tensor.metadata.checksum == checksum_text(hash_of(np.arange(3, dtype="<f4").tobytes()))


@pytest.mark.thorough
def test_twenty_thousand_tensors_are_planned_and_parsed() -> None:
    names = [f"layers.{i}.weight" for i in range(20_000)]
    data = made(PLAIN, dict.fromkeys(names, np.zeros(2, "<f4")))
    assert [t.name for t in parsed(PLAIN, data).tensors] == names


def test_the_same_content_gives_the_same_bytes_and_the_id_follows_it() -> None:
    assert smallest() == SMALLEST
    other = made(PLAIN, {"w": np.arange(1, 4, dtype="<f4")}, CheckpointMetadata(timestamp=MOMENT))
    assert parsed(PLAIN, other).details["bundleId"] != parsed(PLAIN, SMALLEST).details["bundleId"]


def test_clock_id_creator_and_description_are_the_callers() -> None:
    fmt = MetagraphFormat(
        clock=lambda: datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
        new_id=lambda: 0xABC,
        creator="me",
        description="a test, ä",
    )
    details = parsed(PLAIN, made(fmt, {})).details
    assert (details["bundleId"], details["creationTime"]) == (f"{0xABC:016x}", 60)
    assert details["metadata"]["creator"] == "me"
    assert details["metadata"]["description"] == "a test, ä"


@pytest.mark.parametrize("moment", [datetime(1950, 1, 1), datetime(1970, 1, 1, 0, 0, 5)])  # noqa: DTZ001
def test_odd_moments_are_kept_as_well_as_seconds_can(moment: datetime) -> None:
    details = parsed(PLAIN, made(PLAIN, {}, CheckpointMetadata(timestamp=moment))).details
    assert details["creationTime"] == (0 if moment.year < 1970 else 5)


def test_opening_takes_the_head_of_the_file_only() -> None:
    data = made(PLAIN, {"w": np.zeros(1 << 20, "u1")})
    store = Opened.of(data).rows[-1]
    _, asked = drive_noting(PLAIN.parse(FileInfo("m.mgb", len(data))), data, len(data))
    assert all(wanted.end <= store.offset for wanted in asked)
    assert len(asked) == 3


# -- golden bytes ------------------------------------------------------------------------------------------------


def test_the_smallest_file_is_byte_for_byte_the_golden_one() -> None:
    assert (GOLDEN / "metagraph" / "smallest.mgb").read_bytes() == SMALLEST


def test_the_documented_dump_is_the_golden_file() -> None:
    assert_dump_matches("metagraph.md", (GOLDEN / "metagraph" / "smallest.mgb").read_bytes())


def test_the_independent_reader_agrees() -> None:
    found = metagraph_reader.read((GOLDEN / "metagraph" / "smallest.mgb").read_bytes())
    assert found["tensors"] == {"w": ("float32", (3,), np.arange(3, dtype="<f4").tobytes())}
    assert found["shards"] == [["w"]]
    assert found["metadata"]["asyncckpt"]["metadata"]["timestamp"] == "2026-01-08T04:35:00Z"


def test_the_independent_reader_reads_any_plain_bundle() -> None:
    source = random.Random(20250907)
    values = {
        f"ten.{i}/ö": np.frombuffer(source.randbytes(8 * i * 7), "<i8").reshape(i, 7) for i in range(6)
    } | {"wide": np.arange(700, dtype="<f8")}
    found = metagraph_reader.read(made(PLAIN, values))
    assert found["tensors"] == {
        name: (array.dtype.name, array.shape, array.tobytes()) for name, array in values.items()
    }


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 3073, 5000])
def test_the_independent_blake3_is_blake3(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    assert metagraph_reader.blake3(data) == hash_of(data)


def test_the_independent_reader_notices_damage() -> None:
    for position in (50, 120, 400, len(SMALLEST) - 1):
        damaged = bytearray(SMALLEST)
        damaged[position] ^= 1
        with pytest.raises(ValueError):
            metagraph_reader.read(bytes(damaged))


# -- refusals when writing ---------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_refused_before() -> None:
    twice = [ShardData.from_arrays({"w": np.zeros(1)}, rank=rank) for rank in range(2)]
    with pytest.raises(LayoutError, match="two tensors have the name 'w'"):
        PLAIN.plan(content_of(twice, CheckpointMetadata())[0], name="m.mgb")
    with pytest.raises(UnsupportedStateError, match=r"custom_fields\['x'\]"):
        PLAIN.plan(Content((), (), CheckpointMetadata(custom_fields={"x": object()})), name="m.mgb")
    with pytest.raises(LayoutError, match="not valid Unicode"):
        made(PLAIN, {"\ud800": np.zeros(1)})


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(metagraph_hash, "import_module", missing)
    assert MetagraphFormat().sniff(memoryview(SMALLEST[:64]), FileInfo("m", 64))
    with pytest.raises(MissingExtraError, match=r"blake3: pip install 'asyncckpt\[bundle\]'"):
        parsed(PLAIN, SMALLEST)


# -- versions ----------------------------------------------------------------------------------------------------


def test_the_older_name_is_read_with_a_warning() -> None:
    data = with_header(SMALLEST, magic=b"HYPERDAG")
    assert PLAIN.sniff(memoryview(data), FileInfo("x", len(data)))
    assert "HYPERDAG" in parsed(PLAIN, data).warnings[0]
    assert read_back(PLAIN, data)["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("api", "word"), [((0, 2), "newer API 0.2"), ((0, 0), "older API 0.0")])
def test_another_minor_api_is_a_warning(api: tuple[int, int], word: str) -> None:
    data = with_header(SMALLEST, api_version=api)
    assert word in parsed(PLAIN, data).warnings[0]
    assert read_back(PLAIN, data)["w"].tolist() == [0, 1, 2]


def test_used_reserved_fields_are_a_warning() -> None:
    assert "reserved" in parsed(PLAIN, with_header(SMALLEST, reserved=(0, 7))).warnings[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api_version": (1, 0)}, r"API 1\.0: upgrade"),
        ({"format_version": 2}, "version 2 is not supported: upgrade"),
        ({"format_version": 0}, "version 0 is not supported: no such"),
        ({"flags": 16}, "unknown flags 0x10"),
    ],
)
def test_what_this_release_does_not_know_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=message):
        parsed(PLAIN, with_header(SMALLEST, **changes))


def test_another_uuid_reserved_flags_and_another_encoding_are_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="format uuid ff0e8400"):
        parsed(PLAIN, SMALLEST[:8] + b"\xff" + SMALLEST[9:])
    with pytest.raises(UnsupportedVersionError, match="unknown flags 0x0 and 0x1"):
        parsed(PLAIN, SMALLEST[:36] + b"\x01" + SMALLEST[37:])
    opened = Opened.of(SMALLEST)
    opened.sections[METADATA] = opened.sections[METADATA].replace(b'"encoding":1', b'"encoding":2')
    with pytest.raises(UnsupportedVersionError, match="encoding 2"):
        parsed(PLAIN, opened.sealed())


def edited_metadata(old: bytes, new: bytes) -> bytes:
    opened = Opened.of(SMALLEST)
    assert old in opened.sections[METADATA]
    opened.sections[METADATA] = opened.sections[METADATA].replace(old, new)
    opened.change_row(METADATA, size=len(opened.sections[METADATA]))
    return opened.sealed()


def test_an_unknown_section_is_skipped_with_a_warning() -> None:
    opened = Opened.of(edited_metadata(b'"2":"', b'"77":"'))
    opened.change_row(EDGES, type=77)
    opened.sections[77] = opened.sections.pop(EDGES)
    data = opened.sealed()
    found = parsed(PLAIN, data)
    assert found.warnings == ("section type 77 is unknown and was skipped",)
    assert "section type 77" in [digest.what for digest in found.digests]
    assert read_back(PLAIN, data)["w"].tolist() == [0, 1, 2]


def test_an_unknown_section_needs_its_hash_in_the_metadata() -> None:
    opened = Opened.of(SMALLEST)
    opened.change_row(EDGES, type=77)
    opened.sections[77] = opened.sections.pop(EDGES)
    with pytest.raises(LayoutError, match="no hash for section type 77"):
        parsed(PLAIN, opened.sealed())


def test_a_bundle_without_our_block_is_a_flat_dict() -> None:
    text = json.loads(Opened.of(SMALLEST).sections[METADATA])
    start = Opened.of(SMALLEST).sections[METADATA].index(b',"asyncckpt"')
    assert list(text)[-1] == "asyncckpt"
    data = edited_metadata(Opened.of(SMALLEST).sections[METADATA][start:], b"}")
    index = parsed(PLAIN, data)
    assert (index.tree, index.tensors[0].chunk_bytes, index.tensors[0].checksums) == (None, 0, None)
    assert index.metadata.custom_fields["creator"] == "asyncckpt"
    assert read_back(PLAIN, data)["w"].tolist() == [0, 1, 2]


def test_tied_nodes_share_their_bytes_and_nothing_else_may() -> None:
    data = made(PLAIN, {"a": np.arange(3, dtype="u1"), "b": np.arange(3, dtype="u1")})
    opened = Opened.of(data)
    ids = [opened.sections[NODES][at : at + 16] for at in (0, 72)]
    place = {opened.sections[INDEX][at : at + 16]: at for at in (0, 48)}
    shared = opened.sections[INDEX][place[ids[0]] + 16 : place[ids[0]] + 24]
    opened.put(INDEX, place[ids[1]] + 16, "<Q", int.from_bytes(shared, "little"))
    with pytest.raises(LayoutError, match="overlaps"):
        parsed(PLAIN, opened.sealed())
    # An edge more fits into the padding behind EDGES.
    tie = b"".join(number.to_bytes(4, "little") for number in (TIED_EDGE, 1, 0, 1))
    opened.sections[EDGES] += tie
    opened.change_row(EDGES, size=32, item_count=2)
    tied = opened.sealed()
    assert read_back(PLAIN, tied)["b"].tolist() == [0, 1, 2]
    assert parsed(PLAIN, tied).tensors[0].extents == parsed(PLAIN, tied).tensors[1].extents


# -- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_flipped_bit_is_noticed_or_changes_nothing() -> None:
    index = parsed(PLAIN, SMALLEST)
    tensor = index.tensors[0].extents[0]
    known = [*(index.header_extents or ()), tensor]
    meaning = {at for extent in known for at in range(extent.offset, extent.end)}
    whole = read_all(PLAIN, SMALLEST)
    for position, what, damaged in bit_flips(SMALLEST):
        # Padding is zeros that nobody reads; `verify` looks at it, opening a file does not.
        if position not in meaning and what.startswith("bit 0"):
            assert outcome(lambda data: read_all(PLAIN, data), damaged) == whole, what
        elif position in meaning:
            assert outcome(lambda data: read_all(PLAIN, data), damaged) is None, what


def test_every_truncation_and_extension_is_noticed() -> None:
    for size in range(len(SMALLEST)):
        assert outcome(lambda data: read_all(PLAIN, data), SMALLEST[:size]) is None, size
    for extra in (b"\0", b"x", bytes(64)):
        assert outcome(lambda data: read_all(PLAIN, data), SMALLEST + extra) is None
    with pytest.raises(TruncatedError, match="the bundle has"):
        parsed(PLAIN, SMALLEST[:-1])


def test_damage_is_named() -> None:
    def flipped(at: int) -> bytes:
        return SMALLEST[:at] + bytes([SMALLEST[at] ^ 1]) + SMALLEST[at + 1 :]

    with pytest.raises(ChecksumMismatchError, match="the header is damaged"):
        parsed(PLAIN, flipped(50))
    with pytest.raises(ChecksumMismatchError, match="section NODES is damaged"):
        parsed(PLAIN, flipped(ROWS[NODES].offset))
    with pytest.raises(ChecksumMismatchError, match="the section index is damaged"):
        parsed(PLAIN, flipped(104 + 39))
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged") as caught:
        read_back(PLAIN, flipped(ROWS[STORE].offset))
    assert caught.value.tensor == "w"


@given(mutations(SMALLEST))
def test_mutations_are_noticed(damaged: bytes) -> None:
    found = outcome(lambda data: read_all(PLAIN, data), damaged)
    assert found is None or found == read_all(PLAIN, SMALLEST)


@given(st.binary(max_size=300))
def test_noise_raises_nothing_but_format_errors(noise: bytes) -> None:
    for start in (b"", b"METAGRAP", SMALLEST[:104], SMALLEST[:304]):
        assert_read_or_refused(lambda data: parsed(PLAIN, data), start + noise)


HEADER_FIELDS = [(24, "<I"), (28, "<I"), (32, "<I"), (36, "<I"), (40, "<Q"), (80, "<I"), (84, "<I")]
NODE_FIELDS = [(48, "<Q"), (56, "<I"), (60, "<H"), (62, "<H"), (64, "<I"), (72, "<Q")]
EDGE_FIELDS = [(0, "<I"), (4, "<I"), (8, "<I"), (12, "<I")]
INDEX_FIELDS = [(16, "<Q"), (24, "<Q"), (32, "<Q"), (40, "<I"), (44, "<I")]


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers_with_right_checksums_are_refused_or_harmless(value: int) -> None:
    """Unlike a flipped bit, these come with every hash made right again."""
    whole = read_all(PLAIN, SMALLEST)
    for section, fields in ((NODES, NODE_FIELDS), (EDGES, EDGE_FIELDS), (INDEX, INDEX_FIELDS)):
        for at, layout in fields:
            damaged = resealed(SMALLEST, section, at, layout, value)
            found = outcome(lambda data: read_all(PLAIN, data), damaged)
            assert found is None or found == whole, (section, at, value)
    for at, layout in HEADER_FIELDS:
        damaged = with_number(SMALLEST, at, layout, value)
        blank = damaged[:64] + bytes(8) + damaged[72:104]
        sealed = damaged[:64] + hash_of(blank)[:8] + damaged[72:]
        found = outcome(lambda data: read_all(PLAIN, data), sealed)
        assert found is None or found == whole, (at, value)


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("field", ["type", "flags", "offset", "size", "item_count"])
def test_hostile_rows_of_the_section_index_are_refused(field: str, value: int) -> None:
    limit = 64 if field in ("offset", "size") else 32
    for row in Opened.of(SMALLEST).rows:
        opened = Opened.of(SMALLEST)
        opened.rows = [
            replace(r, **{field: value % (1 << limit)}) if r is row or r == row else r for r in opened.rows
        ]
        index = b"".join(r.with_hash(hash_of(opened.sections.get(r.type, b""))).encode() for r in opened.rows)
        hashes = [hash_of(opened.sections.get(r.type, b"")) for r in opened.rows]
        root = metagraph_hash.root_of(index, hashes)
        header = replace(opened.header, bundle_checksum=metagraph_hash.short_hash(root)).encode()
        data = header + index + SMALLEST[len(header + index) :]
        found = outcome(lambda data: read_all(PLAIN, data), data)
        assert found is None or found == read_all(PLAIN, SMALLEST), (row.name, field, value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"encoding":1', b'"encoding":0', "has the encoding 0"),
        (b'"frame_bytes":0', b'"frame_bytes":-1', "frames of -1 bytes"),
        (b'"frame_bytes":0', b'"frame_bytes":99999999999', "too large"),
        (b'"hashes":{"1":"', b'"hashes":{"x":"', "a hash for the section 'x'"),
        (b'"hashes":{"1":"', b'"hashes":{"1":"z', "not 64 hex digits"),
        (b'"hashes":{"1"', b'"hashes":0,"h":{"1"', "no hashes"),
        (b'"frame_bytes":0', b'"delta_base":{}', "delta_base of METADATA lacks"),
        (b'"frame_bytes":0', b'"delta_base":3', "delta_base of METADATA is not an object"),
        (b'"encoding":1', b'"encoding":1,"encoding":1', "'encoding' twice"),
        (b'"block":1', b'"block":9', "has version 9"),
        (b'{"encoding":1', b"[" * 1500 + b'{"encoding":1', "METADATA is"),
    ],
)
def test_bad_metadata_is_refused(old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parsed(PLAIN, edited_metadata(old, new))


def test_too_many_dimensions_and_sections_are_beyond_the_limits() -> None:
    with pytest.raises(LimitExceededError, match="65535 dimensions"):
        parsed(PLAIN, resealed(SMALLEST, NODES, 62, "<H", 65535))
    with pytest.raises(LimitExceededError, match="1025 sections"):
        parsed(PLAIN, with_header(SMALLEST, section_count=1025))


def test_a_name_that_does_not_fit_its_id_is_refused() -> None:
    opened = Opened.of(SMALLEST)
    opened.sections[NODES] = opened.sections[NODES].replace(b"float32w", b"float32v")
    with pytest.raises(LayoutError, match="'v' has an id that is not the BLAKE3 of its name"):
        parsed(PLAIN, opened.sealed())


def test_sniffing() -> None:
    assert PLAIN.sniff(memoryview(SMALLEST[:64]), FileInfo("x", 9))
    assert not PLAIN.sniff(memoryview(b"METAGRAF" + bytes(56)), FileInfo("x.mgb", 64))
    assert not PLAIN.sniff(memoryview(b""), FileInfo("x.mgb", 0))


def test_verify_can_check_every_section_and_the_padding() -> None:
    index = parsed(PLAIN, SMALLEST)
    for digest in index.digests:
        data = bytearray(SMALLEST)
        for zeroed in digest.zeroed:
            data[zeroed.offset : zeroed.end] = bytes(zeroed.size)
        value = hash_of(bytes(data[digest.extent.offset : digest.extent.end]))
        assert value[: len(digest.expected)] == digest.expected, digest.what
    assert [d.what for d in index.digests][1:] == [f"section {row.name}" for row in ROWS.values()]
    assert Extent(0, 104 + 5 * 40) in (index.header_extents or ())
    (plan,) = PLAIN.plan(Content((), (), CheckpointMetadata()), name="m.mgb")
    assert isinstance(plan, FilePlan)


@pytest.mark.thorough
@given(st.sampled_from((NODES, EDGES, INDEX, METADATA)), st.data())
def test_mutated_tables_with_right_checksums_raise_nothing_but_format_errors(
    section: int, data: st.DataObject
) -> None:
    opened = Opened.of(SMALLEST)
    size = len(opened.sections[section])
    opened.sections[section] = data.draw(mutations(opened.sections[section]))[:size].ljust(size, b"\0")
    assert_read_or_refused(lambda damaged: read_all(PLAIN, damaged), opened.sealed())
