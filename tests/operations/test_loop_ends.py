"""A loop that ends while a save runs, Ctrl-C twice: no index without its files, nothing left, and truthful."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.testing.strategies import assert_identical
from tests.servers import S3Bucket

PATIENCE = 20.0
STATE = {"w": [np.full(2000, i, np.float32) for i in range(6)], "step": 3}
SETS = {
    "safetensors-set": "model.safetensors.index.json",
    "mlcp-set": "model.metadata.json",
    "mlcp": "model.checkpoint",
}


class _SlowSync:
    """At its n-th call it lets the main coroutine end, and goes on when everything else has been cancelled."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._real = os.fsync
        self._count = 0
        self._lock = threading.Lock()
        self.reached: Callable[[], object] = lambda: None
        self.is_cancelled: Callable[[], bool] = lambda: True

    @property
    def count(self) -> int:
        return self._count

    def __call__(self, descriptor: int) -> None:
        with self._lock:
            self._count += 1
            mine = self._count == self._number
        if mine:
            self.reached()
            deadline = time.monotonic() + PATIENCE
            while not self.is_cancelled() and time.monotonic() < deadline:
                time.sleep(0.0005)
        self._real(descriptor)


def save_until_the_loop_ends(target: Path, format: str, sync: _SlowSync) -> list[asyncckpt.ProgressEvent]:
    """Save in the background; the main coroutine returns when the sync says so, or when the save is over."""
    events: list[asyncckpt.ProgressEvent] = []

    async def main() -> None:
        reached, loop = asyncio.Event(), asyncio.get_running_loop()
        save = asyncckpt.save(STATE, target, format=format, progress=events.append)
        task = asyncio.create_task(save)
        task.add_done_callback(lambda _: reached.set())
        sync.is_cancelled = lambda: task.cancelling() > 0
        sync.reached = partial(loop.call_soon_threadsafe, reached.set)
        await reached.wait()

    asyncio.run(main())
    return events


@pytest.mark.blocking_allowed
@pytest.mark.parametrize("format", SETS)
def test_the_loop_ends_at_each_sync_of_a_background_save(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible = []
    number = 1
    while True:
        folder = tmp_path / f"run-{number}"
        sync = _SlowSync(number)
        monkeypatch.setattr(os, "fsync", sync)
        events = save_until_the_loop_ends(folder / SETS[format], format, sync)
        monkeypatch.undo()
        there = (folder / SETS[format]).exists()
        assert events[-1].committed == there, f"the loop ended at sync {number}"
        if there:
            assert_identical(asyncio.run(asyncckpt.load(folder / SETS[format])), STATE)
            assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        else:
            assert not folder.exists(), f"left after the loop ended at sync {number}: {os.listdir(folder)}"
        visible.append(there)
        if sync.count < number:
            break
        number += 1
    assert visible[-1] is True
    # A small file is one step, which has begun when it is first synced; a set comes into being much later.
    assert visible[0] is (format == "mlcp")
    # Somewhere in between the commit had begun, and ran to its end although everything was cancelled.
    assert sum(visible) >= 2


def interrupt(location: str, options: dict[str, Any], mebibytes: int, event_number: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.operations.interrupted_saves"]
    arguments = [location, json.dumps(options), str(mebibytes), str(event_number)]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ.copy(),
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.thorough
@pytest.mark.parametrize("event_number", [2, 3, 4, 5])
def test_ctrl_c_twice_leaves_nothing_on_disk(event_number: int, tmp_path: Path) -> None:
    target = tmp_path / "run" / "a.checkpoint"
    answer = interrupt(str(target), {}, 24, event_number)
    assert answer["committed"] == target.exists()
    assert sorted(os.listdir(tmp_path)) == (["run"] if target.exists() else [])
    if target.exists():
        assert os.listdir(target.parent) == ["a.checkpoint"]
        assert asyncio.run(asyncckpt.verify(target)).ok


@pytest.mark.parametrize("event_number", [2, 3, 4, 5])
def test_ctrl_c_twice_leaves_no_upload(event_number: int, minio_bucket: S3Bucket) -> None:
    url = f"s3://{minio_bucket.name}/run/a.checkpoint"
    answer = interrupt(url, minio_bucket.storage_options, 24, event_number)
    assert minio_bucket.uploads() == []
    there = minio_bucket.keys() == ["run/a.checkpoint"]
    assert answer["committed"] == there
    if there:
        assert asyncio.run(asyncckpt.verify(url, storage_options=minio_bucket.storage_options)).ok
