"""The ways to damage a file, shared by the tests of all formats, and the comparison of a dump with its file."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hypothesis import strategies as st

from asyncckpt.errors import FormatError

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
HOSTILE_FILE_NAMES = (
    "", ".", "..", "/", "../x", "/etc/passwd", "a/b", "folder/", "a\\b", "..\\x", "\\\\host\\x", "x\0", "x\n", "\x7fx",
    "\ud800", "x\udfff", "x" * 256, "ä" * 128, "x" * 10_000,
)  # fmt: skip
"""What no format takes for the name of a file beside it."""
HOSTILE_NUMBERS = (0, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)

_DUMP_LINE = re.compile(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ?){1,16}) *\|([^\n]*?)\|(?: |$)", re.MULTILINE)
DataT = TypeVar("DataT")
T = TypeVar("T")


def outcome(
    read: Callable[[DataT], T], data: DataT, *, refusals: tuple[type[Exception], ...] = (FormatError,)
) -> T | None:
    """What reading gives; None where it is refused with a FormatError. Any other error is the test's."""
    try:
        return read(data)
    except refusals:
        return None


def assert_read_or_refused(
    read: Callable[[DataT], object], data: DataT, *, refusals: tuple[type[Exception], ...] = (FormatError,)
) -> None:
    """Reading ends in some value, or in a FormatError of one line. Any other error is the test's."""
    refusal = ""
    try:
        read(data)
    except refusals as error:
        refusal = str(error)
    assert "\n" not in refusal, refusal


def bit_flips(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """The file with every single bit flipped: where, in words, and the bytes."""
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            yield position, f"bit {bit} of byte {position}", bytes(damaged)


def with_number(data: bytes, at: int, layout: str, value: int) -> bytes:
    """The file with the number at `at` replaced, cut to the width of the struct code `layout`."""
    width = struct.calcsize(layout)
    number = (value & ((1 << 8 * width) - 1)).to_bytes(width, "big" if layout.startswith(">") else "little")
    return data[:at] + number + data[at + width :]


def mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """One to three flips, cuts, insertions, swaps, hostile numbers, truncations and extensions of a file."""
    position = st.integers(0, len(data))
    steps: list[st.SearchStrategy[Callable[[bytes], bytes]]] = [
        st.builds(_flip, position, st.integers(1, 255)),
        st.builds(_cut, position, st.integers(1, 40)),
        st.builds(_insert, position, st.binary(min_size=1, max_size=12)),
        st.builds(_swap, position, position, st.integers(1, 16)),
        st.builds(_number, position, st.sampled_from("BHIQ"), st.sampled_from(HOSTILE_NUMBERS)),
        st.builds(_cut, position, st.just(len(data))),
        st.builds(_insert, st.just(1 << 40), st.binary(min_size=1, max_size=80)),
    ]

    def apply(changes: list[Callable[[bytes], bytes]]) -> bytes:
        damaged = data
        for change in changes:
            damaged = change(damaged)
        return damaged

    return st.lists(st.one_of(steps), min_size=1, max_size=3).map(apply)


def _flip(position: int, mask: int) -> Callable[[bytes], bytes]:
    return lambda data: (
        data[:position] + bytes(b ^ mask for b in data[position : position + 1]) + data[position + 1 :]
    )


def _cut(position: int, size: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + data[position + size :]


def _insert(position: int, piece: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + piece + data[position:]


def _number(position: int, code: str, value: int) -> Callable[[bytes], bytes]:
    return lambda data: with_number(data, position, f"<{code}", value)


def _swap(first: int, second: int, size: int) -> Callable[[bytes], bytes]:
    a, b = sorted((first, second))

    def change(data: bytes) -> bytes:
        if a + size > b or b + size > len(data):
            return data
        return data[:a] + data[b : b + size] + data[a + size : b] + data[a : a + size] + data[b + size :]

    return change


def assert_dump_matches(page: str, data: bytes, *, heading: str | None = None) -> None:
    """Compare the hex dump on a page of docs/formats, or under one heading of it, with a file, byte for byte.

    Zeros may be left out.
    """
    text = (ROOT / "docs" / "formats" / page).read_text(encoding="utf-8")
    if heading is not None:
        text = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    position = 0
    for line in _DUMP_LINE.finditer(text):
        offset, pairs, shown = int(line[1], 16), bytes.fromhex(line[2]), line[3]
        assert offset >= position, f"{page}: a line begins at {offset:08x}, {position:08x} was expected"
        assert not any(data[position:offset]), f"{page}: before {offset:08x} more than zeros are left out"
        position = offset
        assert pairs == data[position : position + len(pairs)], f"{page}: line {offset:08x} has other bytes"
        letters = "".join(chr(b) if 0x20 <= b < 0x7F else "." for b in pairs)
        assert shown == letters, f"{page}: line {offset:08x} has other letters"
        position += len(pairs)
    assert position == len(data), f"{page}: the dump ends at {position}, the file at {len(data)}"
