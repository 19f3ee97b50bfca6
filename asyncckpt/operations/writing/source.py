"""Where the bytes of tensors come from while a checkpoint is written: memory, or another checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from asyncckpt.model.checksums import Buffer, Checksums
from asyncckpt.model.tensors import Column
from asyncckpt.operations.writing.cutting import Run, zeros

ALIGNMENT = 64
"""Tensors in a pool begin at multiples of this, with zeros behind them, as they do in most formats."""


class RunBytes(NamedTuple):
    """The bytes of a run of small tensors: of each tensor, and as they stand in the file."""

    tensors: list[Buffer]
    sent: list[Buffer]


class TensorSource(ABC):
    """Bytes of tensors by number, in ranges."""

    in_memory: bool = True
    """Whether the bytes are there already; others count against the byte budget while they are held."""

    @abstractmethod
    async def fetch(self, tensor: int, start: int, end: int) -> Buffer:
        """Bytes [start, end) of a tensor."""

    @abstractmethod
    def read(self, tensor: int, start: int, end: int) -> Buffer:
        """The same from a worker thread. Blocks."""

    def read_run(self, run: Run) -> RunBytes:
        """The bytes of a run of small tensors, from a worker thread. Blocks."""
        read = self.read
        views = [
            read(number, 0, size)
            for number, size in zip(run.tensors.tolist(), run.sizes.tolist(), strict=True)
        ]
        return RunBytes(views, run.with_zeros(views))

    async def fetch_run(self, run: Run) -> RunBytes:
        """The same on the event loop."""
        numbers, sizes = run.tensors.tolist(), run.sizes.tolist()
        views = [await self.fetch(number, 0, size) for number, size in zip(numbers, sizes, strict=True)]
        return RunBytes(views, run.with_zeros(views))

    def known_checksums(self, tensor: int, chunk_bytes: int) -> Checksums | None:
        """The CRC32C of the tensor's chunks, where it is known without reading the bytes."""
        return None


class MemorySource(TensorSource):
    """Views of arrays that will not change."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = views

    async def fetch(self, tensor: int, start: int, end: int) -> Buffer:
        return self._views[tensor][start:end]

    def read(self, tensor: int, start: int, end: int) -> Buffer:
        return self._views[tensor][start:end]


class PoolSource(TensorSource):
    """Tensors that lie in one piece of memory, at `positions`, and some that do not, as `others`.

    Between two tensors that are less than ALIGNMENT apart are zeros: where they stand in the file as they do in the
    pool, they are sent as one.
    """

    def __init__(self, memory: memoryview, positions: Column, others: Mapping[int, memoryview]) -> None:
        self._memory = memory
        self._positions = positions
        self._starts: list[int] = positions.tolist()
        self._others = others

    async def fetch(self, tensor: int, start: int, end: int) -> Buffer:
        return self.read(tensor, start, end)

    def read(self, tensor: int, start: int, end: int) -> Buffer:
        if tensor in self._others:
            return self._others[tensor][start:end]
        position = self._starts[tensor]
        return self._memory[position + start : position + end]

    def read_run(self, run: Run) -> RunBytes:
        if any(number in self._others for number in (run.tensors.tolist() if self._others else ())):
            return super().read_run(run)
        memory = self._memory
        starts = self._positions[run.tensors]
        ends = starts + run.sizes
        tensors: list[Buffer] = [
            memory[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return RunBytes(tensors, self._stretches(run, starts, ends))

    def _stretches(self, run: Run, starts: Column, ends: Column) -> list[Buffer]:
        """The run in as few views as there can be."""
        gaps = run.offsets[1:] - run.offsets[:-1] - run.sizes[:-1]
        apart = (starts[1:] - ends[:-1] != gaps) | (gaps >= ALIGNMENT)
        breaks = np.flatnonzero(apart)
        firsts = starts[np.concatenate(([0], breaks + 1))].tolist()
        lasts = ends[np.concatenate((breaks, [len(ends) - 1]))].tolist()
        sent: list[Buffer] = []
        for first, last, gap in zip(firsts, lasts, [*gaps[breaks].tolist(), 0], strict=True):
            sent.append(self._memory[first:last])
            if gap:
                sent.extend(zeros(gap))
        return sent
