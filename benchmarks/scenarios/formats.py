"""Every format beside MLCP on a local disk, and how its files are opened and read."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from asyncckpt.formats.registry import format_names
from asyncckpt.operations.load import load
from asyncckpt.operations.reader import open_checkpoint
from asyncckpt.operations.save import save
from asyncckpt.storage.base import ICheckpointStorage, ObjectReader
from asyncckpt.storage.local import LocalStorage
from benchmarks.figures import Figure
from benchmarks.measure import release_memory
from benchmarks.states import State

_REFERENCE = "mlcp"
_READS = 16


class BufferedStorage(LocalStorage):
    """A local disk that can't be mapped, so that reads go through buffers."""

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        reader = await super()._open_reader(key, first_bytes=first_bytes)
        reader.map = lambda: None  # type: ignore[method-assign]
        return reader


async def compare_formats(
    folder: Path, state: State, *, rounds: int, seconds: float, names: list[str] | None = None
) -> list[Figure]:
    """Save and load of each format as a ratio of MLCP's speed, alternating; then its reads.

    Stops adding rounds when `seconds` are used up.
    """
    formats = [Measured(folder, name, state) for name in names or format_names()]
    end = time.perf_counter() + seconds
    try:
        for number in range(rounds + 1):
            if number > 1 and time.perf_counter() > end:
                break
            for measured in formats:
                await measured.save_and_load(timed=number > 0)
        reference = next(measured for measured in formats if measured.name == _REFERENCE)
        figures = []
        for measured in formats:
            figures += measured.ratios(reference)
            figures += await measured.reads()
        return figures
    finally:
        for measured in formats:
            measured.remove()


class Measured:
    """One format's own folder, and what was measured there."""

    def __init__(self, folder: Path, name: str, state: State) -> None:
        self.name = name
        self._folder = folder / f"format-{name}"
        self._storage = LocalStorage(self._folder)
        self._state = state
        self._seconds: dict[str, list[float]] = {"save": [], "load": []}

    async def save_and_load(self, *, timed: bool) -> None:
        self.remove()
        place = (self._storage, "model")
        with self._timed("save", keep=timed):
            await save(self._state.arrays, place, format=self.name, handover=True)
        with self._timed("load", keep=timed):
            loaded = await load(place)
        if not timed:
            self._state.require_equal(loaded, self.name)

    @contextmanager
    def _timed(self, what: str, *, keep: bool) -> Iterator[None]:
        release_memory()
        start = time.perf_counter()
        yield
        if keep:
            self._seconds[what].append(time.perf_counter() - start)

    def ratios(self, reference: Measured) -> list[Figure]:
        """Speed beside MLCP's; every uncompressed format has to keep within 15 % of it."""
        figures = []
        for what, seconds in self._seconds.items():
            mine, theirs = float(np.median(seconds)), float(np.median(reference._seconds[what]))
            figures.append(Figure(f"{self.name}: {what}", self._state.nbytes / mine / 1e6, "MB/s"))
            if self is not reference:
                limit = None if self.name in ("metagraph", "sdz") else 0.85
                figures.append(Figure(f"{self.name}: {what}", theirs / mine, "× MLCP", at_least=limit))
        return figures

    async def reads(self) -> list[Figure]:
        """Opens, single reads, and the map beside buffers; medians of a few."""
        buffered = BufferedStorage(self._folder)
        names = list(self._state.arrays)
        shuffled = random.Random(0).sample(names, min(_READS, len(names)))
        one = shuffled[0]
        nbytes = self._state.nbytes
        part = sum(self._state.arrays[name].nbytes for name in shuffled)
        cold = await self._median(lambda: _open(self._storage), before=self._forget_pages)
        warm = await self._median(lambda: _open(self._storage))
        single = await self._median(lambda: _read(self._storage, [one]))
        sequential = await self._median(lambda: _read(self._storage, names[: len(shuffled)]))
        scattered = await self._median(lambda: _read(self._storage, shuffled))
        mapped = await self._median(lambda: load((self._storage, "model")))
        through = await self._median(lambda: load((buffered, "model")))
        return [
            Figure(f"{self.name}: cold open", 1e3 * cold, "ms"),
            Figure(f"{self.name}: warm open", 1e3 * warm, "ms"),
            Figure(f"{self.name}: open and read one of {len(names)}", 1e3 * single, "ms"),
            Figure(f"{self.name}: sequential reads, one by one", part / sequential / 1e6, "MB/s"),
            Figure(f"{self.name}: random reads, one by one", part / scattered / 1e6, "MB/s"),
            Figure(f"{self.name}: load by map", nbytes / mapped / 1e6, "MB/s"),
            Figure(f"{self.name}: load through buffers", nbytes / through / 1e6, "MB/s"),
        ]

    async def _median(
        self,
        call: Callable[[], Awaitable[object]],
        *,
        before: Callable[[], None] | None = None,
        rounds: int = 3,
    ) -> float:
        seconds = []
        for _ in range(rounds):
            release_memory()
            if before is not None:
                before()
            start = time.perf_counter()
            result = await call()
            seconds.append(time.perf_counter() - start)
            del result
        return float(np.median(seconds))

    def _forget_pages(self) -> None:
        """Have the kernel drop the files' pages: the next read comes from the disk."""
        for path in self._folder.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


async def _open(storage: ICheckpointStorage) -> int:
    async with open_checkpoint((storage, "model")) as checkpoint:
        return len(checkpoint.tensors)


async def _read(storage: ICheckpointStorage, names: list[str]) -> int:
    async with open_checkpoint((storage, "model")) as checkpoint:
        return sum([(await checkpoint.read(name)).nbytes for name in names])
