"""How long it takes from a cancel until nothing is left, at random moments of a save."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import numpy as np

from asyncckpt.operations.save import save
from asyncckpt.storage.base import ICheckpointStorage
from benchmarks.figures import Figure
from benchmarks.states import MIB, State, large_tensors
from benchmarks.targets import Target

_KEY = "cancelled/model.checkpoint"
_SECONDS = 20.0


async def time_cancels(target: Target, *, count: int = 20, seed: int = 0) -> list[Figure]:
    """Saves of 64 MiB; the save's own duration is measured first, so that the moments lie within it."""
    state = large_tensors(64 * MIB, 4 * MIB)
    moments = random.Random(seed)
    waits: list[float] = []
    async with target.storage() as storage:
        place = (storage, _KEY)
        whole = min([await _time_save(state, place) for _ in range(3)])
        await storage.delete(_KEY)
        end = time.perf_counter() + _SECONDS
        while len(waits) < count and time.perf_counter() < end:
            task = asyncio.ensure_future(save(state.arrays, place, copy=False, overwrite=True))
            await asyncio.sleep(moments.random() * whole)
            start, cancelled = time.perf_counter(), task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            # One that was over before its moment came tells nothing.
            if cancelled:
                waits.append(time.perf_counter() - start)
        left = len(await asyncio.to_thread(target.bucket.uploads)) if target.bucket else 0
        await storage.delete(_KEY)
    name = f"{target.name}: {len(waits)} cancelled saves of 64 MiB"
    return [
        Figure(f"{name}: median from cancel to clean", 1e3 * float(np.median(waits)), "ms"),
        Figure(f"{name}: worst from cancel to clean", 1e3 * max(waits), "ms", at_most=1000),
        Figure(f"{name}: uploads left", left, "", at_most=0),
    ]


async def _time_save(state: State, place: tuple[ICheckpointStorage, str]) -> float:
    start = time.perf_counter()
    await save(state.arrays, place, copy=False, overwrite=True)
    return time.perf_counter() - start
