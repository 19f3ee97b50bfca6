"""Subscripts of a tensor, as numpy takes them, as positions in each dimension: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import Annotated, Any

import numpy as np

from asyncckpt.arguments import Called
from asyncckpt.errors import MismatchError
from asyncckpt.model.boxes import Shape

Subscript = Annotated[
    int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...],
    Called("integers, slices and '...', alone or in a tuple"),
]
"""What picks a slice out of a tensor, as in numpy: no lists, no masks, no new dimensions."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a subscript picks out of a tensor: `positions` in each dimension, ascending.

    `index` is the subscript with one part for each dimension. `view` turns an array of all the picked items, in
    ascending order and with every dimension, into what numpy would give, and `array` does the opposite.
    """

    index: tuple[int | slice, ...]
    positions: tuple[range, ...]
    _backwards: tuple[slice, ...]

    @property
    def shape(self) -> Shape:
        """The shape of the picked items, with every dimension."""
        return tuple(map(len, self.positions))

    def of(self, array: np.ndarray) -> np.ndarray:
        """What is picked out of an array of the tensor's shape; a view of it, also of a single item."""
        return array[(*self.index, ...)]

    def view(self, picked: np.ndarray) -> np.ndarray:
        dropped = tuple(
            0 if isinstance(part, int) else way for part, way in zip(self.index, self._backwards, strict=True)
        )
        return picked[(*dropped, ...)]

    def array(self, destination: np.ndarray) -> np.ndarray:
        """Raises MismatchError where the destination has another shape than what is picked."""
        expected = tuple(
            len(positions)
            for part, positions in zip(self.index, self.positions, strict=True)
            if not isinstance(part, int)
        )
        if destination.shape != expected:
            raise MismatchError(
                f"the slice has the shape {list(expected)}, the array to fill {list(destination.shape)}"
            )
        whole: tuple[Any, ...] = tuple(
            np.newaxis if isinstance(part, int) else slice(None) for part in self.index
        )
        backwards: tuple[Any, ...] = self._backwards
        return destination[(*whole, ...)][(*backwards, ...)]


def select(shape: Shape, subscript: Subscript) -> Selection:
    """Raises MismatchError for a subscript that does not fit the shape, or of another kind."""
    parts = _spread(subscript if isinstance(subscript, tuple) else (subscript,), len(shape))
    index = tuple(_within(part, size) for part, size in zip(parts, shape, strict=True))
    found = [_positions(part, size) for part, size in zip(index, shape, strict=True)]
    backwards = tuple(slice(None, None, -1) if p.step < 0 else slice(None) for p in found)
    return Selection(index, tuple(p[::-1] if p.step < 0 else p for p in found), backwards)


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


def _positions(part: int | slice, size: int) -> range:
    return range(part, part + 1) if isinstance(part, int) else range(*part.indices(size))
