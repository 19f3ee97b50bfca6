"""What asyncckpt has to reach beside the others, from one run's results. A figure that is missed is shown as missed."""

from __future__ import annotations

from collections.abc import Sequence

from asyncckpt.operations.runtime import DEFAULT_MEMORY_BYTES
from benchmarks.contenders.base import INTO, LOAD, SAVE, UNVERIFIED
from benchmarks.figures import Figure
from benchmarks.rounds import Result
from benchmarks.targets import LOCAL, MINIO, SINK

_OURS = "asyncckpt"
_EXTRA_MIB = DEFAULT_MEMORY_BYTES / 2**20 + 64
# target, our operation, the rival, its operation, the ratio of speeds that is asked for
_RATIOS: tuple[tuple[str, str, str, str, float], ...] = (
    (SINK, SAVE, "obstore", SAVE, 0.8),
    (SINK, INTO, "obstore", INTO, 1.4),
    (SINK, LOAD, "obstore", LOAD, 1.4),
    (MINIO, SAVE, "obstore", SAVE, 0.8),
    (MINIO, INTO, "obstore", INTO, 0.9),
    (MINIO, LOAD, "obstore", LOAD, 0.9),
    (MINIO, SAVE, "torch DCP", SAVE, 3.0),
    (MINIO, LOAD, "torch DCP", LOAD, 3.0),
    (LOCAL, SAVE, "torch DCP", SAVE, 1.5),
    (LOCAL, LOAD, "safetensors", LOAD, 1.0),
    (LOCAL, UNVERIFIED, "safetensors", UNVERIFIED, 1.0),
)


def check_goals(results: Sequence[Result], state: str) -> list[Figure]:
    """Ratios of medians, loop gaps and memory, for the state of one gigabyte."""
    by_name = {(r.target, r.contender, r.operation): r for r in results if r.state == state}
    figures = []
    for target, operation, rival, theirs, ratio in _RATIOS:
        mine, other = by_name.get((target, _OURS, operation)), by_name.get((target, rival, theirs))
        if mine is not None and other is not None:
            value = mine.megabytes_per_second.median / other.megabytes_per_second.median
            figures.append(Figure(f"{target}: {operation}", value, f"× {rival}", at_least=ratio))
    for result in results:
        if result.contender == _OURS and result.state == state:
            figures += _own_limits(result)
    return figures


def _own_limits(result: Result) -> list[Figure]:
    name = f"{result.target}: {result.operation}"
    figures = [
        Figure(f"{name}, loop gap p99", result.p99_gap_ms, "ms", at_most=10),
        Figure(f"{name}, loop gap worst", result.worst_gap_ms, "ms", at_most=50),
    ]
    if result.extra_mib is not None:
        figures.append(Figure(f"{name}, extra memory", result.extra_mib, "MiB", at_most=_EXTRA_MIB))
    return figures
