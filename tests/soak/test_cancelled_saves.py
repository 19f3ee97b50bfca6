"""200 saves of 64 MiB to MinIO, cancelled at random moments: no upload, no torn checkpoint, no object beside it.

The time from each cancel to clean is printed, with the seed of the moments.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.storage.s3.storage import S3Storage
from asyncckpt.testing.strategies import assert_identical
from tests.servers import S3Bucket

pytestmark = pytest.mark.soak

SAVES = 200
KEY = "run/a.checkpoint"
MOST_ATTEMPTS = 5 * SAVES


def state(step: int) -> dict[str, Any]:
    """64 MiB in 16 tensors."""
    return {"w": [np.full(1 << 20, step + i, np.float32) for i in range(16)], "step": step}


@dataclass
class Tally:
    """How the saves ended, and how long each cancel took until everything was clean."""

    cancelled: int = 0
    committed: int = 0
    seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ordered = sorted(self.seconds)
        return (
            f"{self.cancelled} cancelled, {self.committed} committed all the same; from cancel to clean: median "
            f"{statistics.median(ordered):.3f} s, p99 {ordered[int(len(ordered) * 0.99)]:.3f} s, "
            f"worst {ordered[-1]:.3f} s"
        )


async def timed_save(storage: S3Storage) -> float:
    started = time.perf_counter()
    await asyncckpt.save(state(0), (storage, KEY), overwrite=True, copy=False)
    return time.perf_counter() - started


async def one_save(
    storage: S3Storage, step: int, delay: float, how: str, tally: Tally
) -> tuple[bool, BaseException | None]:
    """Cancel a save after `delay`; returns whether it was committed, and how it ended."""
    events: list[asyncckpt.ProgressEvent] = []
    source = asyncckpt.CancellationTokenSource()
    saving = asyncio.create_task(
        asyncckpt.save(
            state(step),
            (storage, KEY),
            overwrite=True,
            copy=False,
            cancellation=source.token,
            progress=events.append,
        )
    )
    done, _ = await asyncio.wait([saving], timeout=delay)
    begun = time.perf_counter()
    if how == "task":
        saving.cancel()
    else:
        source.cancel("soak")
    await asyncio.wait([saving])
    if not done:
        tally.seconds.append(time.perf_counter() - begun)
    error = asyncio.CancelledError() if saving.cancelled() else saving.exception()
    committed = events[-1].committed if events else False
    tally.committed += committed
    tally.cancelled += not committed
    return committed, error


@pytest.mark.parametrize("how", ["task", "token"])
async def test_cancelled_at_random_moments(
    minio_bucket: S3Bucket, how: str, sweep_seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(f"{sweep_seed} {how}")
    tally = Tally()
    async with S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options) as storage:
        whole = min([await timed_save(storage) for _ in range(3)])
        expected = step = 0
        while tally.cancelled < SAVES and step < MOST_ATTEMPTS:
            step += 1
            committed, error = await one_save(storage, step, rng.uniform(0, whole), how, tally)
            assert error is None or isinstance(
                error, asyncio.CancelledError | asyncckpt.OperationCancelledError
            ), repr(error)
            assert minio_bucket.uploads() == [], f"seed {sweep_seed}, save {step}"
            assert minio_bucket.keys() == [KEY], f"seed {sweep_seed}, save {step}"
            expected = step if committed else expected
            if committed or step % 20 == 0:
                assert_identical(await asyncckpt.load((storage, KEY)), state(expected))
        assert (await asyncckpt.verify((storage, KEY))).ok
        assert_identical(await asyncckpt.load((storage, KEY)), state(expected))
    with capsys.disabled():
        print(f"\nseed {sweep_seed}, by {how}, one save takes {whole:.2f} s: {tally}")
    assert tally.cancelled == SAVES
