"""A process killed (SIGKILL) before each system call of a local write: the old is intact, the new absent or whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.local.folders import is_temp_name
from tests.storage.local.killed_writers import KEYS, NEW, OLD

pytestmark = pytest.mark.thorough

_PROJECT = Path(__file__).parents[3]


def kill_writers(folder: Path, method: str) -> int:
    """Kill a writer at each step; the number of steps."""
    command = [sys.executable, "-m", "tests.storage.local.killed_writers", str(folder), method]
    ended = subprocess.run(command, cwd=_PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@pytest.mark.parametrize("method", KEYS)
async def test_killed_at_each_step(tmp_path: Path, method: str) -> None:
    key = KEYS[method]
    steps = await run_in_thread(kill_writers, tmp_path, method)
    assert steps > 10
    before = {"run/key": OLD}
    after = {**before, key: NEW}
    seen = [await _state_after_kill(tmp_path / str(k)) for k in range(steps + 1)]
    assert seen[0] == before
    assert seen[-1] == after
    assert all(state in (before, after) for state in seen)
    # Once it is there it stays there: the write became visible in one step.
    assert seen == sorted(seen, key=lambda state: state == after)


async def _state_after_kill(root: Path) -> dict[str, bytes]:
    """What the storage shows; anything else on the disk is hidden, and does not hinder the next write."""
    storage = LocalStorage(root)
    state = {info.key: await storage.read(info.key) async for info in storage.list()}
    others = [path for path in root.rglob("*") if path.is_file() and str(path.relative_to(root)) not in state]
    assert len(others) <= 1
    assert all(is_temp_name(path.name) for path in others)
    await storage.write("run/new/next", b"next")
    assert await storage.read("run/new/next") == b"next"
    return state
