"""CRC32C: against published values, against zlib for the shared arithmetic, and against itself."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.model.checksums import (
    MAX_CHUNKS,
    MIN_CHUNK_BYTES,
    Chunking,
    _crc32_function,
    crc32,
    crc32_combine,
    crc32c,
    crc32c_combine,
    crc32c_of_zeros,
)

# RFC 3720, appendix B.4, and the check value of the catalogue of parametrised CRC algorithms.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "value"), VECTORS)
def test_published_values(data: bytes, value: int) -> None:
    assert crc32c(data) == value
    assert crc32c(memoryview(data)) == value
    assert crc32c(bytearray(data)) == value


@pytest.fixture(params=["zlib_ng", "zlib"])
def crc32_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """zlib-ng, and Python's own zlib as it is used where zlib-ng is not installed."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    _crc32_function.cache_clear()
    yield request.param
    _crc32_function.cache_clear()


def test_crc32_is_the_same_from_either_library(crc32_library: str) -> None:
    for data in (b"", b"123456789", bytes(range(256)) * 5000):
        for value in (0, 0xCBF43926):
            for view in (data, bytearray(data), memoryview(data)):
                assert crc32(view, value) == zlib.crc32(data, value)
    assert _crc32_function().__module__ == ("zlib" if crc32_library == "zlib" else "zlib_ng.zlib_ng")


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_continued_and_combined(first: bytes, second: bytes) -> None:
    whole = crc32c(first + second)
    assert crc32c(second, crc32c(first)) == whole
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == whole


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_same_arithmetic_gives_zlibs_crc32(first: bytes, second: bytes) -> None:
    combined = crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_combining_many_pieces_in_order(pieces: list[bytes]) -> None:
    value = 0
    for piece in pieces:
        value = crc32c_combine(value, crc32c(piece), len(piece))
    assert value == crc32c(b"".join(pieces))


@pytest.mark.parametrize("count", [0, 1, 31, 4095, 4096, 4097, 8192, 8193, 100_003, 1 << 20])
@pytest.mark.parametrize("before", [b"", b"before"])
def test_zeros_without_the_zeros(count: int, before: bytes) -> None:
    assert crc32c_of_zeros(count, crc32c(before)) == crc32c(before + bytes(count))


def test_very_long_runs_are_fast() -> None:
    half = crc32c_of_zeros(1 << 40)
    assert crc32c_of_zeros(1 << 41) == crc32c_combine(half, half, 1 << 40)


# -- chunks ------------------------------------------------------------------------------------------------------

MIB = 1 << 20


@given(st.lists(st.integers(0, 5 * MIB), max_size=8))
def test_chunks_cover_each_tensor_once(sizes: list[int]) -> None:
    chunking = Chunking.for_sizes(sizes)
    assert chunking.chunk_bytes == MIN_CHUNK_BYTES
    assert chunking.count == sum(-(-size // MIB) for size in sizes)
    for tensor, size in enumerate(sizes):
        chunks = range(chunking.first[tensor + 1] - chunking.first[tensor])
        bounds = [chunking.chunk_range(tensor, chunk) for chunk in chunks]
        assert sum(end - start for start, end in bounds) == size
        assert all(0 < end - start <= MIB for start, end in bounds)


@pytest.mark.parametrize("size", [1, MIB, 65_536 * MIB, 65_536 * MIB + 1, 1 << 50])
def test_few_enough_chunks(size: int) -> None:
    chunking = Chunking.for_sizes([size])
    assert chunking.count <= MAX_CHUNKS
    assert chunking.chunk_bytes == MIB or Chunking.of(chunking.chunk_bytes // 2, [size]).count > MAX_CHUNKS


def test_more_tensors_than_chunks_allowed_get_one_chunk_each() -> None:
    sizes = [3 * MIB] * 70_000
    chunking = Chunking.for_sizes(sizes)
    assert chunking.count == 70_000


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 100))
def test_pieces_end_at_chunk_borders(start: int, end: int, chunk_bytes: int) -> None:
    chunking = Chunking.of(chunk_bytes, [1000])
    pieces = list(chunking.cut(0, start, end))
    covered = [position for _, a, b in pieces for position in range(a, b)]
    assert covered == list(range(start, end))
    for chunk, a, b in pieces:
        low, high = chunking.chunk_range(0, chunk)
        assert low <= a < b <= high


def test_checksums_of_one_tensor() -> None:
    import numpy as np

    chunking = Chunking.of(10, [25, 0, 11])
    values = np.arange(5, dtype=np.uint32)
    assert chunking.of_tensor(0, values).tolist() == [0, 1, 2]
    assert chunking.of_tensor(1, values).tolist() == []
    assert chunking.of_tensor(2, values).tolist() == [3, 4]
