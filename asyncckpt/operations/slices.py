"""Slices of a tensor as byte ranges: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from asyncckpt.errors import MismatchError
from asyncckpt.model.boxes import Shape
from asyncckpt.model.ranges import ByteRange

Index = int | slice
_MOST_RUNS = 4096
"""More runs than this are read as whole rows: the bookkeeping would cost more than the bytes."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A slice of a C-contiguous tensor.

    `rows` of the first dimension are needed, `runs` are the bytes of the tensor that hold the selected items, and
    `index` picks them out of an array that holds just those rows.
    """

    rows: slice
    runs: tuple[ByteRange, ...]
    index: tuple[Index, ...]


def select(shape: Shape, item_bytes: int, index: Sequence[Index] | Index) -> Selection:
    """Raises MismatchError for an index that does not fit the shape."""
    whole = _normal(shape, index)
    if not shape:
        return Selection(slice(0, 1), (ByteRange(0, item_bytes),), ())
    bounds = [_bounds(part, n) for part, n in zip(whole, shape, strict=True)]
    first, last = bounds[0]
    runs = tuple(_runs(shape, item_bytes, bounds)) if all(b > a for a, b in bounds) else ()
    return Selection(slice(first, last), runs, (_within_rows(whole[0], first), *whole[1:]))


def _normal(shape: Shape, index: Sequence[Index] | Index) -> list[Index]:
    parts = [index] if isinstance(index, int | slice) else list(index)
    if len(parts) > len(shape):
        raise MismatchError(f"{len(parts)} indices for a tensor of rank {len(shape)}")
    parts += [slice(None)] * (len(shape) - len(parts))
    normal: list[Index] = []
    for part, size in zip(parts, shape, strict=True):
        if isinstance(part, slice):
            normal.append(part)
            continue
        position = part + size if part < 0 else part
        if not 0 <= position < size:
            raise MismatchError(f"index {part} is outside a dimension of {size}")
        normal.append(position)
    return normal


def _bounds(part: Index, size: int) -> tuple[int, int]:
    """The smallest and one past the largest position that is selected."""
    if isinstance(part, int):
        return part, part + 1
    positions = range(*part.indices(size))
    if not positions:
        return 0, 0
    low, high = min(positions[0], positions[-1]), max(positions[0], positions[-1])
    return low, high + 1


def _within_rows(part: Index, first: int) -> Index:
    """The same selection in an array that holds just the needed rows: from its one end to the other."""
    return part - first if isinstance(part, int) else slice(None, None, part.step)


def _runs(shape: Shape, item_bytes: int, bounds: Sequence[tuple[int, int]]) -> Iterator[ByteRange]:
    """Runs of bytes that cover the bounds, as long as possible."""
    cut = len(shape)
    while cut > 1 and bounds[cut - 1] == (0, shape[cut - 1]):
        cut -= 1
    while cut > 1 and prod(b - a for a, b in bounds[: cut - 1]) > _MOST_RUNS:
        cut -= 1
    strides = [item_bytes * prod(shape[i + 1 :]) for i in range(cut)]
    low, high = bounds[cut - 1]
    outer = bounds[: cut - 1]
    for position in _positions(outer):
        base = sum(p * s for p, s in zip(position, strides, strict=False))
        yield ByteRange(base + low * strides[-1], base + high * strides[-1])


def _positions(bounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    if not bounds:
        yield ()
        return
    low, high = bounds[0]
    for first in range(low, high):
        for rest in _positions(bounds[1:]):
            yield (first, *rest)
