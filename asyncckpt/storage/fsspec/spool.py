"""A local temp file that collects an object's parts until they can be put in one step."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncckpt.model.buffers import Buffer


class Packed:
    """A small object that needs no file: the same view of its content."""

    path: Path | None = None

    def __init__(self, views: Sequence[Buffer]) -> None:
        self._content = b"".join(views)

    @contextmanager
    def mapped(self) -> Iterator[mmap.mmap | bytes]:
        yield self._content

    def read(self, start: int, end: int) -> bytes:
        return self._content[start:end]


class Spool:
    """The file, readable by this user only. Every method blocks: call them in a thread.

    Raises OSError, of which the storage that spools makes its own errors.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._file, name = tempfile.mkstemp(prefix="asyncckpt-spool-", dir=folder)
        self.path: Path | None = Path(name)

    def write(self, offset: int, views: Sequence[Buffer]) -> None:
        """Write the views one after another; different parts may be written at the same time."""
        for view in views:
            if not memoryview(view).nbytes:
                continue
            rest = memoryview(view).cast("B")
            while rest:
                written = os.pwrite(self._file, rest, offset)
                offset += written
                rest = rest[written:]

    def finish(self, size: int) -> None:
        """Cut off what a part that was written again may have left beyond the end."""
        os.ftruncate(self._file, size)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    @contextmanager
    def mapped(self) -> Iterator[mmap.mmap | bytes]:
        """The whole content: it has a length, slices of it are bytes, and it is never in memory as a whole."""
        if not self.size():
            yield b""
            return
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as content:
            yield content

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._file, end - start, start)

    def remove(self) -> None:
        """Close and delete the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self.path is not None:
            self.path.unlink(missing_ok=True)
