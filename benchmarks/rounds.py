"""Alternating rounds: every contender in turn, again and again, so that a slow minute of the machine hits them all."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders.base import Contender
from benchmarks.measure import Sample, measure
from benchmarks.sink_process import SinkServer
from benchmarks.states import State


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the smallest and the largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's operation on one target, over all timed rounds.

    Gaps are in milliseconds: the worst of all rounds, the worst without the waits for a core (None in older
    results), and the median of the rounds' 99th percentiles.
    `requests` and `bytes_fetched` are the server's count, None where it keeps none.
    """

    target: str
    state: str
    contender: str
    operation: str
    rounds: int
    megabytes_per_second: Spread
    cpu_seconds: float
    worst_gap_ms: float
    p99_gap_ms: float
    extra_mib: float | None
    requests: int | None
    bytes_fetched: int | None
    worst_own_gap_ms: float | None = None


async def run_rounds(
    target: str,
    contenders: list[Contender],
    state: State,
    *,
    rounds: int,
    seconds_each: float,
    sink: SinkServer | None = None,
) -> list[Result]:
    """One warm-up round, whose results are checked and whose times are discarded, then the timed ones.

    A contender that has used up its `seconds_each` sits out the rounds that are left, but has at least one.
    """
    samples: dict[tuple[str, str], list[Sample]] = {}
    used = dict.fromkeys((contender.name for contender in contenders), 0.0)
    for contender in contenders:
        await contender.open(state)
    try:
        for number in range(rounds + 1):
            # Another one begins each time: who comes first finds other memory and a colder disk than who comes last.
            first = number % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                if number > 1 and used[contender.name] > seconds_each:
                    continue
                start = time.perf_counter()
                found = await _run_once(contender, state, sink, check=number == 0)
                used[contender.name] += time.perf_counter() - start
                for operation, sample in found.items() if number else ():
                    samples.setdefault((contender.name, operation), []).append(sample)
    finally:
        for contender in contenders:
            await contender.aclose()
    order = [contender.name for contender in contenders]
    return [
        _result(target, state, contender, operation, found)
        for (contender, operation), found in sorted(samples.items(), key=lambda item: order.index(item[0][0]))
    ]


async def _run_once(
    contender: Contender, state: State, sink: SinkServer | None, *, check: bool
) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    try:
        for operation in contender.operations():
            sample, result = await measure(
                operation.call,
                result_bytes=state.nbytes if operation.fresh else 0,
                reset_counters=sink.reset if sink else None,
                counters=sink.counters if sink else None,
            )
            found[operation.name] = sample
            if check and operation.fresh:
                state.require_equal(result, contender.name)
            # In a thread and before the next clock starts: freeing a gigabyte takes a while.
            holder: list[Any] = [result]
            del result
            await asyncio.to_thread(holder.clear)
    finally:
        await contender.forget()
    return found


def _result(target: str, state: State, contender: str, operation: str, samples: list[Sample]) -> Result:
    extras = [sample.extra_bytes for sample in samples if sample.extra_bytes is not None]
    counted = samples[-1].counters
    return Result(
        target=target,
        state=state.name,
        contender=contender,
        operation=operation,
        rounds=len(samples),
        megabytes_per_second=Spread.of(state.nbytes / sample.seconds / 1e6 for sample in samples),
        cpu_seconds=statistics.median(sample.cpu_seconds for sample in samples),
        worst_gap_ms=1e3 * max(sample.worst_gap for sample in samples),
        p99_gap_ms=1e3 * statistics.median(sample.p99_gap for sample in samples),
        extra_mib=max(extras) / 2**20 if extras else None,
        requests=counted.get("requests"),
        bytes_fetched=counted.get("bytes sent"),
        worst_own_gap_ms=1e3 * max(sample.worst_own_gap for sample in samples),
    )
