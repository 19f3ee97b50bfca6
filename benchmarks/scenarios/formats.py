"""Every format beside MLCP: how fast the same state is saved and loaded, one file each, alternating."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asyncckpt.errors import AsyncCkptError
from asyncckpt.operations.load import load
from asyncckpt.operations.save import save
from asyncckpt.storage.local import LocalStorage
from benchmarks.contenders.plain_safetensors import load_and_pass, load_numpy, load_plainly
from benchmarks.figures import Figure
from benchmarks.measure import release_memory
from benchmarks.scenarios.format_reads import read_figures
from benchmarks.scenarios.subjects import REFERENCE, Subject, ranking_folder, subjects
from benchmarks.states import State

_WITHIN = 0.85
_BESIDE_ROUNDS = 7
Call = Callable[[], Awaitable[object]]


@dataclass
class FormatFigures:
    """What was measured: speeds beside MLCP's, opens and reads, and safetensors beside its own package."""

    speeds: list[Figure] = field(default_factory=list)
    reads: list[Figure] = field(default_factory=list)
    package: list[Figure] = field(default_factory=list)


async def compare_formats(state: State, *, rounds: int, names: Sequence[str] = ()) -> FormatFigures:
    """Save and load of each format as a ratio of MLCP's speed, in memory; then its opens and reads, on the disk.

    Compressing, opens and reads get an eighth of the state: what they show does not depend on its size.
    A format that fails is shown as missed, with its error.
    """
    figures = FormatFigures()
    part = _eighth_of(state)
    with ranking_folder(state.nbytes) as folder:
        measured = [Measured(folder, s, part if s.compressed else state) for s in subjects(names)]
        figures.speeds += await _run_rounds(measured, rounds)
    reference = next(one for one in measured if one.subject.name == REFERENCE)
    with tempfile.TemporaryDirectory(prefix="asyncckpt-bench-") as folder:
        for one in measured:
            figures.speeds += one.ratios(reference)
            figures.reads += await Measured(Path(folder), one.subject, part).reads()
            if one.subject.name == "safetensors":
                figures.package += await Measured(Path(folder), one.subject, state).beside_package()
    return figures


async def _run_rounds(measured: list[Measured], rounds: int) -> list[Figure]:
    """One warm-up, then timed rounds, each begun by another format. Those that fail are taken out."""
    failures = []
    for number in range(rounds + 1):
        first = number % len(measured)
        for one in measured[first:] + measured[:first]:
            try:
                await one.save_and_load(timed=number > 0)
            except AsyncCkptError as error:
                measured.remove(one)
                failures.append(Figure(f"{one.subject.name}: failed, {error}", 0, "", at_least=1))
    return failures


class Measured:
    """One format's own folder, and what was measured there."""

    def __init__(self, folder: Path, subject: Subject, state: State) -> None:
        self.subject = subject
        self._folder = folder / subject.name
        self._state = state
        self._seconds: dict[str, list[float]] = {"save": [], "load": []}
        self._cpu: dict[str, list[float]] = {"save": [], "load": []}

    async def save_and_load(self, *, timed: bool) -> None:
        """Write the file, read it, and remove it again."""
        async with self._saved(timed=timed) as storage:
            loaded = await self._timed("load", lambda: load((storage, self.subject.key)), keep=timed)
            if not timed:
                self._state.require_equal(loaded, self.subject.name)

    async def _save(self, storage: LocalStorage, *, timed: bool) -> None:
        place, format = (storage, self.subject.key), self.subject.make()
        await self._timed(
            "save", lambda: save(self._state.arrays, place, format=format, copy=False), keep=timed
        )

    async def _timed(self, what: str, call: Callable[[], Awaitable[Any]], *, keep: bool) -> Any:
        release_memory()
        cpu, start = time.process_time(), time.perf_counter()
        result = await call()
        if keep:
            self._seconds[what].append(time.perf_counter() - start)
            self._cpu[what].append(time.process_time() - cpu)
        return result

    def ratios(self, reference: Measured) -> list[Figure]:
        """Speed beside MLCP's; the formats that are limited have to keep within 15 % of it."""
        name, figures = self.subject.name, []
        for what in self._seconds:
            speed = self._speed(what)
            figures.append(Figure(f"{name}: {what}", speed, "MB/s"))
            figures.append(Figure(f"{name}: {what}", self._cpu_per_gigabyte(what), "CPU s per GB"))
            if self is not reference:
                limit = _WITHIN if self.subject.limited else None
                ratio = speed / reference._speed(what)
                figures.append(Figure(f"{name}: {what}", ratio, "× MLCP", at_least=limit))
        return figures

    def _speed(self, what: str) -> float:
        return self._state.nbytes / float(np.median(self._seconds[what])) / 1e6

    def _cpu_per_gigabyte(self, what: str) -> float:
        return float(np.median(self._cpu[what])) / self._state.nbytes * 1e9

    async def reads(self) -> list[Figure]:
        """How one more file is opened and read."""
        key, name = self.subject.key, self.subject.name
        async with self._saved() as storage:
            return await read_figures(storage, self._folder, key, self._state, name=name)

    async def beside_package(self) -> list[Figure]:
        """Our load of a safetensors file beside the package's own."""
        async with self._saved() as storage:
            return await _beside_package(storage, self._folder / self.subject.key)

    @asynccontextmanager
    async def _saved(self, *, timed: bool = False) -> AsyncIterator[LocalStorage]:
        """The storage with the file in it, which is gone after the block."""
        try:
            async with LocalStorage(self._folder) as storage:
                await self._save(storage, timed=timed)
                yield storage
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


async def _beside_package(storage: LocalStorage, path: Path) -> list[Figure]:
    """With and without a pass over every byte, and into numpy's own memory; in pairs, because what a load of a
    gigabyte into new memory leaves behind slows down whoever comes after it."""
    place = (storage, path.name)
    pairs: list[tuple[str, str, Call, Call]] = [
        ("verified load", "package and a pass", lambda: load(place), lambda: _in_thread(load_and_pass, path)),
        ("verified load", "package, numpy", lambda: load(place), lambda: _in_thread(load_numpy, path)),
        (
            "load unverified",
            "package",
            lambda: load(place, verify=False),
            lambda: _in_thread(load_plainly, path),
        ),
    ]
    return [
        Figure(f"safetensors: {what}", await _ratio(ours, theirs), f"× the {rival}", at_least=1.0)
        for what, rival, ours, theirs in pairs
    ]


def _in_thread(function: Callable[[Path], object], path: Path) -> Awaitable[object]:
    return asyncio.to_thread(function, path)


async def _ratio(ours: Call, theirs: Call) -> float:
    """How many times as fast ours is: medians of alternating calls, the first of each left out."""
    seconds: dict[Call, list[float]] = {ours: [], theirs: []}
    for _ in range(_BESIDE_ROUNDS + 1):
        for call, found in seconds.items():
            release_memory()
            start = time.perf_counter()
            result = await call()
            found.append(time.perf_counter() - start)
            del result
    return float(np.median(seconds[theirs][1:]) / np.median(seconds[ours][1:]))


def _eighth_of(state: State) -> State:
    names = list(state.arrays)[: max(1, len(state.arrays) // 8)]
    return State(state.name, {n: state.arrays[n] for n in names}, {n: state.targets[n] for n in names})
