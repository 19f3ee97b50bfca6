"""How long the event loop is held up by the first save and load of a process, when nothing is imported yet."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from statistics import median
from typing import Any

from benchmarks.figures import Figure
from benchmarks.targets import LOCAL, Target

_LOCAL_GAP_MS = 25
_S3_GAP_MS = 50


async def cold_gaps(target: Target, *, rounds: int) -> list[Figure]:
    """A fresh process for each round. asyncckpt itself is imported before the loop runs, as programs do."""
    with tempfile.TemporaryDirectory(prefix="asyncckpt-bench-") as folder:
        root = folder if target.bucket is None else target.bucket.url
        options = None if target.bucket is None else target.bucket.storage_options
        found = [await _start(f"{root}/cold/model.checkpoint", options) for _ in range(rounds)]
    limit = _LOCAL_GAP_MS if target.name == LOCAL else _S3_GAP_MS
    figures = []
    for call in ("save", "load"):
        gaps = [1e3 * each[call] for each in found]
        name = f"{target.name}: first {call} of a process, loop gap"
        figures += [
            Figure(f"{name} median", median(gaps), "ms"),
            Figure(f"{name} worst", max(gaps), "ms", at_most=limit),
        ]
    return figures


async def _start(url: str, options: dict[str, Any] | None) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.cold_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate(json.dumps({"url": url, "options": options}).encode())
    if process.returncode:
        raise RuntimeError(f"a cold process ended with {process.returncode}")
    gaps: dict[str, float] = json.loads(printed)
    return gaps
