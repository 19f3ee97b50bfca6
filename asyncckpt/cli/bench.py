"""`asyncckpt bench`: how fast saving and loading are here, and how long the event loop was held up."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from asyncckpt.cli.options import Subparsers, add_common, storage_options
from asyncckpt.cli.output import print_json, print_table, progress_bar
from asyncckpt.formats.registry import format_names
from asyncckpt.operations.load import load
from asyncckpt.operations.save import save
from asyncckpt.storage.factory import open_storage

_TENSORS = 16
_TICK_SECONDS = 0.001


def add_parser(commands: Subparsers) -> None:
    parser = commands.add_parser("bench", help="measure saving and loading at a location")
    parser.add_argument("location", help="a folder or prefix; what is written there is deleted again")
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="how much to save (256)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (3); the median counts")
    parser.add_argument("--format", choices=format_names(), default="mlcp")
    add_common(parser)
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> int:
    count = max(1, options.size * 1024 * 1024 // 4 // _TENSORS)
    rng = np.random.default_rng(0)
    state = {f"tensor{i}": rng.random(count, np.float32) for i in range(_TENSORS)}
    megabytes = _TENSORS * count * 4 / 1e6
    chosen = storage_options(options, options.location)
    async with open_storage(options.location, storage_options=chosen) as storage:
        place = (storage, "asyncckpt-bench.tmp")
        try:
            with progress_bar(wanted=not options.quiet and not options.json) as bar:
                rows = await _rounds(options, state, place, bar)
        finally:
            await storage.delete(place[1])
    result = {name: _summary(times, megabytes) for name, times in rows.items()}
    if options.json:
        print_json(result)
    else:
        titles = ("OPERATION", "MB/s", "SECONDS", "WORST LOOP GAP")
        print_table(
            titles,
            [
                (n, f"{r['mb_per_s']:.0f}", f"{r['seconds']:.2f}", f"{r['worst_gap_ms']:.1f} ms")
                for n, r in result.items()
            ],
        )
    return 0


async def _rounds(
    options: argparse.Namespace, state: dict[str, np.ndarray], place: Any, bar: Any
) -> dict[str, list[tuple[float, float]]]:
    into = {name: np.empty_like(array) for name, array in state.items()}
    rows: dict[str, list[tuple[float, float]]] = {"save": [], "load, verified": []}
    for _ in range(max(1, options.rounds)):
        rows["save"].append(
            await _timed(
                lambda: save(state, place, format=options.format, overwrite=True, copy=False, progress=bar)
            )
        )
        rows["load, verified"].append(await _timed(lambda: load(place, into=into, progress=bar)))
    return rows


async def _timed(operation: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """How long it took, and the longest time that the event loop did not turn meanwhile."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK_SECONDS)
            worst = max(worst, time.perf_counter() - before - _TICK_SECONDS)

    ticker = asyncio.create_task(tick())
    try:
        started = time.perf_counter()
        await operation()
        return time.perf_counter() - started, worst
    finally:
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)


def _summary(times: list[tuple[float, float]], megabytes: float) -> dict[str, float]:
    seconds = float(np.median([seconds for seconds, _ in times]))
    gap = max(gap for _, gap in times)
    return {"seconds": seconds, "mb_per_s": megabytes / seconds, "worst_gap_ms": gap * 1000}
