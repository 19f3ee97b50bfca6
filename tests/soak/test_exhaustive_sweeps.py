"""Cancels at every single await on real servers, where the normal suite samples; and every storage call failed."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import asyncckpt
from asyncckpt.cancellation import CancellationToken
from asyncckpt.operations.convert import convert
from asyncckpt.testing.faults import CancelBy, Outcome, sweep
from asyncckpt.testing.storage_faults import injected_error, storage_error_kinds
from tests.operations.overwrites import KEY, OLD, assert_old_or_new, fail_each_call, new_state
from tests.operations.places import SERVERS, Medium, open_medium

pytestmark = pytest.mark.soak


async def check_medium(medium: Medium, state: Any, outcome: Outcome[Any], k: int) -> None:
    await assert_old_or_new(medium, state, outcome, k)
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
            await check_medium(medium, state, outcome, k)

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
            await check_medium(medium, state, outcome, k)

        assert await sweep(run, check, how=how) >= 3


@pytest.mark.parametrize("kind", SERVERS)
async def test_save_failed_at_every_storage_call(
    kind: str, file_size: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state = new_state(kind)
    async with open_medium(kind, tmp_path, request) as medium:
        for error_kind in storage_error_kinds():
            calls = await fail_each_call(medium, state, partial(injected_error, error_kind))
            assert calls >= 1
