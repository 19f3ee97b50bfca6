"""One timed call: seconds, CPU seconds, peak memory, and how long the event loop was kept from its other work."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICK_SECONDS = 0.001
_SETTLE_SECONDS = 0.02
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one call cost. Gaps are the times between two ticks of a 1 ms ticker on the same loop.

    `extra_bytes` is the peak of resident memory above what it was before and what the call returned (None where
    the system does not tell). `counters` are the server's, where it has some.
    """

    seconds: float
    cpu_seconds: float
    worst_gap: float
    p99_gap: float
    extra_bytes: int | None
    counters: dict[str, int] = field(default_factory=dict)


class Ticker:
    """Ticks every millisecond and keeps the gaps."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._running = True

    async def run(self) -> None:
        last = time.perf_counter()
        while self._running:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            self._gaps.append(now - last)
            last = now

    def start_counting(self) -> None:
        self._gaps.clear()

    def stop(self) -> None:
        self._running = False

    def worst(self) -> float:
        return max(self._gaps, default=0.0)

    def p99(self) -> float:
        ordered = sorted(self._gaps)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0


async def measure(
    call: Callable[[], Awaitable[Any]],
    *,
    result_bytes: int = 0,
    reset_counters: Callable[[], None] | None = None,
    counters: Callable[[], dict[str, int]] | None = None,
) -> tuple[Sample, Any]:
    """Await `call()` once; returns what it cost and what it returned.

    Memory is given back to the system first, so that every call pays for its own pages. The result is still
    alive when the clock stops: dropping a gigabyte is the caller's doing, not the call's.
    """
    release_memory()
    if reset_counters is not None:
        reset_counters()
    ticker = Ticker()
    ticking = asyncio.ensure_future(ticker.run())
    await asyncio.sleep(_SETTLE_SECONDS)
    before = resident_bytes()
    has_peak = _reset_peak()
    ticker.start_counting()
    cpu, start = time.process_time(), time.perf_counter()
    try:
        result = await call()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        # The tick that the end of the call held up counts too.
        await asyncio.sleep(2 * TICK_SECONDS)
    finally:
        ticker.stop()
        await ticking
    extra = max(0, _peak_bytes() - before - result_bytes) if has_peak else None
    sample = Sample(
        seconds, cpu_seconds, ticker.worst(), ticker.p99(), extra, counters() if counters is not None else {}
    )
    return sample, result


def release_memory() -> None:
    """Collect garbage and hand free heap pages back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    if not _STATUS.exists():
        return 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> bool:
    """Have the kernel forget the peak so far; False where it can't, and then no peak is reported."""
    try:
        descriptor = os.open(_CLEAR_REFS, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, _RESET_PEAK.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
