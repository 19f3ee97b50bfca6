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
_SCHEDULING = Path("/proc/thread-self/schedstat")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one call cost. Gaps are the times between two ticks of a 1 ms ticker on the same loop.

    `worst_own_gap` is the worst gap less the time in which the loop's thread was ready and had no core: what is
    left is the call's doing, or that of a thread that holds the GIL and has no core (the same as `worst_gap`
    where the system does not tell). `extra_bytes` is the peak of resident memory above what it was before and
    what the call returned (None where the system does not tell). `counters` are the server's, where it has some.
    """

    seconds: float
    cpu_seconds: float
    worst_gap: float
    worst_own_gap: float
    p99_gap: float
    extra_bytes: int | None
    counters: dict[str, int] = field(default_factory=dict)


class Ticker:
    """Ticks every millisecond and keeps the gaps."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._own_gaps: list[float] = []
        self._running = True

    async def run(self) -> None:
        with CoreWait() as core_wait:
            last, waited = time.perf_counter(), core_wait.seconds()
            while self._running:
                await asyncio.sleep(TICK_SECONDS)
                now, waited_now = time.perf_counter(), core_wait.seconds()
                self._gaps.append(now - last)
                self._own_gaps.append(now - last - (waited_now - waited))
                last, waited = now, waited_now

    def start_counting(self) -> None:
        self._gaps.clear()
        self._own_gaps.clear()

    def stop(self) -> None:
        self._running = False

    def worst(self) -> float:
        return max(self._gaps, default=0.0)

    def worst_own(self) -> float:
        return max(self._own_gaps, default=0.0)

    def p99(self) -> float:
        ordered = sorted(self._gaps)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0


class CoreWait:
    """How long this thread has been ready to run without a core to run on, as the kernel counts it."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def __enter__(self) -> CoreWait:
        # Its own thread's file: to be entered by the thread that is meant.
        if _SCHEDULING.exists():
            self._descriptor = os.open(_SCHEDULING, os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def seconds(self) -> float:
        """Zero where the system does not tell."""
        if self._descriptor is None:
            return 0.0
        return int(os.pread(self._descriptor, 128, 0).split()[1]) / 1e9


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
        seconds,
        cpu_seconds,
        ticker.worst(),
        ticker.worst_own(),
        ticker.p99(),
        extra,
        counters() if counters is not None else {},
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
