"""Boxes: where a piece lies in its global tensor. Plain geometry over tuples of integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """The region of a tensor that begins at `origin` and has `shape`."""

    origin: Shape
    shape: Shape

    @property
    def end(self) -> Shape:
        return tuple(o + n for o, n in zip(self.origin, self.shape, strict=True))

    @property
    def volume(self) -> int:
        return prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """The common region, or None where there is none."""
        origin = tuple(map(max, self.origin, other.origin))
        end = tuple(map(min, self.end, other.end))
        shape = tuple(e - o for o, e in zip(origin, end, strict=True))
        return Box(origin, shape) if all(n > 0 for n in shape) else None

    def inside(self, outer: Box) -> bool:
        """Whether no part of it lies outside the other."""
        return (
            len(self.shape) == len(outer.shape)
            and all(map(int.__ge__, self.origin, outer.origin))
            and all(map(int.__le__, self.end, outer.end))
        )

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that cut this box out of an array that covers `outer`."""
        return tuple(
            slice(o - base, o - base + n)
            for o, base, n in zip(self.origin, outer.origin, self.shape, strict=True)
        )


def whole(shape: Shape) -> Box:
    """The box of a tensor that is not cut."""
    return Box((0,) * len(shape), shape)


def overlap(positions: range, low: int, high: int) -> slice | None:
    """Which of some ascending positions, by their number, lie in [low, high); None where none does."""
    first = max(0, -((positions.start - low) // positions.step))
    last = min(len(positions), -((positions.start - high) // positions.step))
    return slice(first, last) if first < last else None


def boxes_of_run(shape: Shape, start: int, end: int) -> Iterator[Box]:
    """A run of items [start, end) of an array in C order as boxes, in order: each is a run of its own.

    There are at most two for each dimension: rows that are cut, and whole ones between them.
    """
    if start >= end:
        return
    if not shape:
        yield Box((), ())
        return
    row_items = prod(shape[1:])
    first, into_first = divmod(start, row_items)
    last, into_last = divmod(end, row_items)
    if into_first:
        stop = into_last if first == last else row_items
        yield from _in_row(first, boxes_of_run(shape[1:], into_first, stop))
        first += 1
    if first < last:
        yield Box((first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:]))
    if first <= last and into_last:
        yield from _in_row(last, boxes_of_run(shape[1:], 0, into_last))


def _in_row(row: int, boxes: Iterable[Box]) -> Iterator[Box]:
    return (Box((row, *box.origin), (1, *box.shape)) for box in boxes)


def tiles(boxes: Sequence[Box], shape: Shape) -> bool:
    """Whether the boxes cover a tensor of this shape exactly, without overlap."""
    outer = whole(shape)
    if not all(box.inside(outer) for box in boxes):
        return False
    if sum(box.volume for box in boxes) != outer.volume:
        return False
    return not any(a.intersect(b) for a, b in _near_pairs(boxes))


def _near_pairs(boxes: Iterable[Box]) -> Iterator[tuple[Box, Box]]:
    """Pairs whose first dimensions overlap: a sweep, so that many pieces stay cheap to check."""
    active: list[Box] = []
    for box in sorted(boxes):
        if not box.shape:
            yield from ((other, box) for other in active)
            active.append(box)
            continue
        active = [other for other in active if other.end[0] > box.origin[0]]
        yield from ((other, box) for other in active)
        active.append(box)
