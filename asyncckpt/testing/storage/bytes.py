"""Bytes for tests: always the same, and in parts."""

from __future__ import annotations

import random


def pattern(size: int, seed: int) -> bytes:
    """So many bytes that look random and are always the same."""
    return random.Random(seed).randbytes(size)


def cut(data: bytes, size: int) -> list[bytes]:
    """The data in parts of that size; the last may be shorter."""
    return [data[start : start + size] for start in range(0, len(data), size)]
