"""Run by test_local_killed.py: writes that are killed at each of their system calls, in a process of their own.

    python -m tests.storage.local.killed_writers FOLDER METHOD

For k = 0, 1, 2 … it makes FOLDER/k with an old object in it and forks a child that kills itself just before
its k-th call; it ends when a child has lived to the end of its write, and prints how many were killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncckpt.storage.local import LocalStorage, kernel
from asyncckpt.testing.storage.bytes import cut, pattern

OLD = b"the old object"
NEW = pattern(3500, seed=1)
PART_BYTES = 1000
KEYS = {"write": "run/key", "open_writer": "run/key", "write_new": "run/new/key", "open_new": "run/new/key"}

_STEPS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "mkdir", "pwritev", "ftruncate", "utime", "fsync", "link", "replace")),
    *((os, name) for name in ("unlink", "close")),
    *((kernel, name) for name in ("reserve_space", "start_writeback")),
)


def main(folder: Path, method: str) -> None:
    for k in itertools.count():
        root = folder / str(k)
        (root / "run").mkdir(parents=True)
        (root / "run" / "key").write_bytes(OLD)
        child = os.fork()
        if child == 0:
            _write_and_die(root, method, k)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(k)
            sys.exit(os.WEXITSTATUS(status))


def _write_and_die(root: Path, method: str, k: int) -> None:
    steps = itertools.count()
    for module, name in _STEPS:
        setattr(module, name, _killing(getattr(module, name), steps, k))
    try:
        asyncio.run(_write(LocalStorage(root), method))
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def _killing(real: Callable[..., Any], steps: itertools.count[int], k: int) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        if next(steps) == k:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    return step


async def _write(storage: LocalStorage, method: str) -> None:
    key = KEYS[method]
    if method == "write":
        await storage.write(key, NEW)
    elif method == "write_new":
        await storage.write_new(key, NEW)
    else:
        async with storage.open_writer(
            key, size=len(NEW), part_bytes=PART_BYTES, exclusive=method == "open_new"
        ) as writer:
            for index, part in reversed(list(enumerate(cut(NEW, PART_BYTES)))):
                await writer.write_part(index, [part])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
