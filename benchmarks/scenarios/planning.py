"""How long the parts that are pure Python take for twenty thousand tensors: capture, plan, parse."""

from __future__ import annotations

import time

from asyncckpt.operations.checkpoint import open_checkpoint
from asyncckpt.operations.save import save
from asyncckpt.progress import Phase, ProgressEvent
from asyncckpt.storage.memory import MemoryStorage
from benchmarks.figures import Figure
from benchmarks.states import State


async def time_planning(state: State) -> list[Figure]:
    """Against a storage in memory, so that nothing else takes time."""
    storage = MemoryStorage()
    entered: dict[Phase, float] = {}

    def note(event: ProgressEvent) -> None:
        entered.setdefault(event.phase, time.perf_counter())

    start = time.perf_counter()
    await save(state.arrays, (storage, "model.checkpoint"), copy=False, progress=note)
    planned = entered[Phase.WRITE] - start
    start = time.perf_counter()
    async with open_checkpoint((storage, "model.checkpoint")) as checkpoint:
        parsed = time.perf_counter() - start
        assert len(checkpoint.tensors) == len(state.arrays)
    return [
        Figure(f"capture and plan of {len(state.arrays)} tensors", planned, "s", at_most=1.0),
        Figure(f"open and parse of {len(state.arrays)} tensors", parsed, "s", at_most=1.0),
    ]
