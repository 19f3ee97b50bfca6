"""The first checkpoint of a process, and what it imports on the event loop's thread. Run by test_cold_start.py.

Usage: python -m tests.operations.cold_start, with a JSON object on the standard input: `url` of the checkpoint,
`options` of its storage, `opened` for whether the storage is opened first. Prints the files of the modules that
were run by the loop's thread while the loop ran, and by other threads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import suppress
from types import CodeType
from typing import Any

import numpy as np

import asyncckpt
from asyncckpt.storage.factory import split_location


class Imports:
    """Notes every module that is run from a file, and by which thread; an audit hook can't be fooled by a cache."""

    def __init__(self) -> None:
        self.on_loop: list[str] = []
        self.in_threads: list[str] = []
        self._loop_thread: int | None = None
        sys.addaudithook(self._hear)

    async def watch(self, work: Any) -> None:
        """Run a coroutine; what is imported meanwhile is noted."""
        self._loop_thread = threading.get_ident()
        try:
            await work
        finally:
            self._loop_thread = None

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._loop_thread is None:
            return
        file = _module_file(event, args)
        if file is not None:
            here = threading.get_ident() == self._loop_thread
            (self.on_loop if here else self.in_threads).append(file)


def _module_file(event: str, args: tuple[Any, ...]) -> str | None:
    """The file of the module that an audit event tells of: Python code about to be run, or a library to be loaded."""
    if event == "exec" and isinstance(args[0], CodeType):
        code = args[0]
        return code.co_filename if code.co_name == "<module>" and code.co_filename.endswith(".py") else None
    if event == "import" and args[1] is not None:
        return str(args[1])
    return None


async def _every_operation(place: Any, other: Any, missing: Any, **options: Any) -> None:
    state = {"w": np.arange(1000), "step": 3}
    await asyncckpt.save(state, place, overwrite=True, **options)
    await asyncckpt.load(place, **options)
    async with asyncckpt.open_checkpoint(place, format="mlcp", **options) as checkpoint:
        await checkpoint.read_slice("w", slice(0, 3))
    assert (await asyncckpt.verify(place, **options)).ok
    await asyncckpt.convert(place, other, overwrite=True, **options)
    await asyncckpt.load(other, **options)
    with suppress(asyncckpt.FormatError):
        await asyncckpt.load(place, format="sdz", **options)
    with suppress(asyncckpt.CheckpointNotFoundError):
        await asyncckpt.load(missing, **options)


async def main(asked: dict[str, Any], imports: Imports) -> None:
    url, options = asked["url"], asked["options"]
    if not asked["opened"]:
        places = url, f"{url}.safetensors", f"{url}.sdnb"
        await imports.watch(_every_operation(*places, storage_options=options))
        return

    async def through_a_storage() -> None:
        root, key = split_location(url)
        async with asyncckpt.open_storage(root, storage_options=options) as storage:
            await _every_operation((storage, key), (storage, f"{key}.safetensors"), (storage, f"{key}.sdnb"))

    await imports.watch(through_a_storage())


if __name__ == "__main__":
    noted = Imports()
    asyncio.run(main(json.load(sys.stdin), noted))
    print(json.dumps({"on_loop": noted.on_loop, "in_threads": noted.in_threads}))
