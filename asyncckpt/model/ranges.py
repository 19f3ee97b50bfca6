"""Byte ranges, and the pure planner that merges near ones into few requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class ByteRange(NamedTuple):
    """The bytes from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class MergedRange:
    """One request that serves several ranges; `members` are indices into the caller's list, by start."""

    start: int
    end: int
    members: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """How near ranges must be, and how large a request may grow, to be fetched as one.

    `max_gap` bounds the bytes fetched for nothing between two neighbours; `waste` bounds them as a share of
    what was asked for, so that a partial read never fetches much more than its own bytes.
    """

    max_gap: int = 64 * 1024
    max_request: int = 32 * 1024 * 1024
    waste: float = 0.04


def merge_ranges(ranges: Sequence[ByteRange], policy: MergePolicy | None = None) -> list[MergedRange]:
    """Group `ranges` into requests. Empty ranges are left out; overlapping ones share a request."""
    return list(_merge(ranges, policy or MergePolicy()))


def _merge(ranges: Sequence[ByteRange], policy: MergePolicy) -> Iterator[MergedRange]:
    order = sorted((i for i, r in enumerate(ranges) if r.end > r.start), key=lambda i: ranges[i])
    members: list[int] = []
    start = end = useful = 0
    for i in order:
        candidate = ranges[i]
        gap = candidate.start - end
        grown = max(end, candidate.end) - start
        gained = useful + max(0, candidate.end - max(end, candidate.start))
        fits = gap <= 0 or (gap <= policy.max_gap and grown - gained <= policy.waste * gained)
        if members and fits and grown <= policy.max_request:
            members.append(i)
            end, useful = max(end, candidate.end), gained
            continue
        if members:
            yield MergedRange(start, end, tuple(members))
        members, start, end = [i], candidate.start, candidate.end
        useful = candidate.size
    if members:
        yield MergedRange(start, end, tuple(members))
