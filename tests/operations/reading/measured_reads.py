"""Reads a checkpoint in a process of its own and prints the most memory that it took, beyond what it began with.

python -m tests.operations.reading.measured_reads OPERATION PATH MEMORY_BYTES
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path
from typing import Any

import asyncckpt
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.metagraph.signature import verify_key_of

KEY = bytes(range(32))
SIGNING_KEY = bytes(range(1, 33))
NAME = "w"


def reading_format(path: Path) -> Any:
    """What reads the file, where its bytes do not tell."""
    if path.stem == "aes":
        return MetagraphFormat(key=KEY)
    return MetagraphFormat(verify_key=verify_key_of(SIGNING_KEY)) if path.stem == "signed" else None


async def read(operation: str, path: Path, memory_bytes: int) -> None:
    format = reading_format(path)
    if operation == "verify":
        report = await asyncckpt.verify(path, format=format, memory_bytes=memory_bytes)
        assert report.ok, report.problems
    elif operation == "convert":
        target = path.with_suffix(".converted")
        await asyncckpt.convert(
            path,
            target,
            to="mlcp",
            source_format=format,
            memory_bytes=memory_bytes,
            allow_loss=True,
            overwrite=True,
        )
    elif operation == "load":
        state = await asyncckpt.load(path, format=format, map=False, memory_bytes=memory_bytes)
        assert state[NAME].nbytes > 0
    else:
        async with asyncckpt.open_checkpoint(
            path, format=format, map=False, memory_bytes=memory_bytes
        ) as checkpoint:
            size = checkpoint.tensors[NAME].shape[0]
            assert (await checkpoint.read_slice(NAME, slice(size // 2, size // 2 + 3))).shape == (3,)
            # One item of each million: all of it has to be seen, and next to nothing is kept.
            assert (await checkpoint.read_slice(NAME, slice(None, None, 1000))).nbytes < size


def anonymous_bytes() -> int:
    """What the process holds for itself; pages of mapped files can be given back at any time."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


class Peak:
    """Looks often, from a thread."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.001):
            self.bytes = max(self.bytes, anonymous_bytes())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def main() -> None:
    operation, path, memory_bytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    # What is imported and started by the first use of a format is not what it takes to read.
    asyncio.run(read(operation, path.parent / "small" / path.name, memory_bytes))
    before = anonymous_bytes()
    with Peak() as peak:
        asyncio.run(read(operation, path, memory_bytes))
    print(max(0, peak.bytes - before))


if __name__ == "__main__":
    main()
