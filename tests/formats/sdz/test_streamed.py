"""Entries that others compressed: any bytes of one stream, without holding it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.formats.kit.zip import DEFLATED, ZipEntry, ZipLimits
from asyncckpt.formats.sdz import streamed
from asyncckpt.formats.sdz.streamed import Stream, open_stream


@pytest.fixture(autouse=True)
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "_FIRST_SPACING", 256)
        patch.setattr(streamed, "_MOST_PLACES", 6)
        patch.setattr(streamed, "_PIECE_BYTES", 100)
        patch.setattr(streamed, "_PORTION_BYTES", 64)
        patch.setattr(streamed, "_KEPT_BYTES", 0)
        yield


def opened(raw: bytes, level: int, before: bytes = b"head") -> tuple[Stream, bytes]:
    packed = zlib.compressobj(level, zlib.DEFLATED, -15)
    data = packed.compress(raw) + packed.flush()
    entry = ZipEntry("m", DEFLATED, zlib.crc32(raw), len(data), len(raw), 0, data_offset=len(before))
    stored = before + data
    return parse_bytes(open_stream(entry, ZipLimits(), 0), memoryview(stored)), stored


def contents() -> st.SearchStrategy[bytes]:
    """Zeros, whose matches go on and on, noise, and something between."""
    sizes = st.integers(0, 5000)
    zeros = sizes.map(bytes)
    noise = st.builds(lambda n, seed: np.random.default_rng(seed).bytes(n), sizes, st.integers(0, 9))
    words = st.lists(st.sampled_from([b"the ", b"checkpoint", b"\0" * 300, b"of"]), max_size=400).map(
        b"".join
    )
    return zeros | noise | words | st.builds(lambda a, b, c: a + b + c, zeros, noise, words)


@given(raw=contents(), level=st.sampled_from([0, 1, 6, 9]))
def test_every_frame_is_had_again_from_its_own_place(raw: bytes, level: int) -> None:
    stream, data = opened(raw, level)
    assert len(stream.extents) <= 6
    found = [stream.decode(n, memoryview(data)[e.offset : e.end]) for n, e in enumerate(stream.extents)]
    assert b"".join(found) == raw
    assert {len(frame) for frame in found[:-1]} <= {stream.spacing}
    assert stream.extents[-1].end == len(data)


def test_a_frame_that_many_arrays_share_is_inflated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_KEPT_BYTES", 1000)
    stream, data = opened(bytes(range(256)) * 4, 6)
    extent = stream.extents[2]
    first = stream.decode(2, data[extent.offset : extent.end])
    assert stream.decode(2, b"is not looked at") is first
    for number in (0, 1, 3):
        stream.decode(number, data[stream.extents[number].offset : stream.extents[number].end])
    with pytest.raises(LayoutError, match=r"inflates to other bytes|can't be inflated"):
        stream.decode(2, b"")


@pytest.mark.parametrize(("cut", "message"), [(-1, "inflates to"), (1, "goes on after the end")])
def test_a_stream_that_is_cut_or_goes_on_is_refused(cut: int, message: str) -> None:
    raw = bytes(range(256)) * 4
    data = zlib.compress(raw, wbits=-15)
    data = data[:cut] if cut < 0 else data + b"x"
    entry = ZipEntry("m", DEFLATED, zlib.crc32(raw), len(data), len(raw), 0, data_offset=0)
    with pytest.raises(LayoutError, match=message):
        parse_bytes(open_stream(entry, ZipLimits(), 0), memoryview(data))


def test_bytes_are_counted_as_they_come_out() -> None:
    data = zlib.compress(bytes(100_000), wbits=-15)
    entry = ZipEntry("m", DEFLATED, 0, len(data), 100_000, 0, data_offset=0)
    with pytest.raises(LimitExceededError, match="beyond 1:200"):
        parse_bytes(open_stream(entry, ZipLimits(free_bytes=1000), 0), memoryview(data))
    with pytest.raises(LimitExceededError, match="more than 150000 bytes"):
        parse_bytes(open_stream(entry, ZipLimits(max_bytes=150_000), 60_000), memoryview(data))
