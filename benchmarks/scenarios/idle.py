"""The ticker with nothing beside it: gaps that the machine makes on its own."""

from __future__ import annotations

import asyncio

from benchmarks.figures import Figure
from benchmarks.measure import measure

_SECONDS = 2.0


async def idle_gaps() -> list[Figure]:
    """What to subtract, in thought, from everybody's gaps."""
    sample, _ = await measure(lambda: asyncio.sleep(_SECONDS))
    return [
        Figure("idle: loop gap p99", 1e3 * sample.p99_gap, "ms"),
        Figure("idle: loop gap worst", 1e3 * sample.worst_gap, "ms"),
    ]
