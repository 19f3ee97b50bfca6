"""Saves in child processes that kill themselves at their k-th call of the operating system. Run by test_killed.py.

Usage: python -m tests.operations.killed_saves KIND FIRST FOLDER
For k = 0, 1, 2 … the folder FIRST, with an old checkpoint in it, is copied to FOLDER/k and saved to there, until a save
ends by itself: over the old one, or, a set of files, which is never overwritten, beside it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import asyncckpt
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.operations.writing import file as write

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

MOST_CALLS = 120

Kinds = dict[str, Callable[[], ICheckpointFormat]]
SINGLE_FILES: Kinds = {
    name: lambda name=name: get_format(name)  # type: ignore[misc]
    for name in format_names()
    if not name.endswith("-set")
}
SETS: Kinds = {
    "mlcp-set": lambda: get_format("mlcp-set"),
    "safetensors-set": lambda: HuggingFaceSetFormat(max_file_bytes=40_000, side_files={"config.json": b"{}"}),
    "sdnb in shards": lambda: SdnbFormat(shards=3),
}
KINDS: Kinds = {**SINGLE_FILES, **SETS}


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


def old_name(kind: str) -> str:
    """What the checkpoint is called that is there before the save."""
    return f"old{KINDS[kind]().extension}"


def new_name(kind: str) -> str:
    """What the save is told to write: a set goes into a folder of its own, as it is published."""
    return old_name(kind) if kind in SINGLE_FILES else f"new/model{KINDS[kind]().extension}"


def save_and_die(path: Path, kind: str, number: int) -> None:
    format = KINDS[kind]()
    kill_at(number)
    asyncckpt.blocking.save(state(2), path, format=format, overwrite=kind in SINGLE_FILES)


def main() -> None:
    kind, first, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    write.SMALL_FILE_BYTES = 1_000
    for number in range(MOST_CALLS):
        shutil.copytree(first, folder / str(number))
        # No thread runs here yet, so a fork is safe, and much faster than a new interpreter for each step.
        child = os.fork()
        if child == 0:
            save_and_die(folder / str(number) / new_name(kind), kind, number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(code)
        if code != -signal.SIGKILL:
            return


if __name__ == "__main__":
    main()
