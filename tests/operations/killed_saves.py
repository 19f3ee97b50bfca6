"""Saves in child processes that kill themselves at their k-th call of the operating system. Run by test_killed.py.

Usage: python -m tests.operations.killed_saves FORMAT FIRST FOLDER
For k = 0, 1, 2 … the file FIRST is copied to FOLDER/k and saved over there, until a save ends by itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import asyncckpt
from asyncckpt.operations import write

CALLS = (
    "open",
    "pwritev",
    "pwrite",
    "write",
    "fsync",
    "fdatasync",
    "link",
    "unlink",
    "replace",
    "rename",
    "mkdir",
)

MOST_CALLS = 80


def state(step: int) -> dict[str, Any]:
    return {"w": [np.full(9_000, step + i, np.float32) for i in range(3)], "step": step}


def kill_at(number: int) -> None:
    """Count the calls that change the disk, and die before the one with this number."""
    count = 0

    def counted(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return original(*args, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def save_and_die(path: Path, name: str, number: int) -> None:
    kill_at(number)
    asyncckpt.blocking.save(state(2), path, format=name, overwrite=True)


def main() -> None:
    name, first, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    write.SMALL_FILE_BYTES = 1_000
    asyncckpt.get_format(name)
    for number in range(MOST_CALLS):
        path = folder / str(number) / first.name
        path.parent.mkdir()
        shutil.copy(first, path)
        # No thread runs here yet, so a fork is safe, and much faster than a new interpreter for each step.
        child = os.fork()
        if child == 0:
            save_and_die(path, name, number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(code)
        if code != -signal.SIGKILL:
            return


if __name__ == "__main__":
    main()
