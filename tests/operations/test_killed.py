"""A process killed (SIGKILL) at each I/O step of a save: the old checkpoint loads, the new one is absent or whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import asyncckpt
from asyncckpt.testing.strategies import assert_identical
from tests.operations.killed_saves import state

ROOT = Path(__file__).parents[2]
SINGLE_FILES = [name for name in asyncckpt.format_names() if not name.endswith("-set")]


@pytest.mark.parametrize("name", SINGLE_FILES)
def test_killed_at_each_step(name: str, tmp_path: Path) -> None:
    first = tmp_path / f"a{asyncckpt.get_format(name).extension}"
    asyncckpt.blocking.save(state(1), first, format=name)
    folder = tmp_path / "runs"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.operations.killed_saves", name, str(first), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    codes = [int(line) for line in done.stdout.split()]
    assert codes[-1] == 0, done.stderr
    assert codes[:-1] == [-signal.SIGKILL] * (len(codes) - 1)
    assert len(codes) > 5
    steps = []
    for number in range(len(codes)):
        path = folder / str(number) / first.name
        found = asyncckpt.blocking.load(path)
        steps.append(found["step"])
        assert_identical(found, state(found["step"]))
        visible = [p.name for p in path.parent.iterdir() if not p.name.startswith(".")]
        assert visible == [path.name]
    # The old one until some step, the new one from there on.
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (1, 2)
