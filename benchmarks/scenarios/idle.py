"""The ticker with nothing beside it: gaps that the machine makes on its own."""

from __future__ import annotations

import asyncio

from benchmarks.figures import Figure
from benchmarks.measure import measure

_SECONDS = 1.0


async def idle_gaps(when: str) -> list[Figure]:
    """What to subtract, in thought, from everybody's gaps."""
    sample, _ = await measure(lambda: asyncio.sleep(_SECONDS))
    return [
        Figure(f"idle {when}: loop gap p99", 1e3 * sample.p99_gap, "ms"),
        Figure(f"idle {when}: loop gap worst", 1e3 * sample.worst_gap, "ms"),
    ]
