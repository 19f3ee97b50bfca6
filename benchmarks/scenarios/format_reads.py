"""How a format's file is opened and read: cold and warm, one tensor and many, by the memory map and through buffers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from asyncckpt.operations.checkpoint import open_checkpoint
from asyncckpt.operations.load import load
from asyncckpt.storage.base import ICheckpointStorage, ObjectReader
from asyncckpt.storage.local import LocalStorage
from benchmarks.figures import Figure
from benchmarks.states import State

_READS = 16
_ROUNDS = 3


class BufferedStorage(LocalStorage):
    """A local disk that can't be mapped, so that reads go through buffers."""

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        reader = await super()._open_reader(key, first_bytes=first_bytes)
        reader.map = lambda: None  # type: ignore[method-assign]
        return reader


async def read_figures(
    storage: LocalStorage, folder: Path, key: str, state: State, *, name: str
) -> list[Figure]:
    """Medians of a few opens and reads of the file that stands there."""
    names = list(state.arrays)
    shuffled = random.Random(0).sample(names, min(_READS, len(names)))
    part = sum(state.arrays[tensor].nbytes for tensor in shuffled)
    cold = await _median(lambda: _open(storage, key), before=lambda: _forget_pages(folder))
    warm = await _median(lambda: _open(storage, key))
    single = await _median(lambda: _read(storage, key, shuffled[:1]))
    sequential = await _median(lambda: _read(storage, key, names[: len(shuffled)]))
    scattered = await _median(lambda: _read(storage, key, shuffled))
    mapped = await _median(lambda: load((storage, key)))
    async with BufferedStorage(folder) as buffered:
        through = await _median(lambda: load((buffered, key)))
    return [
        Figure(f"{name}: cold open", 1e3 * cold, "ms"),
        Figure(f"{name}: warm open", 1e3 * warm, "ms"),
        Figure(f"{name}: open and read one", 1e3 * single, "ms"),
        Figure(f"{name}: sequential reads, one by one", part / sequential / 1e6, "MB/s"),
        Figure(f"{name}: random reads, one by one", part / scattered / 1e6, "MB/s"),
        Figure(f"{name}: load by map", state.nbytes / mapped / 1e6, "MB/s"),
        Figure(f"{name}: load through buffers", state.nbytes / through / 1e6, "MB/s"),
    ]


async def _median(
    call: Callable[[], Awaitable[object]], *, before: Callable[[], None] | None = None
) -> float:
    """Of a few calls, after one that is not counted."""
    seconds = []
    for _ in range(_ROUNDS + 1):
        if before is not None:
            before()
        start = time.perf_counter()
        result = await call()
        seconds.append(time.perf_counter() - start)
        del result
    return float(np.median(seconds[1:]))


def _forget_pages(folder: Path) -> None:
    """Have the kernel drop the files' pages: the next read comes from the disk."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


async def _open(storage: ICheckpointStorage, key: str) -> int:
    async with open_checkpoint((storage, key)) as checkpoint:
        return len(checkpoint.tensors)


async def _read(storage: ICheckpointStorage, key: str, names: list[str]) -> int:
    async with open_checkpoint((storage, key)) as checkpoint:
        return sum([(await checkpoint.read(name)).nbytes for name in names])
