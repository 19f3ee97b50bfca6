"""The Java manifest: the samples' bytes, Java itself, and streams of any other kind."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import FormatError, LayoutError, LimitExceededError
from asyncckpt.formats.sdnb.java_manifest import (
    ArrayRange,
    decode_manifest,
    encode_manifest,
)
from asyncckpt.formats.sdnb.modified_utf8 import decode_modified_utf8, encode_modified_utf8
from tests.formats.attacks import GOLDEN, HOSTILE_NUMBERS, bit_flips, mutations, outcome, with_number
from tests.java import JavaProgram, compile_program

NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
LONGS = st.one_of(st.integers(-128, 127), st.integers(0, 2**63 - 1))
MANIFESTS = st.dictionaries(NAMES, st.builds(ArrayRange, LONGS, LONGS), max_size=30)
TRICKY = {
    "w": ArrayRange(568, 24),
    "again small": ArrayRange(24, 24),
    "": ArrayRange(0, 127),
    "mäsk ∑": ArrayRange(127, 128),
    "𝄞 clef": ArrayRange(2**40, 128),
    "key": ArrayRange(2**63 - 1, 0),
}


def read(data: bytes) -> dict[str, ArrayRange]:
    return decode_manifest(memoryview(data))


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaProgram:
    return compile_program(tmp_path_factory.mktemp("classes"))


def lines_of(entries: dict[str, ArrayRange]) -> list[list[str]]:
    return [[name, str(place.offset), str(place.length)] for name, place in entries.items()]


def sample_manifest(name: str) -> bytes:
    data = (GOLDEN / "sdnb" / name).read_bytes()
    offset, length = struct.unpack_from(">qq", data, 8)
    return data[offset : offset + length]


SAMPLES = [
    "tiny_inline_only.sdnb",
    "tiny_appended.sdnb",
    *(f"model.shard{i}-of-3.sdnb" for i in range(3)),
]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_manifests_come_out_byte_for_byte(name: str) -> None:
    data = sample_manifest(name)
    assert encode_manifest(read(data)) == data


def test_the_entries_of_a_sample() -> None:
    assert read(sample_manifest("tiny_appended.sdnb")) == {
        "w": (568, 24),
        "n": (592, 40),
        "odd": (632, 3),
        "after_odd": (635, 8),
    }


def test_an_empty_map_has_135_bytes() -> None:
    assert len(encode_manifest({})) == 135
    assert read(encode_manifest({})) == {}


@pytest.mark.thorough
@given(MANIFESTS)
def test_every_manifest_comes_back(entries: dict[str, ArrayRange]) -> None:
    assert read(encode_manifest(entries)) == entries
    assert list(read(encode_manifest(entries))) == list(entries)


def test_a_key_beyond_64_kib_is_a_long_string() -> None:
    entries = {"k" * 70_000: ArrayRange(1, 2)}
    data = encode_manifest(entries)
    assert b"\x7c" + struct.pack(">Q", 70_000) + b"kkk" in data
    assert read(data) == entries


@pytest.mark.thorough
@pytest.mark.parametrize("count", [0, 1, 12, 13, 24, 25, 200])
def test_java_reads_what_we_write_and_writes_the_same_bytes(
    java: JavaProgram, tmp_path: Path, count: int
) -> None:
    entries = {f"layer.{i}": ArrayRange(64 * i, i % 150) for i in range(count)} | (TRICKY if count else {})
    ours, text, theirs = tmp_path / "ours", tmp_path / "lines", tmp_path / "theirs"
    ours.write_bytes(encode_manifest(entries))
    assert java.run("read", ours) == lines_of(entries)
    text.write_text("".join("\t".join(line) + "\n" for line in lines_of(entries)), encoding="utf-8")
    java.run("write", text, theirs)
    assert read(theirs.read_bytes()) == entries
    assert theirs.read_bytes() == ours.read_bytes()


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("a", b"a"), ("\0", b"\xc0\x80"), ("ä", b"\xc3\xa4"), ("𝄞", b"\xed\xa0\xb4\xed\xb4\x9e")],
)
def test_modified_utf8(text: str, encoded: bytes) -> None:
    assert encode_modified_utf8(text) == encoded
    assert decode_modified_utf8(encoded, "it") == text


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\xb4", b"\xc0\x81", b"\xed\xb4\x9e\xed\xa0\xb4"])
def test_bytes_that_are_no_modified_utf8(data: bytes) -> None:
    with pytest.raises(LayoutError, match="not valid modified UTF-8"):
        decode_modified_utf8(data, "it")


def test_a_lone_surrogate_can_not_be_stored() -> None:
    with pytest.raises(LayoutError, match="lone surrogate"):
        encode_manifest({"\ud834": ArrayRange(0, 0)})


# -- streams of another kind -------------------------------------------------------------------------------------

SMALL = encode_manifest({"a": ArrayRange(1000, 24), "b": ArrayRange(2000, 24)})


def test_another_class_is_refused_by_name() -> None:
    evil = SMALL.replace(b"\x00\x0ejava.lang.Long", b"\x00\x0ejava.lang.Evil")
    with pytest.raises(LayoutError, match=r"'java\.lang\.Evil'"):
        read(evil)


def test_a_gadget_in_place_of_the_map_is_refused() -> None:
    name = b"java.util.PriorityQueue"
    evil = SMALL.replace(b"\x00\x17java.util.LinkedHashMap", struct.pack(">H", len(name)) + name)
    with pytest.raises(LayoutError, match=r"'java\.util\.PriorityQueue'"):
        read(evil)


def test_another_version_of_a_class_is_refused() -> None:
    with pytest.raises(LayoutError, match="another version"):
        read(SMALL.replace(bytes.fromhex("0000000000000077"), bytes.fromhex("0000000000000078")))


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match="'a' twice"):
        read(SMALL.replace(b"\x74\x00\x01b", b"\x74\x00\x01a"))


def test_a_reference_to_nothing_is_refused() -> None:
    with pytest.raises(LayoutError, match="unknown object"):
        read(SMALL.replace(bytes.fromhex("71007e0004"), bytes.fromhex("71007e00ff")))


def test_more_entries_than_bytes_are_refused_before_anything_is_made() -> None:
    at = SMALL.index(bytes.fromhex("7708")) + 6
    with pytest.raises(LimitExceededError, match="2147483647 arrays"):
        read(with_number(SMALL, at, ">i", 2**31 - 1))


def test_every_truncation_and_extension_is_refused() -> None:
    for size in range(len(SMALL)):
        assert outcome(read, SMALL[:size]) is None, size
    assert outcome(read, SMALL + b"\0") is None


def test_every_flipped_bit_ends_in_a_format_error_or_a_map() -> None:
    for _, what, data in bit_flips(SMALL):
        found = outcome(read, data)
        assert found is None or isinstance(found, dict), what


@pytest.mark.thorough
@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("code", [">H", ">i", ">q"])
def test_hostile_numbers_anywhere(value: int, code: str) -> None:
    width = struct.calcsize(code)
    for at in range(len(SMALL) - width):
        found = outcome(read, with_number(SMALL, at, code, value))
        assert found is None or len(found) <= 2, at


@given(mutations(SMALL))
def test_mutations_end_in_a_format_error_or_a_map(data: bytes) -> None:
    try:
        found = read(data)
    except FormatError:
        return
    assert all(isinstance(place, ArrayRange) for place in found.values())
