"""SDZ: the sample, round trips, other tools, golden bytes, bombs, and every kind of damage."""

from __future__ import annotations

import io
import struct
import threading
import zipfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from asyncckpt.errors import (
    ChecksumMismatchError,
    InvalidArgumentError,
    LayoutError,
    LimitExceededError,
    NotRepresentableError,
)
from asyncckpt.formats.kit.encode import digest_content, render
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.kit.plan import Content, FilePlan, StreamPlan
from asyncckpt.formats.kit.zip import ZipLimits
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat, inner_plans
from asyncckpt.formats.sdz.write import cut_frames, file_crc32
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.metadata import CheckpointMetadata, TensorMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.testing.strategies import assert_identical
from tests.formats import state_files
from tests.formats.attacks import (
    GOLDEN,
    HOSTILE_NUMBERS,
    assert_dump_matches,
    bit_flips,
    mutations,
    outcome,
    with_number,
)
from tests.formats.parser_steps import drive, drive_noting, view_of
from tests.formats.state_files import arrays_of, content_of_state
from tests.independent import sdnb_reader, sdz_reader
from tests.java import compile_program

SAMPLES = GOLDEN / "sdz"
MOMENT = datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)
RNG = np.random.default_rng(3)
STATE: dict[str, Any] = {
    "w": np.arange(6, dtype="<f4").reshape(2, 3),
    "big": RNG.integers(0, 9, 500_000),
    "odd": RNG.integers(0, 255, 1_300_001).astype("u1"),
    "empty": np.zeros((0, 3), "<f2"),
    "scalar": np.array(2.5, "<f4"),
    "step": 7,
}
KINDS: dict[str, dict[str, Any]] = {
    "deflate": {},
    "stored": {"compress": False},
    "deflate, appended": {"inline_below": 0},
    "stored, appended": {"compress": False, "inline_below": 0},
    "deflate, shards": {"shards": 3},
    "stored, shards": {"compress": False, "shards": 3},
    "deflate, cut at a limit": {"shard_limit_bytes": 1 << 21, "level": 1, "threads": 1},
}


def parse(data: bytes, **options: Any) -> Index:
    return state_files.parse(SdzFormat(**options), data)


def encode(state: Any, metadata: CheckpointMetadata | None = None, **options: Any) -> bytes:
    content, views = content_of_state(state, metadata or CheckpointMetadata(timestamp=MOMENT))
    return state_files.encode_content(SdzFormat(**options), content, views)


def read_all(data: bytes) -> tuple[Any, ...]:
    return state_files.read_all(SdzFormat(), data)


def smallest(**options: Any) -> bytes:
    tensors = {"w": np.arange(3, dtype="<f4")}
    return state_files.encode_arrays(SdzFormat(**options), tensors, CheckpointMetadata(timestamp=MOMENT))


STORED = smallest(compress=False)
DEFLATED = smallest()


# -- the sample --------------------------------------------------------------------------------------------------


def test_the_sample_of_java_util_zip() -> None:
    data = (SAMPLES / "single_entry_named_model.sdz").read_bytes()
    index = parse(data)
    values = np.arange(6, dtype="<f4").reshape(2, 3) * np.float32(0.5)
    assert_identical(arrays_of(index, data), {"w": values, "n": np.array([-1, 2], "<i4")})
    assert index.format == "sdz"
    assert index.details["entries"] == [
        {"name": "model", "method": "deflate", "size": 719, "compressed": 386}
    ]


# -- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_back(kind: str) -> None:
    data = encode(STATE, **KINDS[kind])
    index = parse(data)
    arrays = arrays_of(index, data)
    assert list(arrays) == ["w", "big", "odd", "empty", "scalar"]
    for name, array in arrays.items():
        assert_identical(array, STATE[name])
    assert index.tree is not None


@pytest.mark.parametrize("kind", KINDS)
async def test_shards_and_metadata_come_back(kind: str) -> None:
    fmt = SdzFormat(**KINDS[kind])
    metadata = CheckpointMetadata(timestamp=MOMENT, world_size=2, custom_fields={"a": "b", "n": [1]})
    shards = [ShardData.from_arrays({"a": STATE["w"]}), ShardData.from_arrays({"b": STATE["scalar"]})]
    found, back = await fmt.deserialize(await fmt.serialize(shards, metadata))
    assert [[t.name for t in shard.tensor_info] for shard in found] == [["a"], ["b"]]
    assert (back.timestamp, back.world_size, back.custom_fields) == (MOMENT, 2, {"a": "b", "n": [1]})


@pytest.mark.parametrize("kind", KINDS)
def test_pythons_zipfile_accepts_it_and_sdnb_reads_what_is_inside(kind: str) -> None:
    with zipfile.ZipFile(io.BytesIO(encode(STATE, **KINDS[kind]))) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    leader = next(iter(files))
    index = state_files.parse(SdnbFormat(), files[leader], files, name=leader)
    assert_identical(arrays_of(index, files[leader], files)["big"], STATE["big"])
    assert leader == ("model" if len(files) == 1 else f"model.shard0-of-{len(files)}.sdnb")


@pytest.mark.thorough
def test_javas_stream_reader_accepts_it(tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    java = compile_program(tmp_path / "classes")
    paths, expected = [], []
    for number, kind in enumerate(KINDS):
        data = encode(STATE, **KINDS[kind])
        paths.append(tmp_path / f"{number}.sdz")
        paths[-1].write_bytes(data)
        expected += [[n, str(len(c)), str(zlib.crc32(c))] for n, c in sdz_reader.read(data).items()]
    assert java.run("unzip", *paths) == expected


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", ["model", "model.sdnb", "anything.sdnb", "anything"])
def test_a_file_of_ours_packed_by_others(name: str, method: int) -> None:
    inner = sdz_reader.read(DEFLATED)["model"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, inner)
    index = parse(buffer.getvalue())
    assert_identical(arrays_of(index, buffer.getvalue()), {"w": np.arange(3, dtype="<f4")})
    assert index.tensors[0].checksums is not None


def test_a_set_packed_by_others() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((GOLDEN / "sdnb").glob("model.shard*"), reverse=True):
            archive.writestr(path.name, path.read_bytes())
    arrays = arrays_of(parse(buffer.getvalue()), buffer.getvalue())
    assert_identical(arrays["C"], np.array([-3, 0, 3], "<i4"))
    assert arrays["A"].shape == (4, 4)


def test_the_same_input_gives_the_same_bytes_whatever_the_threads() -> None:
    assert smallest() == DEFLATED
    assert encode(STATE, threads=1) == encode(STATE, threads=4)


def test_stored_payloads_are_aligned_and_read_by_range() -> None:
    index = parse(encode(STATE, compress=False, inline_below=0, shards=3))
    assert {t.extents[0].offset % 64 for t in index.tensors} == {0}
    assert all(t.frames is None for t in index.tensors)


def test_a_tensor_of_a_compressed_file_is_read_alone() -> None:
    data = encode(STATE)
    index = parse(data)
    odd = next(t for t in index.tensors if t.name == "odd")
    assert odd.frames is not None
    assert len(odd.frames.extents) == 2
    assert sum(extent.size for extent in odd.frames.extents) < 1_310_000
    start, size, _ = odd.frames.extents[1]
    assert odd.frames.decode(1, data[start : start + size]) == STATE["odd"].tobytes()[1 << 20 :]


@pytest.mark.parametrize("compress", [True, False])
def test_opening_takes_few_requests_and_few_bytes(compress: bool) -> None:
    data = encode(STATE, compress=compress)
    asked: list[tuple[int, int]] = []
    known = [(0, 1 << 17)]
    for start, end in drive_noting(SdzFormat().parse(FileInfo("m.sdz", len(data))), data, len(data))[1]:
        if not any(a <= start and end <= b for a, b in known):
            known.append((start, end + (1 << 17)))
            asked.append((start, end))
    assert len(asked) <= 2
    assert sum(end - start for start, end in asked) < 200_000


def test_updater_state_inside() -> None:
    data = encode({"w": STATE["w"]}, updater_state={"w": {"M": np.ones(3)}})
    assert_identical(arrays_of(parse(data), data)["updaterState/w/M"], np.ones(3))
    assert [t.name for t in parse(data, load_updater_state=False).tensors] == ["w"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(NotRepresentableError, match="'c' is complex64, which sdz can't store"):
        encode({"c": np.zeros(2, "c8")})
    with pytest.raises(InvalidArgumentError, match="level must be an int from 0 to 9, not 10"):
        SdzFormat(level=10)


# -- planning ----------------------------------------------------------------------------------------------------


def test_frames_cover_the_file_and_follow_its_arrays() -> None:
    content, _ = content_of_state(STATE, CheckpointMetadata(timestamp=MOMENT))
    (plan,) = inner_plans(content, SdzFormat(inline_below=0).options.inner)
    position = 0
    for cut in cut_frames(plan):
        assert cut.start == position < cut.end
        position = cut.end
    assert position == plan.size
    starts = {cut.start for cut in cut_frames(plan)}
    assert {payload.offset for payload in plan.payloads if payload.size} <= starts


def test_the_crc32_of_a_file_follows_from_its_parts() -> None:
    content, views = content_of_state(STATE, CheckpointMetadata(timestamp=MOMENT))
    read = state_files.from_views(views)
    (plan,) = inner_plans(content, SdzFormat(inline_below=0).options.inner)
    digests = digest_content(plan.chunking, read, crc32=True)
    late = plan.finish(digests, read)
    assert file_crc32(plan, late, digests.crc32) == zlib.crc32(render(plan, read))


def test_a_plan_beyond_four_gib_is_zip64_throughout() -> None:
    tensors = tuple(TensorMetadata(f"t{i}", "uint8", (3 << 30,)) for i in range(2))
    content = Content(tensors, (2,), CheckpointMetadata(timestamp=MOMENT))
    (plan,) = SdzFormat(compress=False, shards=1).plan(content, name="m.sdz")
    assert isinstance(plan, FilePlan)
    chunking = Chunking.for_sizes(t.size for t in tensors)
    digests = type(digest_content(Chunking.for_sizes([]), lambda *_: b""))(
        np.zeros(chunking.count, np.uint32), (0, 0)
    )
    late = plan.finish(digests, lambda *_: b"")
    header, tail = late[0], late[-1]
    assert struct.unpack_from("<II", header, 18) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert struct.unpack_from("<HHQ", header, 35)[:2] == (1, 16)
    assert b"PK\x06\x06" in tail
    assert b"PK\x06\x07" in tail
    pieces = {region.start: data for region, data in zip(plan.deferred, late, strict=True)}
    steps = SdzFormat().parse(FileInfo("m.sdz", plan.size))
    index: Index = drive(steps, view_of(pieces), plan.size)
    assert [t.extents[0].offset for t in index.tensors] == [p.offset for p in plan.payloads]
    assert [t.metadata.size for t in index.tensors] == [3 << 30] * 2


def test_a_stream_that_is_given_up_leaves_no_thread() -> None:
    content, views = content_of_state(STATE)
    (plan,) = SdzFormat(threads=2).plan(content, name="m.sdz")
    assert isinstance(plan, StreamPlan)
    before = threading.active_count()
    chunks = plan.chunks(state_files.from_views(views))
    assert next(chunks).startswith(b"PK\x03\x04")
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


# -- golden bytes, and the page that describes them --------------------------------------------------------------


def test_the_golden_file_is_what_we_write() -> None:
    assert (SAMPLES / "smallest_stored.sdz").read_bytes() == STORED


def test_the_compressed_golden_file_is_read() -> None:
    # Its bytes depend on the release of zlib, so only what it holds is compared.
    assert read_all((SAMPLES / "smallest.sdz").read_bytes()) == read_all(DEFLATED)


def test_the_dump_on_the_page_is_the_golden_file() -> None:
    assert_dump_matches("sdz.md", (SAMPLES / "smallest.sdz").read_bytes())


@pytest.mark.parametrize("file", ["smallest.sdz", "smallest_stored.sdz"])
def test_an_independent_reader_reads_the_golden_files(file: str) -> None:
    inner = sdz_reader.read((SAMPLES / file).read_bytes())["model"]
    assert sdnb_reader.read(inner).arrays == {"w": (5, (3,), np.arange(3, dtype="<f4").tobytes())}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_an_independent_reader_reads_every_kind(kind: str) -> None:
    data = encode(STATE, **KINDS[kind])
    files = sdz_reader.read(data)
    found = {
        name: array for inner in files.values() for name, array in sdnb_reader.read(inner).arrays.items()
    }
    assert {n: a.data for n, a in found.items()} == {n: STATE[n].tobytes() for n in found}
    assert len(found) == 5
    if "deflate" in kind:
        for name, frames in sdz_reader.frames(data).items():
            for raw_start, raw_bytes, place, stored in frames:
                raw = sdz_reader.inflate_frame(data, place, stored)
                assert raw == files[name][raw_start : raw_start + raw_bytes]


# -- damage ------------------------------------------------------------------------------------------------------

WHOLE = {"stored": STORED, "deflate": DEFLATED}


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
@pytest.mark.parametrize("kind", WHOLE)
def test_hostile_numbers_anywhere(kind: str, value: int) -> None:
    data = WHOLE[kind]
    original = read_all(data)
    for code in ("<H", "<I", "<Q"):
        for at in range(len(data) - struct.calcsize(code)):
            assert outcome(read_all, with_number(data, at, code, value)) in (None, original), (code, at)


@pytest.mark.thorough
@settings(max_examples=100)
@given(mutations(DEFLATED))
def test_mutations_of_a_compressed_archive_are_noticed(data: bytes) -> None:
    assert outcome(read_all, data) in (None, read_all(DEFLATED))


@pytest.mark.thorough
@settings(max_examples=100)
@given(mutations(STORED))
def test_mutations_of_a_stored_archive_are_noticed(data: bytes) -> None:
    assert outcome(read_all, data) in (None, read_all(STORED))


FOREIGN = (SAMPLES / "single_entry_named_model.sdz").read_bytes()


@pytest.mark.thorough
@settings(max_examples=100)
@given(mutations(FOREIGN))
def test_mutations_of_a_foreign_archive_end_in_a_format_error_or_the_same(data: bytes) -> None:
    # ZIP's CRC32 covers all of the entry.
    assert outcome(read_all, data) in (None, read_all(FOREIGN))


def packed(content: bytes, name: str = "model") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def test_a_bomb_is_refused_while_it_goes_off() -> None:
    bomb = packed(bytes(3_000_000))
    assert len(bomb) < 10_000
    limits = ZipLimits(free_bytes=1 << 20, max_ratio=200)
    with pytest.raises(LimitExceededError, match="beyond 1:200"):
        parse(bomb, limits=limits)
    with pytest.raises(LimitExceededError, match="more than 1000 bytes"):
        parse(bomb, limits=ZipLimits(max_bytes=1000))


def test_a_bomb_that_says_it_is_small_is_refused_by_what_comes_out() -> None:
    bomb = packed(bytes(3_000_000))
    at = bomb.index(b"PK\x01\x02")
    with pytest.raises(LayoutError, match="inflates beyond the 719 bytes it announces"):
        parse(with_number(bomb, at + 24, "<I", 719))


def test_zeros_in_a_file_of_ours_are_no_bomb() -> None:
    state = {"w": np.zeros(3_000_000, "u1")}
    data = encode(state)
    assert len(data) < 10_000
    limits = ZipLimits(free_bytes=1 << 20, max_ratio=200)
    assert_identical(arrays_of(parse(data, limits=limits), data), state)


def test_a_wrong_crc32_of_a_foreign_entry_is_an_error_of_its_own() -> None:
    at = FOREIGN.index(b"PK\x01\x02")
    with pytest.raises(ChecksumMismatchError, match="has the CRC32"):
        parse(with_number(FOREIGN, at + 16, "<I", 1))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"data.pkl": b"x", "version": b"3"},
            "no SDNB file that could be the model: it has 'data.pkl', 'version'",
        ),
        ({}, "begins with|no SDNB file"),
        ({"model.shard0-of-2.sdnb": b""}, "lacks 1 shards of its set, such as 'model.shard1-of-2.sdnb'"),
        ({"a.shard0-of-1.sdnb": b"", "b.shard0-of-1.sdnb": b""}, "several sets"),
        ({"model": b"not SDNB at all, whatever its name"}, "not an SDNB file"),
        ({"model": b""}, "not an SDNB file"),
    ],
)
def test_archives_of_something_else(files: dict[str, bytes], message: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(LayoutError, match=message):
        parse(buffer.getvalue())
