"""Slices of a tensor as byte ranges: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from types import EllipsisType
from typing import Annotated, Any

import numpy as np

from asyncckpt.arguments import Called
from asyncckpt.errors import MismatchError
from asyncckpt.model.boxes import Shape
from asyncckpt.model.ranges import ByteRange

Index = Annotated[
    int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...],
    Called("integers, slices and '...', alone or in a tuple"),
]
"""What picks a slice out of a tensor, as in numpy: no lists, no masks, no new dimensions."""
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
    index: tuple[int | slice | EllipsisType, ...]


def select(shape: Shape, item_bytes: int, index: Index) -> Selection:
    """Raises MismatchError for an index that does not fit the shape."""
    whole = normal_index(shape, index)
    if not shape:
        return Selection(slice(0, 1), (ByteRange(0, item_bytes),), ())
    # What numpy makes of '...' beyond the dimensions it stands for: an array, also where all else is integers.
    rest = (...,) if _has_ellipsis(_parts(index)) else ()
    bounds = [_bounds(part, n) for part, n in zip(whole, shape, strict=True)]
    first, last = bounds[0]
    runs = tuple(_runs(shape, item_bytes, bounds)) if all(b > a for a, b in bounds) else ()
    return Selection(slice(first, last), runs, (_within_rows(whole[0], first), *whole[1:], *rest))


def normal_index(shape: Shape, index: Index) -> tuple[int | slice, ...]:
    """One integer that is not negative, or one slice, for each dimension.

    Raises MismatchError for an index that does not fit the shape, or of another kind.
    """
    parts = _spread(_parts(index), len(shape))
    return tuple(_within(part, size) for part, size in zip(parts, shape, strict=True))


def _parts(index: Index) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _has_ellipsis(parts: tuple[Any, ...]) -> bool:
    return any(part is ... for part in parts)


def _spread(parts: tuple[Any, ...], rank: int) -> list[Any]:
    """A part for each dimension: '...', or else the end, stands for all that are not named."""
    places = [at for at, part in enumerate(parts) if part is ...]
    if len(places) > 1:
        raise MismatchError("an index can have only one '...'")
    at = places[0] if places else len(parts)
    before, after = list(parts[:at]), list(parts[at + 1 :])
    named = len(before) + len(after)
    if named > rank:
        raise MismatchError(f"{named} indices for a tensor of rank {rank}")
    return [*before, *[slice(None)] * (rank - named), *after]


def _within(part: Any, size: int) -> int | slice:
    if isinstance(part, slice):
        try:
            part.indices(size)
        except (TypeError, ValueError) as error:
            raise MismatchError(f"{part} is not a slice of a dimension: {error}") from error
        return part
    if isinstance(part, bool | np.bool_) or not isinstance(part, int | np.integer):
        raise MismatchError(
            f"an index is made of integers, slices and '...', not of {type(part).__name__}: "
            "read the tensor and index it"
        )
    position = int(part) + size if part < 0 else int(part)
    if not 0 <= position < size:
        raise MismatchError(f"index {part} is outside a dimension of {size}")
    return position


def _bounds(part: int | slice, size: int) -> tuple[int, int]:
    """The smallest and one past the largest position that is selected."""
    if isinstance(part, int):
        return part, part + 1
    positions = range(*part.indices(size))
    if not positions:
        return 0, 0
    low, high = min(positions[0], positions[-1]), max(positions[0], positions[-1])
    return low, high + 1


def _within_rows(part: int | slice, first: int) -> int | slice:
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
