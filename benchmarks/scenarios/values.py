"""How long plain values and very many tensors keep the event loop from its other work: the worst gap of each call."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from asyncckpt.operations.diff import diff
from asyncckpt.operations.load import load
from asyncckpt.operations.save import save
from benchmarks.figures import Figure
from benchmarks.measure import measure

_DICTS = 300_000
_FLOATS = 1_000_000
_STRINGS = 1_000_000
_BYTES = 200_000_000
_TENSORS = 200_000
_FORMATS = ("mlcp", "safetensors")


def _states() -> Iterator[tuple[str, Any]]:
    """Made one after another, so that only one is in memory."""
    yield f"{_DICTS} dicts", [{"step": i, "loss": i / 7, "name": f"sample {i}"} for i in range(_DICTS)]
    yield f"{_FLOATS} floats", [i / 7 for i in range(_FLOATS)]
    yield f"{_STRINGS} strings", [f"sample {i}" for i in range(_STRINGS)]
    yield f"{_BYTES // 10**6} MB of bytes", {"blob": os.urandom(_BYTES)}
    yield f"{_BYTES // 10**6} MB of text", {"text": "0123456789abcde\n" * (_BYTES // 16)}
    yield f"{_TENSORS} tensors", {f"w{i}": np.full(2, i, np.float32) for i in range(_TENSORS)}


async def value_gaps() -> list[Figure]:
    """Save, load and diff of each state on a local disk, with a ticker beside it.

    A save captures the tree before its first await: that part can only be short, not cut.
    """
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for name, state in _states():
            for format in _FORMATS:
                figures += await _gaps_of(f"{format}: {name}", state, format, Path(folder))
    return figures


async def _gaps_of(name: str, state: Any, format: str, folder: Path) -> list[Figure]:
    first, second = folder / "first", folder / "second"
    figures: list[Figure] = []

    async def run(what: str, call: Callable[[], Awaitable[Any]]) -> None:
        sample, result = await measure(call)
        # In a thread and before the next clock starts: freeing a million objects takes a while.
        holder = [result]
        del result
        await asyncio.to_thread(holder.clear)
        figures.append(Figure(f"{name}: {what}, loop gap worst", 1e3 * sample.worst_gap, "ms"))
        figures.append(Figure(f"{name}: {what}", sample.seconds, "s"))

    await run("save", lambda: save(state, first, format=format))
    await run("load", lambda: load(first))
    await asyncio.to_thread(second.hardlink_to, first)
    await run("diff", lambda: diff(first, second))
    for path in (first, second):
        path.unlink()
    return figures
