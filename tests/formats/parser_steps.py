"""Drives the steps of a parser over bytes, or over a file too large to exist, of which only pieces are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from asyncckpt.formats.kit.index import Need
from asyncckpt.formats.kit.steps import Parsed, Steps, advance, clip
from asyncckpt.model.ranges import ByteRange

R = TypeVar("R")


def drive(steps: Steps[R], data: bytes | Callable[[int, int], bytes], size: int) -> R:
    """Run a parser over bytes, or over a function that makes them up."""
    return drive_noting(steps, data, size)[0]


def drive_noting(
    steps: Steps[R], data: bytes | Callable[[int, int], bytes], size: int
) -> tuple[R, list[ByteRange]]:
    """The same, and the bytes that it asked for, one range for each need."""
    asked = []

    def known(need: Need) -> memoryview:
        start, end = clip(need, size)
        asked.append(ByteRange(start, end))
        return memoryview(data[start:end] if isinstance(data, bytes) else data(start, end))

    done = advance(steps, None, known)
    assert isinstance(done, Parsed)
    return done.value, asked


def view_of(pieces: Mapping[int, bytes]) -> Callable[[int, int], bytes]:
    """The bytes of a file by the places of its pieces; all the others are zeros."""

    def fetch(start: int, end: int) -> bytes:
        data = bytearray(end - start)
        for at, piece in pieces.items():
            first, last = max(start, at), min(end, at + len(piece))
            if first < last:
                data[first - start : last - start] = piece[first - at : last - at]
        return bytes(data)

    return fetch
