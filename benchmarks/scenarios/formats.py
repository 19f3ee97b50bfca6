"""Every format beside MLCP on a local disk, and how its files are opened and read."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from asyncckpt.errors import AsyncCkptError
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.operations.load import load
from asyncckpt.operations.reader import open_checkpoint
from asyncckpt.operations.save import save
from asyncckpt.storage.base import ICheckpointStorage, ObjectReader
from asyncckpt.storage.local import LocalStorage
from benchmarks.contenders.plain_safetensors import load_and_pass, load_plainly
from benchmarks.figures import Figure
from benchmarks.measure import release_memory
from benchmarks.states import State

_REFERENCE = "mlcp"
_COMPRESSED = frozenset({"sdz"})
_UNLIMITED = _COMPRESSED | {"metagraph"}
"""Their ratio is only reported: one deflates, the other hashes every byte with BLAKE3."""
_READS = 16
_SLOW_SECONDS = 6.0


class BufferedStorage(LocalStorage):
    """A local disk that can't be mapped, so that reads go through buffers."""

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        reader = await super()._open_reader(key, first_bytes=first_bytes)
        reader.map = lambda: None  # type: ignore[method-assign]
        return reader


async def compare_formats(
    folder: Path, state: State, *, rounds: int, seconds: float, names: Sequence[str] = ()
) -> list[Figure]:
    """Save and load of each format as a ratio of MLCP's speed, alternating; then its reads.

    A format that has used up its share of `seconds` sits out the rounds that are left. One that fails is shown as
    missed, with its error.
    """
    formats = [
        Measured(folder, name, state) for name in dict.fromkeys([_REFERENCE, *(names or format_names())])
    ]
    figures: list[Figure] = []
    try:
        for number in range(rounds + 1):
            for measured in list(formats):
                if number > 1 and measured.used > seconds / len(formats):
                    continue
                try:
                    await measured.save_and_load(timed=number > 0)
                except AsyncCkptError as error:
                    formats.remove(measured)
                    figures.append(Figure(f"{measured.name}: failed, {error}", 0, "", at_least=1))
        reference = next(measured for measured in formats if measured.name == _REFERENCE)
        for measured in formats:
            figures += measured.ratios(reference)
            figures += await measured.reads()
            if measured.name == "safetensors":
                figures += await measured.beside_package()
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
        self._key = f"model{next(iter(get_format(name).extensions), '')}"
        self.used = 0.0
        self._seconds: dict[str, list[float]] = {"save": [], "load": []}

    async def save_and_load(self, *, timed: bool) -> None:
        self.remove()
        place = (self._storage, self._key)
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
        took = time.perf_counter() - start
        self.used += took
        if keep:
            self._seconds[what].append(took)

    def ratios(self, reference: Measured) -> list[Figure]:
        """Speed beside MLCP's; every uncompressed format has to keep within 15 % of it."""
        figures = []
        for what in self._seconds:
            speed = self._speed(what)
            figures.append(Figure(f"{self.name}: {what}", speed, "MB/s"))
            if self is not reference:
                limit = None if self.name in _UNLIMITED else 0.85
                figures.append(
                    Figure(f"{self.name}: {what}", speed / reference._speed(what), "× MLCP", at_least=limit)
                )
        return figures

    def _speed(self, what: str) -> float:
        return self._state.nbytes / float(np.median(self._seconds[what])) / 1e6

    async def reads(self) -> list[Figure]:
        """Opens, single reads, and the map beside buffers; medians of a few."""
        buffered = BufferedStorage(self._folder)
        names = list(self._state.arrays)
        shuffled = random.Random(0).sample(names, min(_READS, len(names)))
        one = shuffled[0]
        nbytes = self._state.nbytes
        part = sum(self._state.arrays[name].nbytes for name in shuffled)
        cold = await self._median(lambda: _open(self._storage, self._key), before=self._forget_pages)
        warm = await self._median(lambda: _open(self._storage, self._key))
        single = await self._median(lambda: _read(self._storage, self._key, [one]))
        sequential = await self._median(lambda: _read(self._storage, self._key, names[: len(shuffled)]))
        scattered = await self._median(lambda: _read(self._storage, self._key, shuffled))
        mapped = await self._median(lambda: load((self._storage, self._key)))
        through = await self._median(lambda: load((buffered, self._key)))
        return [
            Figure(f"{self.name}: cold open", 1e3 * cold, "ms"),
            Figure(f"{self.name}: warm open", 1e3 * warm, "ms"),
            Figure(f"{self.name}: open and read one", 1e3 * single, "ms"),
            Figure(f"{self.name}: sequential reads, one by one", part / sequential / 1e6, "MB/s"),
            Figure(f"{self.name}: random reads, one by one", part / scattered / 1e6, "MB/s"),
            Figure(f"{self.name}: load by map", nbytes / mapped / 1e6, "MB/s"),
            Figure(f"{self.name}: load through buffers", nbytes / through / 1e6, "MB/s"),
        ]

    async def beside_package(self) -> list[Figure]:
        """Our load of a safetensors file beside the package's own, with and without a pass over every byte."""
        place, path = (self._storage, self._key), self._folder / self._key
        mine = await self._median(lambda: load(place))
        theirs = await self._median(lambda: asyncio.to_thread(load_and_pass, path))
        quick = await self._median(lambda: load(place, verify=False))
        plain = await self._median(lambda: asyncio.to_thread(load_plainly, path))
        return [
            Figure("safetensors: verified load", theirs / mine, "× the package and a pass", at_least=1.0),
            Figure("safetensors: load unverified", plain / quick, "× the package", at_least=1.0),
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


async def _open(storage: ICheckpointStorage, key: str) -> int:
    async with open_checkpoint((storage, key)) as checkpoint:
        return len(checkpoint.tensors)


async def _read(storage: ICheckpointStorage, key: str, names: list[str]) -> int:
    async with open_checkpoint((storage, key)) as checkpoint:
        return sum([(await checkpoint.read(name)).nbytes for name in names])


def _part_of(state: State) -> State:
    """A few of the tensors, for formats that compress: they take long, and their speed does not depend on the size."""
    names = list(state.arrays)[: max(1, len(state.arrays) // 8)]
    return State(state.name, {n: state.arrays[n] for n in names}, {n: state.targets[n] for n in names})
