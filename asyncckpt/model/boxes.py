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

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that cut this box out of an array that covers `outer`."""
        return tuple(
            slice(o - base, o - base + n)
            for o, base, n in zip(self.origin, outer.origin, self.shape, strict=True)
        )


def whole(shape: Shape) -> Box:
    """The box of a tensor that is not cut."""
    return Box((0,) * len(shape), shape)


def tiles(boxes: Sequence[Box], shape: Shape) -> bool:
    """Whether the boxes cover a tensor of this shape exactly, without overlap."""
    outer = whole(shape)
    if any(len(box.shape) != len(shape) or not _inside(box, outer) for box in boxes):
        return False
    if sum(box.volume for box in boxes) != outer.volume:
        return False
    return not any(a.intersect(b) for a, b in _near_pairs(boxes))


def _inside(box: Box, outer: Box) -> bool:
    return all(o >= 0 for o in box.origin) and all(map(int.__le__, box.end, outer.end))


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
