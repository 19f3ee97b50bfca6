"""Cancels at every single await on real servers, where the normal suite samples; and every storage call failed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

import asyncckpt
from asyncckpt.cancellation import CancellationToken
from asyncckpt.operations.convert import convert
from asyncckpt.testing.cancelling import WAYS, CancelBy, Outcome, assert_cancelled, sweep
from asyncckpt.testing.storage.wrappers import injected_error, storage_error_kinds
from tests.operations.overwrites import KEY, OLD, assert_old_or_new, fail_each_call, new_state
from tests.operations.places import SERVERS, open_medium

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(("how", "times"), WAYS)
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
            await assert_old_or_new(medium, state, outcome, k)
            assert_cancelled(outcome, how=how, times=times)

        assert await sweep(save, check, how=how, times=times) >= 3


@pytest.mark.parametrize("how", get_args(CancelBy))
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
            await assert_old_or_new(medium, state, outcome, k)
            assert_cancelled(outcome, how=how)

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
