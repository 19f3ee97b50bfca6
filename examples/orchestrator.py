"""An orchestrator that keeps its heartbeat while it saves to S3, and prints the worst gap.

Set ASYNCCKPT_EXAMPLE_S3_URL (s3://bucket/prefix) and, for MinIO and the like, ASYNCCKPT_EXAMPLE_S3_OPTIONS: JSON
with s3fs's options, such as {"key": …, "secret": …, "client_kwargs": {"endpoint_url": …}}. Without them it saves to
a temporary folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time

import numpy as np

import asyncckpt

OPTIONS = json.loads(os.environ.get("ASYNCCKPT_EXAMPLE_S3_OPTIONS", "null"))
BEAT = 0.005


async def heartbeat(gaps: list[float]) -> None:
    """Stands for all that the loop also serves: rollouts, RPC, health checks."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(BEAT)
        gaps.append(time.perf_counter() - before - BEAT)


async def main(root: str) -> None:
    rng = np.random.default_rng(0)
    state = {"model": {f"layers.{i}": rng.random((2048, 1024), np.float32) for i in range(16)}, "step": 0}
    gaps: list[float] = []
    beating = asyncio.create_task(heartbeat(gaps))
    async with asyncckpt.open_storage(
        root, storage_options=OPTIONS
    ) as storage:  # one connection pool for all
        for step in (100, 200, 300):
            state["step"] = step
            started = time.perf_counter()
            result = await asyncckpt.save(state, (storage, f"orchestrator/step-{step}.checkpoint"))
            seconds = time.perf_counter() - started
            print(f"step {step}: {result.size / 1e6:.0f} MB in {seconds:.2f} s")
        kept = [info.key async for info in storage.list("orchestrator/")]
        print(f"{len(kept)} checkpoints in {storage!r}")
        for key in kept:
            await storage.delete(key)
    beating.cancel()
    await asyncio.wait([beating])
    print(
        f"{len(gaps)} heartbeats, p99 {np.percentile(gaps, 99) * 1000:.1f} ms late, worst {max(gaps) * 1000:.1f} ms"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(os.environ.get("ASYNCCKPT_EXAMPLE_S3_URL", scratch)))
