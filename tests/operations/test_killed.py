"""A process killed (SIGKILL) at each I/O step of a save: the old checkpoint loads, the new one is absent or whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import asyncckpt
from asyncckpt.testing.strategies import assert_identical
from tests.operations.killed_saves import KINDS, SETS, SINGLE_FILES, new_name, old_name, state

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


def killed_runs(kind: str, folder: Path) -> list[Path]:
    """The folders that the killed saves left, and, last, that of the one that was not killed."""
    first, runs = folder / "first", folder / "runs"
    asyncckpt.blocking.save(state(1), first / old_name(kind), format=KINDS[kind]())
    runs.mkdir()
    command = [sys.executable, "-m", "tests.operations.killed_saves", kind, str(first), str(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    codes = [int(line) for line in done.stdout.split()]
    assert codes[-1] == 0, done.stderr
    assert codes[:-1] == [-signal.SIGKILL] * (len(codes) - 1)
    assert len(codes) > 5
    return [runs / str(number) for number in range(len(codes))]


@pytest.mark.parametrize("kind", SINGLE_FILES)
def test_killed_at_each_step(kind: str, tmp_path: Path) -> None:
    steps = []
    for run in killed_runs(kind, tmp_path):
        found = asyncckpt.blocking.load(run / old_name(kind))
        steps.append(found["step"])
        assert_identical(found, state(found["step"]))
        visible = [path.name for path in run.iterdir() if not path.name.startswith(".")]
        assert visible == [old_name(kind)]
    # The old one until some step, the new one from there on.
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (1, 2)


@pytest.mark.parametrize("kind", SETS)
def test_a_set_killed_at_each_step_does_not_exist_until_it_is_whole(kind: str, tmp_path: Path) -> None:
    whole = []
    for run in killed_runs(kind, tmp_path):
        assert_identical(asyncckpt.blocking.load(run / old_name(kind)), state(1))
        try:
            found = asyncckpt.blocking.load(run / new_name(kind))
        except (asyncckpt.CheckpointNotFoundError, asyncckpt.IncompleteCheckpointError):
            whole.append(False)
        else:
            assert_identical(found, state(2))
            whole.append(True)
    # Its files are written side by side, so the k-th call is not the same one in every run.
    assert (whole[0], whole[-1]) == (False, True)
