"""A save over an old checkpoint that is cancelled or fails: the two states, and what holds afterwards."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

import asyncckpt
from asyncckpt.testing.cancelling import Outcome
from asyncckpt.testing.storage.wrappers import FaultyStorage
from asyncckpt.testing.strategies import assert_identical
from tests.operations.places import Medium

KEY = "run/a.checkpoint"
OLD = {"old": np.arange(10)}


def new_state(kind: str = "memory") -> dict[str, Any]:
    """A few parts; S3's can't be small."""
    items = 400_000 if kind == "minio" else 50_000
    return {"w": [np.full(items, i, np.float32) for i in range(8)], "step": 2}


async def assert_old_or_new(medium: Medium, state: Any, outcome: Outcome[Any], k: int) -> bool:
    """Nothing is left, and the old checkpoint or the new one is there, whole, alone. Puts the old one back.

    Returns whether it was the new one.
    """
    assert medium.leftovers() == [], f"after a cancel at await {k}"
    found = await asyncckpt.load((medium.storage, KEY))
    replaced = "old" not in found
    if replaced:
        assert_identical(found, state)
        await asyncckpt.save(OLD, (medium.storage, KEY), overwrite=True)
    else:
        assert not outcome.completed
        assert_identical(found, OLD)
    assert [info.key async for info in medium.storage.list()] == [KEY]
    return replaced


async def fail_each_call(
    medium: Medium, state: Any, error: Any, when: Literal["before", "after"] = "before"
) -> int:
    """Save with the first storage call failing, then the second, until none is left to fail: how many there were."""
    fail_at = 0
    while True:
        await asyncckpt.save(OLD, (medium.storage, KEY), overwrite=True)
        faulty = FaultyStorage(medium.storage, fail_at=fail_at, error=error, when=when)
        try:
            await asyncckpt.save(state, (faulty, KEY), overwrite=True)
        except asyncckpt.AsyncCkptError:
            assert faulty.failed
        assert medium.leftovers() == []
        found = await asyncckpt.load((medium.storage, KEY))
        assert_identical(found, OLD if "old" in found else state)
        if not faulty.failed:
            assert "old" not in found
            return fail_at
        fail_at += 1
