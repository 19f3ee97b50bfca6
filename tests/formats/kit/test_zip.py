"""ZIP: other tools' archives, Zip64, and archives that lie."""

from __future__ import annotations

import io
import struct
import threading
import zipfile
import zlib
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import (
    FormatError,
    LayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from asyncckpt.formats.kit.deflate import (
    EMPTY_STREAM,
    compress_frames,
    inflate_frame,
    size_bound,
)
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.kit.zip import (
    DEFLATED,
    DESCRIPTOR_FLAG,
    STORED,
    Archive,
    ZipEntry,
    ZipLimits,
    aligned_extra,
    central_directory,
    data_descriptor,
    local_header,
    read_archive,
)
from tests.formats.attacks import (
    HOSTILE_FILE_NAMES,
    HOSTILE_NUMBERS,
    bit_flips,
    mutations,
    outcome,
    with_number,
)
from tests.formats.parser_steps import drive, view_of


def read(data: bytes, limits: ZipLimits | None = None) -> Archive:
    found = drive(read_archive(FileInfo("x.sdz", len(data)), limits or ZipLimits()), data, len(data))
    assert isinstance(found, Archive)
    return found


def made(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, **options) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6)), data, compress_type=method)
    return buffer.getvalue()


FILES = {"model": b"abc" * 100, "other": b""}
PLAIN = made(FILES)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_of_pythons_own(method: int) -> None:
    data = made(FILES, method)
    archive = read(data)
    assert list(archive.entries) == ["model", "other"]
    entry = archive.entries["model"]
    stored = data[entry.data_offset : entry.end]
    assert (stored if method == STORED else zlib.decompress(stored, -15)) == FILES["model"]
    assert (entry.size, entry.crc32) == (300, zlib.crc32(FILES["model"]))


def test_an_archive_with_a_comment_and_forced_zip64() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = b"PK\x05\x06 is a trap"
        with archive.open("model", "w", force_zip64=True) as file:
            file.write(b"data")
    found = read(buffer.getvalue())
    assert found.comment == b"PK\x05\x06 is a trap"
    entry = found.entries["model"]
    assert buffer.getvalue()[entry.data_offset : entry.end] == b"data"


def test_an_empty_archive_has_no_entries() -> None:
    assert read(made({})).entries == {}


def archive_of(entries: list[ZipEntry], comment: bytes = b"") -> tuple[dict[int, bytes], int]:
    """An archive whose data is not there: the pieces that are, by their place, and the size of all."""
    pieces: dict[int, bytes] = {}
    position = 0
    placed = []
    for entry in entries:
        header = local_header(
            ZipEntry(
                entry.name, entry.method, entry.crc32, entry.compressed, entry.size, position, entry.flags
            )
        )
        pieces[position] = header
        placed.append(
            ZipEntry(
                entry.name, entry.method, entry.crc32, entry.compressed, entry.size, position, entry.flags
            )
        )
        position += len(header) + entry.compressed
        if entry.flags & DESCRIPTOR_FLAG:
            pieces[position] = data_descriptor(entry)
            position += len(pieces[position])
    pieces[position] = central_directory(placed, position, comment=comment)
    return pieces, position + len(pieces[position])


@pytest.mark.parametrize("method", [STORED, DEFLATED])
@pytest.mark.parametrize("size", [2**32 - 2, 2**32 - 1, 2**32, 2**40])
def test_sizes_beyond_four_gib(size: int, method: int) -> None:
    flags = DESCRIPTOR_FLAG if method == DEFLATED else 0
    entries = [ZipEntry("model", method, 7, size, size, 0, flags), ZipEntry("next", STORED, 8, 10, 10, 0)]
    pieces, total = archive_of(entries, b"note")
    archive = drive(read_archive(FileInfo("x.sdz", total), ZipLimits()), view_of(pieces), total)
    found = list(archive.entries.values())
    assert [(e.name, e.size, e.compressed, e.crc32) for e in found] == [
        ("model", size, size, 7),
        ("next", 10, 10, 8),
    ]
    assert found[1].header_offset > size
    assert archive.tail == pieces[max(pieces)]


def test_more_entries_than_16_bits_count() -> None:
    entries = [ZipEntry(str(i), STORED, 0, 0, 0, 0) for i in range(66_000)]
    pieces, total = archive_of(entries)
    whole = b"".join(pieces[at] for at in sorted(pieces))
    assert len(zipfile.ZipFile(io.BytesIO(whole)).namelist()) == 66_000
    with pytest.raises(LimitExceededError, match="66000 entries, at most 10001"):
        read(whole)
    assert total == len(whole)


@given(st.integers(0, 10_000))
def test_padding_ends_at_a_multiple(position: int) -> None:
    assert (position + len(aligned_extra(position, 64))) % 64 == 0


# -- archives that lie -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in HOSTILE_FILE_NAMES if name.isascii() and "\0" not in name])
def test_names_with_folders_are_refused(name: str) -> None:
    with pytest.raises(LayoutError, match="only plain names without folders"):
        read(made({name: b""}))


def test_an_entry_that_comes_twice_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("model", b"2")
    with pytest.raises(LayoutError, match="'model' twice"):
        read(buffer.getvalue())


def central_at(data: bytes) -> int:
    return data.index(b"PK\x01\x02")


def test_encrypted_entries_and_other_methods_are_refused() -> None:
    at = central_at(PLAIN)
    with pytest.raises(UnsupportedVersionError, match="encrypted"):
        read(with_number(PLAIN, at + 8, "<H", 1))
    with pytest.raises(UnsupportedVersionError, match="method 12"):
        read(with_number(PLAIN, at + 10, "<H", 12))


def test_entries_that_overlap_are_refused() -> None:
    inner = local_header(ZipEntry("b", STORED, 0, 5, 5, 0))
    data = made({"a": inner + bytes(50), "b": bytes(5)}, zipfile.ZIP_STORED)
    second = data.index(b"PK\x01\x02", central_at(data) + 4)
    with pytest.raises(LayoutError, match="'a' and 'b' overlap"):
        read(with_number(data, second + 42, "<I", data.index(inner)))


def test_a_local_header_of_another_name_is_refused() -> None:
    with pytest.raises(LayoutError, match="another name"):
        read(PLAIN.replace(b"model", b"mudel", 1))


def test_a_stored_entry_must_be_as_long_as_it_is() -> None:
    data = made({"model": b"abc"}, zipfile.ZIP_STORED)
    with pytest.raises(LayoutError, match="is stored, but has 3 bytes of 4"):
        read(with_number(data, central_at(data) + 24, "<I", 4))


def test_an_entry_beyond_the_directory_is_refused() -> None:
    data = made({"model": b"abc"}, zipfile.ZIP_DEFLATED)
    with pytest.raises(TruncatedError, match="the directory begins at"):
        read(with_number(data, central_at(data) + 20, "<I", 10_000))


def test_several_disks_are_refused() -> None:
    end = PLAIN.rindex(b"PK\x05\x06")
    with pytest.raises(LayoutError, match="several disks"):
        read(with_number(PLAIN, end + 4, "<H", 1))


def test_every_truncation_is_refused() -> None:
    for size in range(len(PLAIN)):
        assert outcome(read, PLAIN[:size]) is None, size


def test_every_flipped_bit_ends_in_a_format_error_or_an_archive() -> None:
    for _, what, data in bit_flips(PLAIN):
        found = outcome(read, data)
        assert found is None or isinstance(found, Archive), what


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("code", ["<H", "<I", "<Q"])
def test_hostile_numbers_anywhere(value: int, code: str) -> None:
    for at in range(len(PLAIN) - struct.calcsize(code)):
        found = outcome(read, with_number(PLAIN, at, code, value))
        assert found is None or all(e.end <= len(PLAIN) for e in found.entries.values()), at


@pytest.mark.thorough
@given(mutations(PLAIN))
def test_mutations_end_in_a_format_error_or_an_archive(data: bytes) -> None:
    try:
        archive = read(data)
    except FormatError:
        return
    assert all(0 <= entry.data_offset <= entry.end <= len(data) for entry in archive.entries.values())


def test_limits_count_what_really_comes_out() -> None:
    limits = ZipLimits(max_bytes=1000, max_ratio=10, free_bytes=100)
    limits.check(100, 1)
    limits.check(1000, 100)
    with pytest.raises(LimitExceededError, match="beyond 1:10"):
        limits.check(101, 10)
    with pytest.raises(LimitExceededError, match="more than 1000 bytes"):
        limits.check(1001, 1000)


# -- frames of DEFLATE -------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=8), st.integers(0, 9))
def test_frames_are_one_stream_and_each_is_readable_alone(frames: list[list[bytes]], level: int) -> None:
    made_frames = list(compress_frames(iter(frames), level=level, threads=2))
    raw = [b"".join(views) for views in frames]
    stream = b"".join(frame.data for frame in made_frames) + EMPTY_STREAM
    assert zlib.decompress(stream, -15) == b"".join(raw)
    for frame, expected in zip(made_frames, raw, strict=True):
        assert (frame.raw_bytes, frame.crc32) == (len(expected), zlib.crc32(expected))
        assert inflate_frame(frame.data, frame.raw_bytes, "it") == expected
    assert len(stream) <= size_bound(sum(map(len, raw)), len(raw)) + len(EMPTY_STREAM)


def test_closing_the_generator_ends_its_threads() -> None:
    before = threading.active_count()
    frames = compress_frames(([b"x" * 100_000] for _ in range(1000)), level=1, threads=3)
    next(iter(frames))
    assert threading.active_count() > before
    frames.close()
    assert threading.active_count() == before


def test_an_error_while_making_frames_ends_the_threads_too() -> None:
    before = threading.active_count()

    def failing() -> Generator[list[bytes], None, None]:
        yield [b"x"]
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        list(compress_frames(failing(), level=1, threads=2))
    assert threading.active_count() == before


def test_frames_that_are_not_what_they_say() -> None:
    (frame,) = compress_frames([[b"abc", b"\0\0"]], level=6, threads=1)
    assert inflate_frame(frame.data, 5, "it", padding=2) == b"abc"
    with pytest.raises(LayoutError, match="other padding than zeros"):
        inflate_frame(frame.data, 5, "it", padding=3)
    for wrong in (4, 6):
        with pytest.raises(LayoutError, match=f"{wrong} were expected"):
            inflate_frame(frame.data, wrong, "it")
    with pytest.raises(LayoutError, match="can't be inflated"):
        inflate_frame(b"\xff" * 10, 5, "it")
