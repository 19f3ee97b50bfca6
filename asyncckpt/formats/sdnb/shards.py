"""The names of an SDNB set, `base.shard{i}-of-{N}.sdnb`, and which arrays go into which of its files."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asyncckpt.errors import LayoutError, LimitExceededError

EXTENSION = ".sdnb"
MAX_SHARDS = 10_000
_NAME = re.compile(r"(.+)\.shard(0|[1-9][0-9]{0,8})-of-([1-9][0-9]{0,8})\.sdnb", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShardName:
    """A set of `count` files; shard 0, which holds the graph, is one of them."""

    base: str
    count: int
    index: int = 0

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """The set that a file belongs to by its name; None for any other name. Raises LayoutError."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        base, index, count = match[1], int(match[2]), int(match[3])
        if index >= count:
            raise LayoutError(f"{name!r} can't be shard {index} of {count}")
        if count > MAX_SHARDS:
            raise LimitExceededError(f"{name!r} belongs to {count} shards, at most {MAX_SHARDS} are read")
        return cls(base, count, index)

    @classmethod
    def for_base(cls, name: str, count: int) -> ShardName:
        """The set that is written when the caller chose this name. Raises LimitExceededError."""
        if count > MAX_SHARDS:
            raise LimitExceededError(
                f"{count} shards would be written, at most {MAX_SHARDS}: raise shard_limit_bytes"
            )
        return cls(_base(name), count)

    def shard(self, index: int) -> str:
        return f"{self.base}.shard{index}-of-{self.count}{EXTENSION}"

    @staticmethod
    def prefix_of(name: str) -> str:
        return f"{_base(name)}.shard0-of-"

    @staticmethod
    def leaders(name: str, present: Iterable[str]) -> list[str]:
        matches = ((other, _NAME.fullmatch(other)) for other in present)
        return sorted(other for other, m in matches if m and m[1] == _base(name) and m[2] == "0")


def _base(name: str) -> str:
    match = _NAME.fullmatch(name)
    return match[1] if match else name.removesuffix(EXTENSION)


def assign_shards(sizes: Sequence[int], *, shards: int | None, limit_bytes: int) -> list[list[int]] | None:
    """Which tensors, by number, go into which shard of arrays; None for a single file.

    By size, largest first. With `shards` (which counts shard 0) the arrays are spread evenly; otherwise each shard
    is filled up to the limit, and an array beyond it gets a shard of its own.
    """
    if shards == 1 or (shards is None and sum(sizes) <= limit_bytes):
        return None
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    groups = _filled(order, sizes, limit_bytes) if shards is None else _spread(order, sizes, shards - 1)
    return [sorted(group) for group in groups]


def _filled(order: Sequence[int], sizes: Sequence[int], limit_bytes: int) -> list[list[int]]:
    groups: list[list[int]] = []
    room = 0
    for number in order:
        if not groups or sizes[number] > room:
            groups.append([])
            room = limit_bytes
        groups[-1].append(number)
        room -= sizes[number]
    return groups


def _spread(order: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for number in order:
        load, index = heapq.heappop(loads)
        groups[index].append(number)
        heapq.heappush(loads, (load + sizes[number], index))
    return groups
