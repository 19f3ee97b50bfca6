"""Cancels at every single await on real servers, where the normal suite samples; and every storage call failed."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.cancellation import CancellationToken
from asyncckpt.operations import write
from asyncckpt.operations.convert import convert
from asyncckpt.testing.faults import CancelBy, Outcome, sweep
from asyncckpt.testing.storage_faults import FaultyStorage, injected_error, storage_error_kinds
from asyncckpt.testing.strategies import assert_identical
from tests.operations.places import SERVERS, Medium, open_medium

pytestmark = pytest.mark.soak

KEY = "run/a.checkpoint"
OLD = {"old": np.arange(10)}


def new_state(kind: str) -> dict[str, Any]:
    """A few parts; S3's can't be small."""
    items = 400_000 if kind == "minio" else 50_000
    return {"w": [np.full(items, i, np.float32) for i in range(8)], "step": 2}


@pytest.fixture(params=["small", "large"])
def file_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same state as one object, and in parts."""
    if request.param == "large":
        monkeypatch.setattr(write, "SMALL_FILE_BYTES", 100)
    return str(request.param)


async def check_medium(medium: Medium, state: Any, outcome: Outcome[Any]) -> None:
    """Nothing is left, and the old checkpoint or the new one is there, whole, alone."""
    assert medium.leftovers() == []
    found = await asyncckpt.load((medium.storage, KEY))
    if "old" in found:
        assert not outcome.completed
        assert_identical(found, OLD)
    else:
        assert_identical(found, state)
        await asyncckpt.save(OLD, (medium.storage, KEY), overwrite=True)
    assert [info.key async for info in medium.storage.list()] == [KEY]
    expected = asyncio.CancelledError | asyncckpt.OperationCancelledError | TimeoutError
    assert outcome.completed or isinstance(outcome.error, expected)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("how", ["task", "token", "timeout"])
@pytest.mark.parametrize("kind", SERVERS)
async def test_save_cancelled_at_every_await(
    kind: str, how: CancelBy, times: int, file_size: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state = new_state(kind)
    async with open_medium(kind, tmp_path, request) as medium:
        await asyncckpt.save(OLD, (medium.storage, KEY))

        async def save(token: CancellationToken | None) -> Any:
            return await asyncckpt.save(state, (medium.storage, KEY), overwrite=True, cancellation=token)

        async def check(k: int, outcome: Outcome[Any]) -> None:
            await check_medium(medium, state, outcome)

        assert await sweep(save, check, how=how, times=times) >= 3


@pytest.mark.parametrize("how", ["task", "token", "timeout"])
@pytest.mark.parametrize("kind", SERVERS)
async def test_convert_cancelled_at_every_await(
    kind: str, how: CancelBy, file_size: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state = new_state(kind)
    async with open_medium(kind, tmp_path, request) as medium:
        await asyncckpt.save(OLD, (medium.storage, KEY))
        source = tmp_path / "source.safetensors"
        await asyncckpt.save(state, source)

        async def run(token: CancellationToken | None) -> Any:
            return await convert(source, (medium.storage, KEY), overwrite=True, cancellation=token)

        async def check(k: int, outcome: Outcome[Any]) -> None:
            await check_medium(medium, state, outcome)

        assert await sweep(run, check, how=how) >= 3


@pytest.mark.parametrize("kind", SERVERS)
async def test_save_failed_at_every_storage_call(
    kind: str, file_size: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state = new_state(kind)
    async with open_medium(kind, tmp_path, request) as medium:
        for error_kind in storage_error_kinds():
            fail_at, failed = 0, True
            while failed:
                await asyncckpt.save(OLD, (medium.storage, KEY), overwrite=True)
                faulty = FaultyStorage(
                    medium.storage, fail_at=fail_at, error=partial(injected_error, error_kind)
                )
                try:
                    await asyncckpt.save(state, (faulty, KEY), overwrite=True)
                except asyncckpt.AsyncCkptError:
                    assert faulty.failed
                assert medium.leftovers() == []
                found = await asyncckpt.load((medium.storage, KEY))
                assert_identical(found, OLD if "old" in found else state)
                failed = faulty.failed is not None
                fail_at += 1
            assert fail_at >= 2
