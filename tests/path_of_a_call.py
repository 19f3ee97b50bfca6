"""The modules of asyncckpt of which a function runs during one warm save to S3 and one warm load.

`python -m tests.path_of_a_call` starts a MinIO, counts and prints both paths in the order in which the modules are
entered: what somebody has to read who follows a call from its beginning to its end.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import asyncckpt
from tests.servers import S3Bucket, start_minio

PACKAGE = Path(asyncckpt.__file__).parent
# Several parts, so that it is the path of a large file: a small one takes less of it.
STATE = {"layers": [np.full((1024, 2048), i, np.float32) for i in range(4)], "step": 7}


class CallPath:
    """Notes each module when one of its functions is first called, in any thread, while `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self.found: dict[str, str] = {}
        self._names: dict[str, str | None] = {}

    def hear(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self.recording:
            return
        file = frame.f_code.co_filename
        if file not in self._names:
            self._names[file] = _module_name(file)
        name = self._names[file]
        if name is not None and frame.f_code.co_name != "<module>":
            self.found.setdefault(name, frame.f_code.co_qualname)

    async def of(self, call: Awaitable[Any]) -> dict[str, str]:
        """The modules that a call runs through, each with the function that was called first."""
        self.found, self.recording = {}, True
        try:
            await call
        finally:
            self.recording = False
        return self.found


def _module_name(file: str) -> str | None:
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return None
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


async def paths(bucket: S3Bucket) -> tuple[dict[str, str], dict[str, str]]:
    """The path of a save and of a load; both have been done once before, so that nothing is set up or imported."""
    path = CallPath()
    threading.setprofile(path.hear)  # for the worker threads, which start with the first save
    sys.setprofile(path.hear)
    try:
        async with asyncckpt.open_storage(bucket.url, storage_options=bucket.storage_options) as storage:
            location = (storage, "run/model.checkpoint")
            await asyncckpt.save(STATE, location)
            await asyncckpt.load(location)
            saved = await path.of(asyncckpt.save(STATE, location, overwrite=True))
            loaded = await path.of(asyncckpt.load(location))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return saved, loaded


def main() -> None:
    with start_minio() as server:
        bucket = server.new_bucket()
        for title, found in zip(("save", "load"), asyncio.run(paths(bucket)), strict=True):
            print(f"{title}: {len(found)} modules")
            for number, (module, function) in enumerate(found.items(), 1):
                print(f"  {number:3}  {module:<36}{function}")
        bucket.remove()


if __name__ == "__main__":
    main()
