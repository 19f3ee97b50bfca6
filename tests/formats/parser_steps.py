"""Drives the steps of a parser over bytes, or over a file too large to exist, of which only pieces are there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from asyncckpt.formats.kit.index import Need


def drive(
    steps: Generator[Need, memoryview, Any], data: bytes | Callable[[int, int], bytes], size: int
) -> Any:
    """Run a parser over bytes, or over a function that makes them up."""
    try:
        need = next(steps)
        while True:
            start = min(size, need.start if need.start >= 0 else max(0, size + need.start))
            end = min(size, start + need.size)
            piece = data[start:end] if isinstance(data, bytes) else data(start, end)
            need = steps.send(memoryview(piece))
    except StopIteration as stop:
        return stop.value


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
