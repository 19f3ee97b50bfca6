"""One round of saves and loads by whichever asyncckpt is first on the path. Run by `benchmarks.revisions`.

Usage: python revision_process.py, by its path, with a JSON object on the standard input: `url`, `options`, `tensors`
(how many) and `tensor_bytes`. Prints a JSON object: seconds, CPU seconds, loop gaps and extra memory of each call.
It uses only what every revision has, and nothing of the tree that it lies in but `measure`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

import asyncckpt
from benchmarks.measure import measure


def make_state(tensors: int, tensor_bytes: int) -> dict[str, np.ndarray]:
    values = np.random.default_rng(1).random((tensors, tensor_bytes // 4), np.float32)
    return {f"blocks.{number}.weight": values[number] for number in range(tensors)}


async def run(asked: dict[str, Any]) -> dict[str, Any]:
    state = make_state(asked["tensors"], asked["tensor_bytes"])
    into = {name: np.ones_like(array) for name, array in state.items()}
    size = sum(array.nbytes for array in state.values())
    key = "model.checkpoint"
    found: dict[str, Any] = {}
    async with asyncckpt.open_storage(asked["url"], storage_options=asked["options"]) as storage:

        async def open_only() -> None:
            async with asyncckpt.open_checkpoint((storage, key)) as checkpoint:
                assert len(checkpoint.tensors) == len(state)

        # Twice each: the first one pays for imports, connections and fresh memory, and is not counted.
        for _ in range(2):
            sample, _ = await measure(
                lambda: asyncckpt.save(state, (storage, key), overwrite=True), result_bytes=size
            )
            found["save"] = asdict(sample)
            found["open"] = asdict((await measure(open_only))[0])
            sample, loaded = await measure(lambda: asyncckpt.load((storage, key)), result_bytes=size)
            found["load"] = asdict(sample)
            assert all(np.array_equal(loaded[name], array) for name, array in state.items())
            del loaded
            sample, _ = await measure(lambda: asyncckpt.load((storage, key), into=into))
            found["into"] = asdict(sample)
        await storage.delete(key)
    return found


if __name__ == "__main__":
    print(json.dumps({"package": asyncckpt.__file__, **asyncio.run(run(json.load(sys.stdin)))}))
