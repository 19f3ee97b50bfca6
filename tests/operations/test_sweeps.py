"""Cancelled at every await, failed at every storage call: nothing is left and the old checkpoint is intact.

Exhaustive on memory and local; on servers every k up to a bound, then a sample with the run's seed.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest

import asyncckpt
from asyncckpt.cancellation import CancellationToken
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.cancelling import WAYS, CancelBy, Outcome, assert_cancelled, sweep
from asyncckpt.testing.storage.wrappers import FaultyStorage, injected_error, storage_error_kinds
from asyncckpt.testing.strategies import assert_identical
from tests.operations.overwrites import KEY, OLD, assert_old_or_new, fail_each_call, new_state
from tests.operations.places import EVERYWHERE, HERE, Medium, open_medium


@pytest.mark.parametrize(("how", "times"), WAYS)
@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_save_cancelled_at_every_await(
    kind: str,
    how: CancelBy,
    times: int,
    file_size: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    sweep_seed: int,
) -> None:
    state = new_state(kind)
    async with open_medium(kind, tmp_path, request) as medium:
        await asyncckpt.save(OLD, (medium.storage, KEY))
        events: list[asyncckpt.ProgressEvent] = []

        async def save(token: CancellationToken | None) -> Any:
            return await asyncckpt.save(
                state, (medium.storage, KEY), overwrite=True, cancellation=token, progress=events.append
            )

        async def check(k: int, outcome: Outcome[Any]) -> None:
            replaced = await assert_old_or_new(medium, state, outcome, k)
            assert events[-1].committed == replaced, f"cancelled by {how} at await {k}"
            assert_cancelled(outcome, how=how, times=times)

        await _sweep(save, check, medium, how=how, times=times, seed=sweep_seed)


async def _sweep(
    operation: Any, check: Any, medium: Medium, *, how: CancelBy, times: int = 1, seed: int
) -> None:
    rng = None if medium.exhaustive else random.Random(seed)
    await sweep(operation, check, how=how, times=times, rng=rng, exhaustive_up_to=40, samples=8)


@pytest.mark.parametrize("operation", ["load", "slice", "verify"])
@pytest.mark.parametrize("how", get_args(CancelBy))
@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_reads_cancelled_at_every_await(
    kind: str, how: CancelBy, operation: str, tmp_path: Path, request: pytest.FixtureRequest, sweep_seed: int
) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, KEY)
        await asyncckpt.save(new_state(), place)

        async def run(token: CancellationToken | None) -> Any:
            if operation == "load":
                return await asyncckpt.load(place, cancellation=token)
            if operation == "verify":
                return await asyncckpt.verify(place, cancellation=token)
            async with asyncckpt.open_checkpoint(place, cancellation=token) as checkpoint:
                return await checkpoint.read_slice("w.3", slice(10, 20))

        async def check(k: int, outcome: Outcome[Any]) -> None:
            assert_cancelled(outcome, how=how)
            assert medium.leftovers() == []

        await _sweep(run, check, medium, how=how, seed=sweep_seed)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", HERE)
async def test_save_failed_at_every_storage_call(
    kind: str,
    when: Literal["before", "after"],
    file_size: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    state = new_state()
    async with open_medium(kind, tmp_path, request) as medium:
        for error_kind in storage_error_kinds():
            calls = await fail_each_call(medium, state, partial(injected_error, error_kind), when)
            assert calls >= 1


@pytest.mark.parametrize("kind", HERE)
async def test_load_failed_at_every_storage_call(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        await asyncckpt.save(new_state(), (medium.storage, KEY))
        for error_kind in storage_error_kinds():
            fail_at = 0
            while True:
                faulty = FaultyStorage(
                    medium.storage, fail_at=fail_at, error=partial(injected_error, error_kind)
                )
                try:
                    found = await asyncckpt.load((faulty, KEY))
                except asyncckpt.AsyncCkptError:
                    found = None
                if not faulty.failed:
                    assert_identical(found, new_state())
                    break
                assert found is None
                fail_at += 1
            assert fail_at >= 1


@pytest.mark.parametrize("how", get_args(CancelBy))
@pytest.mark.parametrize("kind", HERE)
async def test_convert_cancelled_at_every_await(
    kind: str, how: CancelBy, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state = new_state()
    async with open_medium(kind, tmp_path, request) as medium:
        await asyncckpt.save(OLD, (medium.storage, KEY))
        source = MemoryStorage()
        await asyncckpt.save(state, (source, "a.safetensors"))

        async def run(token: CancellationToken | None) -> Any:
            return await asyncckpt.convert(
                (source, "a.safetensors"), (medium.storage, KEY), overwrite=True, cancellation=token
            )

        async def check(k: int, outcome: Outcome[Any]) -> None:
            await assert_old_or_new(medium, state, outcome, k)
            assert_cancelled(outcome, how=how)

        assert await sweep(run, check, how=how) >= 3


@pytest.mark.parametrize(("how", "times"), WAYS)
@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model.metadata.json"])
async def test_a_cancelled_set_leaves_no_file_and_no_folder(
    name: str, how: CancelBy, times: int, tmp_path: Path
) -> None:
    state = {"w": [np.full(100, i, np.float32) for i in range(4)], "step": 2}
    runs = itertools.count()
    current = 0

    def folder() -> Path:
        return tmp_path / f"run-{current}" / "set"

    async def save(token: CancellationToken | None) -> Any:
        nonlocal current
        current = next(runs)
        return await asyncckpt.save(state, folder() / name, cancellation=token)

    async def check(k: int, outcome: Outcome[Any]) -> None:
        assert_cancelled(outcome, how=how, times=times)
        if (folder() / name).exists():
            assert_identical(await asyncckpt.load(folder() / name), state)
        else:
            assert not outcome.completed
            assert not folder().parent.exists(), f"cancelled by {how} × {times} at await {k}"

    assert await sweep(save, check, how=how, times=times) >= 3
