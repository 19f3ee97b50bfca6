"""Damage done to valid files, and what must come of it: a FormatError, or exactly the content that was stored."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from asyncckpt.errors import FormatError

HOSTILE_NUMBERS = (0, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "formats"

Read = Callable[[bytes], Any]


def outcome(read: Read, data: bytes) -> Any:
    """What reading gives; None for a FormatError. Any other error is the test's failure."""
    try:
        return read(data)
    except FormatError as error:
        assert str(error), type(error)
        assert "\n" not in str(error)
        return None


def bit_flips(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Every single bit of the file, flipped: (byte, what was done, the file)."""
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            yield position, f"bit {bit} of byte {position}", bytes(damaged)


def with_number(data: bytes, at: int, layout: str, value: int) -> bytes:
    """The file with one of its numbers replaced, cut to the number's width."""
    size = struct.calcsize(layout)
    number = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return data[:at] + number + data[at + size :]


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """One to four of: flip, cut, extend, swap two runs, overwrite a number."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(damaged) - 1)))
        kind = draw(st.sampled_from(("flip", "cut", "extend", "swap", "number")))
        if kind == "flip" and damaged:
            damaged[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del damaged[at:]
        elif kind == "extend":
            damaged += draw(st.binary(min_size=1, max_size=80))
        elif kind == "swap":
            other = draw(st.integers(0, max(0, len(damaged) - 1)))
            size = draw(st.integers(1, 16))
            damaged[at : at + size], damaged[other : other + size] = (
                damaged[other : other + size],
                damaged[at : at + size],
            )
        elif damaged:
            width = draw(st.sampled_from((2, 4, 8)))
            value = draw(st.sampled_from(HOSTILE_NUMBERS)) & (1 << 8 * width) - 1
            damaged[at : at + width] = value.to_bytes(width, "little")
    return bytes(damaged)


def dump_lines(page: str) -> dict[int, bytes]:
    """The hex dump of a format's page, by offset: lines `00000010  50 43 …  |PC…| comment`."""
    lines = {}
    for line in (DOCS / page).read_text().splitlines():
        offset, gap, rest = line.partition("  ")
        if gap and len(offset) == 8 and not offset.strip("0123456789abcdef") and "|" in rest:
            lines[int(offset, 16)] = bytes.fromhex(rest.split("|")[0])
    return lines


def assert_dump_matches(page: str, golden: bytes, *, complete: bool = True) -> None:
    """Every dumped line equals the golden file there; zeros only may be left out."""
    lines = dump_lines(page)
    assert lines, f"{page} has no hex dump"
    shown = bytearray(len(golden))
    for offset, data in lines.items():
        assert golden[offset : offset + len(data)] == data, f"{page} differs at {offset:08x}"
        shown[offset : offset + len(data)] = data
    assert not complete or bytes(shown) == golden, f"{page} leaves out bytes that are not zero"
