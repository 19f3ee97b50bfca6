"""By how much a training loop in the same process is slowed while a save runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import numpy as np

from benchmarks.contenders.base import SAVE, Contender
from benchmarks.figures import Figure
from benchmarks.states import State

_QUIET_SECONDS = 1.0


class Training:
    """A thread that multiplies matrices, on one core, and counts the steps."""

    def __init__(self) -> None:
        generator = np.random.default_rng(2)
        self._left = generator.random((384, 384), np.float32)
        self._right = generator.random((384, 384), np.float32)
        self.steps = 0
        self._running = True
        self._thread = threading.Thread(target=self._train, name="training", daemon=True)

    def _train(self) -> None:
        result = np.empty_like(self._left)
        while self._running:
            np.matmul(self._left, self._right, out=result)
            self.steps += 1

    def __enter__(self) -> Training:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join()

    async def steps_per_second(self, call: Callable[[], Awaitable[object]]) -> float:
        steps, start = self.steps, time.perf_counter()
        await call()
        return (self.steps - steps) / (time.perf_counter() - start)


async def slow_down(
    target: str, contenders: list[Contender], state: State, *, rounds: int, seconds_each: float
) -> list[Figure]:
    """The share of steps that each contender's save costs while it runs, and how many steps it costs in all."""
    figures = []
    with Training() as training:
        for contender in contenders:
            await contender.open(state)
            try:
                figures += await _slow_down(target, training, contender, rounds, seconds_each)
            finally:
                await contender.aclose()
    return figures


async def _slow_down(
    target: str, training: Training, contender: Contender, rounds: int, seconds_each: float
) -> list[Figure]:
    save = next(operation.call for operation in contender.operations() if operation.name == SAVE)
    shares, seconds, lost = [], [], []
    started = time.perf_counter()
    for number in range(rounds + 1):
        quiet = await training.steps_per_second(lambda: asyncio.sleep(_QUIET_SECONDS))
        start = time.perf_counter()
        busy = await training.steps_per_second(save)
        took = time.perf_counter() - start
        await contender.forget()
        if number:
            shares.append(1 - busy / quiet)
            seconds.append(took)
            lost.append((1 - busy / quiet) * took)
        if number and time.perf_counter() - started > seconds_each:
            break
    name = f"{contender.name} save to {target}, training loop busy"
    return [
        Figure(f"{name}: slowed by", 100 * float(np.median(shares)), "%"),
        Figure(f"{name}: training time lost", float(np.median(lost)), "s"),
        Figure(f"{name}: save takes", float(np.median(seconds)), "s"),
    ]
