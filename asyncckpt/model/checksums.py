"""CRC32C and CRC32: over views, over chunks, and combined without reading the bytes again."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module

import crc32c as _crc32c
import numpy as np
from numpy.typing import NDArray

from asyncckpt.errors import LayoutError
from asyncckpt.model.buffers import Buffer

__all__ = [
    "MAX_CHUNKS",
    "MIN_CHUNK_BYTES",
    "Buffer",
    "Checksums",
    "Chunking",
    "crc32",
    "crc32_combine",
    "crc32_of_region",
    "crc32_of_zeros",
    "crc32c",
    "crc32c_combine",
    "crc32c_of_zeros",
]

Checksums = NDArray[np.uint32]

MIN_CHUNK_BYTES = 1024 * 1024
MAX_CHUNKS = 65_536
_MOST_BYTES = 1 << 62
_CRC32C_POLYNOMIAL = 0x82F63B78
_CRC32_POLYNOMIAL = 0xEDB88320


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC32C of `data`, continued from `value`. Releases the GIL for large views."""
    return _crc32c.crc32c(data, value)


def crc32(data: Buffer, value: int = 0) -> int:
    """The CRC32 of `data`, continued from `value`. Releases the GIL for large views."""
    return _crc32_function()(data, value)


@lru_cache(maxsize=1)
def _crc32_function() -> Callable[[Buffer, int], int]:
    """zlib-ng's where it is installed: the same value, ten times as fast as most builds of zlib."""
    try:
        function: Callable[[Buffer, int], int] = import_module("zlib_ng.zlib_ng").crc32
    except ImportError:
        return zlib.crc32
    return function


def crc32c_of_zeros(count: int, value: int = 0) -> int:
    """The CRC32C of `count` zero bytes, continued from `value`, without touching that many bytes."""
    if count <= len(_ZEROS):
        return crc32c(_ZEROS[:count], value)
    return crc32c_combine(value, _crc_of_zeros(count), count)


def crc32_of_zeros(count: int, value: int = 0) -> int:
    """The same for CRC32."""
    while count > len(_ZEROS):
        half = 1 << (count.bit_length() - 2)
        value = crc32_combine(value, _crc32_of_zeros(half), half)
        count -= half
    return crc32(_ZEROS[:count], value)


def crc32_of_region(runs: Iterable[tuple[int, int, int]], start: int, end: int) -> int:
    """The CRC32 of bytes [start, end), made of runs (start, end, CRC32) that do not overlap, and zeros in between."""
    value, position = 0, start
    for run_start, run_end, own in sorted(runs):
        value = crc32_combine(crc32_of_zeros(run_start - position, value), own, run_end - run_start)
        position = run_end
    return crc32_of_zeros(end - position, value)


def crc32c_combine(first: int, second: int, second_size: int) -> int:
    """The CRC32C of two runs of bytes, one after the other, from the CRC32C of each."""
    return _combine(first, second, second_size, _CRC32C_POLYNOMIAL)


def crc32_combine(first: int, second: int, second_size: int) -> int:
    """The same for CRC32."""
    return _combine(first, second, second_size, _CRC32_POLYNOMIAL)


def _combine(first: int, second: int, second_size: int, polynomial: int) -> int:
    if second_size == 0:
        return first
    if first == 0:
        return second
    return _multiply(_power_of_x(second_size, polynomial), first, polynomial) ^ second


_ZEROS = memoryview(bytes(4096))


@lru_cache(maxsize=256)
def _crc_of_zeros(count: int) -> int:
    # Zeros double cheaply: crc(2n) = combine(crc(n), crc(n)).
    if count <= len(_ZEROS):
        return crc32c(_ZEROS[:count])
    half = count // 2
    value = crc32c_combine(_crc_of_zeros(half), _crc_of_zeros(half), half)
    return crc32c(b"\0", value) if count % 2 else value


@lru_cache(maxsize=64)
def _crc32_of_zeros(count: int) -> int:
    """Of a power of two."""
    if count <= len(_ZEROS):
        return crc32(_ZEROS[:count])
    half = _crc32_of_zeros(count // 2)
    return crc32_combine(half, half, count // 2)


def _multiply(a: int, b: int, polynomial: int) -> int:
    """The product of two polynomials over GF(2), bit-reversed, modulo the CRC's polynomial."""
    product = 0
    mask = 1 << 31
    while a:
        if a & mask:
            product ^= b
            a ^= mask
        mask >>= 1
        b = (b >> 1) ^ polynomial if b & 1 else b >> 1
    return product


@lru_cache(maxsize=8192)
def _power_of_x(size: int, polynomial: int) -> int:
    """x to the power of 8 × size: the operator that moves a CRC past `size` bytes."""
    result = 1 << 31
    square = _square_powers(polynomial)
    exponent, bit = size, 3
    while exponent:
        if exponent & 1:
            result = _multiply(square[bit % 32], result, polynomial)
        exponent >>= 1
        bit += 1
    return result


@lru_cache(maxsize=2)
def _square_powers(polynomial: int) -> tuple[int, ...]:
    powers = [1 << 30]
    for _ in range(31):
        powers.append(_multiply(powers[-1], powers[-1], polynomial))
    return tuple(powers)


def chunk_checksums(data: Buffer, chunk_bytes: int) -> Checksums:
    """The CRC32C of every chunk of bytes that are there whole."""
    view = memoryview(data)
    values = [crc32c(view[start : start + chunk_bytes]) for start in range(0, view.nbytes, chunk_bytes)]
    return np.array(values, np.uint32)


@dataclass(frozen=True, slots=True)
class Chunking:
    """How the tensors of one file are cut into checksum chunks, each counted from its tensor's start.

    `first[i]` is the position of tensor i's first chunk in the file's flat list of checksums; `positions` are the same
    numbers as a column.
    """

    chunk_bytes: int
    sizes: tuple[int, ...]
    first: tuple[int, ...]
    positions: NDArray[np.int64] = field(compare=False, repr=False)

    @classmethod
    def for_sizes(cls, sizes: Iterable[int]) -> Chunking:
        """Chunks of 1 MiB, doubled until there are at most 65 536 of them (or one for each tensor).

        Raises LayoutError as `of` does.
        """
        sizes = tuple(sizes)
        column = _column(sizes)
        largest = int(column.max(initial=0))
        chunk = MIN_CHUNK_BYTES
        while chunk < largest and int(_counts(column, chunk).sum()) > MAX_CHUNKS:
            chunk *= 2
        return cls.of(chunk, sizes)

    @classmethod
    def of(cls, chunk_bytes: int, sizes: Sequence[int]) -> Chunking:
        """Chunks of that size. Raises LayoutError for sizes that no file can have."""
        positions = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(_counts(_column(sizes), chunk_bytes), out=positions[1:])
        return cls(chunk_bytes, tuple(sizes), tuple(positions.tolist()), positions)

    @property
    def count(self) -> int:
        return self.first[-1]

    def chunk_range(self, tensor: int, chunk: int) -> tuple[int, int]:
        start = chunk * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.sizes[tensor])

    def of_tensor(self, tensor: int, checksums: Checksums) -> Checksums:
        return checksums[self.first[tensor] : self.first[tensor + 1]]

    def cut(self, tensor: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Cut [start, end) of a tensor at its chunk borders: (chunk, piece start, piece end)."""
        while start < end:
            chunk = start // self.chunk_bytes
            stop = min(end, (chunk + 1) * self.chunk_bytes)
            yield chunk, start, stop
            start = stop


def _column(sizes: Sequence[int]) -> NDArray[np.int64]:
    total = sum(sizes)
    if total > _MOST_BYTES:
        raise LayoutError(f"the tensors have {total} bytes in all, more than any file")
    return np.array(sizes, np.int64)


def _counts(sizes: NDArray[np.int64], chunk_bytes: int) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = -(-sizes // chunk_bytes)
    return counts
