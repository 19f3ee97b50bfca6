"""One file of an open checkpoint: opened when first needed, pinned, mapped where that can be, not read twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from asyncckpt._aio import WorkerThreads, fan_out
from asyncckpt.errors import IncompleteCheckpointError, NotEnoughMemoryError
from asyncckpt.formats.kit.index import DeclaredFile, FileInfo, Need
from asyncckpt.formats.kit.steps import Steps, advance, clip
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.storage.base import ObjectInfo, ObjectReader

FIRST_BYTES = 128 * 1024
"""What the first request of an open fetches: the whole header of most checkpoints."""
_AHEAD_BYTES = 4 * 1024 * 1024
"""No more than this is fetched beyond what a parser asks for."""
_KEPT_BYTES = 8 * 1024 * 1024
"""What is kept of bytes that were read, besides the file's beginning."""
OPENED_AT_ONCE = 8
R = TypeVar("R")


class OpenFile:
    """One file: its pinned reader, its memory map where it has one, and runs of bytes that were read.

    One that an index only declares is opened by `ready`, and costs nothing before.
    """

    def __init__(
        self,
        location: ObjectLocation,
        reader: ObjectReader | None = None,
        *,
        declared: DeclaredFile | None = None,
        opener: Callable[[OpenFile], Awaitable[None]] | None = None,
    ) -> None:
        self.location = location
        self.mapped: memoryview | None = None
        self._declared = declared
        self._opener = opener
        self._opening = asyncio.Lock()
        self._runs: list[tuple[int, memoryview]] = []
        self._reader: ObjectReader | None = None
        self._missing: IncompleteCheckpointError | None = None
        if reader is not None:
            self.attach(reader)

    def attach(self, reader: ObjectReader) -> None:
        """From here on it is open. Raises IncompleteCheckpointError if it is another one."""
        info, declared = reader.info, self._declared
        if declared is not None and info.size != declared.size:
            raise IncompleteCheckpointError(
                f"{self.location.display} has {info.size} bytes, the checkpoint says {declared.size}"
            )
        self._reader = reader
        self._runs = [(0, memoryview(reader.first))]

    @property
    def is_declared(self) -> bool:
        """Whether its size was known before it was opened."""
        return self._declared is not None

    @property
    def declared_info(self) -> ObjectInfo | None:
        """The very version that the checkpoint names, where it names one: it needs no look before it is read."""
        declared = self._declared
        if declared is None or declared.version is None:
            return None
        return ObjectInfo(self.location.key, declared.size, declared.version)

    @property
    def is_open(self) -> bool:
        return self._reader is not None

    @property
    def reader(self) -> ObjectReader:
        """Its reader, once it is open."""
        assert self._reader is not None, "the file is not open: await ready() first"
        return self._reader

    @property
    def size(self) -> int:
        return self._declared.size if self._declared is not None else self.reader.info.size

    @property
    def source(self) -> FileInfo:
        return FileInfo(self.location.name, self.size)

    async def ready(self) -> None:
        """Open the file if it is not. Raises IncompleteCheckpointError, LayoutError, StorageError subclasses.

        What was missing once stays so: a set that is being changed must not be read half before, half after.
        """
        async with self._opening:
            if self._missing is not None:
                raise self._missing
            if self._reader is None:
                assert self._opener is not None
                try:
                    await self._opener(self)
                except IncompleteCheckpointError as error:
                    self._missing = error
                    raise

    def map(self) -> None:
        """Map the file, where the storage can. Blocks."""
        self.mapped = self.reader.map()
        if self.mapped is not None:
            self._runs = [(0, self.mapped)]

    def known(self, start: int, end: int) -> memoryview | None:
        """The bytes, if they were read already."""
        for offset, view in self._runs:
            if offset <= start and end <= offset + len(view):
                return view[start - offset : end - offset]
        return None

    async def read(self, start: int, end: int) -> memoryview:
        """Bytes of a header, and as many again behind them, so that what follows needs no request."""
        known = self.known(start, end)
        if known is not None:
            return known
        first = self._runs[0][1]
        extended = min(self.size, end + min(max(end - start, FIRST_BYTES), _AHEAD_BYTES))
        if start < FIRST_BYTES and start <= len(first):
            more = await self.reader.read_range(len(first), extended)
            data = memoryview(bytes(first) + more)
            self._runs[0] = (0, data)
            return data[start:end]
        data = memoryview(await self.reader.read_range(start, extended))
        self._keep(start, data)
        return data[: end - start]

    def _keep(self, start: int, data: memoryview) -> None:
        """A parser that goes through a whole file must not bring all of it into memory: the oldest runs go."""
        self._runs.append((start, data))
        while len(self._runs) > 1 and sum(len(view) for _, view in self._runs[1:]) > _KEPT_BYTES:
            del self._runs[1]


async def parse_object(steps: Steps[R], file: OpenFile, threads: WorkerThreads) -> R:
    """Run a parser over one open file; it runs in a thread. Raises what the parser raises."""

    def known(need: Need) -> memoryview | None:
        return file.known(*clip(need, file.size))

    state = await threads.run(advance, steps, None, known)
    while isinstance(state, Need):
        state = await threads.run(advance, steps, await file.read(*clip(state, file.size)), known)
    return state.value


@contextmanager
def short_of_memory(display: str, needed: Callable[[], str]) -> Iterator[None]:
    """Python's MemoryError says nothing: here it becomes a NotEnoughMemoryError that says what to do."""
    try:
        yield
    except NotEnoughMemoryError:
        raise
    except MemoryError as error:
        raise NotEnoughMemoryError(
            f"{display}: there is not enough memory for {needed()}; load some of the tensors (only=), read slices, or "
            "fill arrays that exist (into=)"
        ) from error


async def open_all(files: Iterable[OpenFile]) -> None:
    """Open those that are not open yet, several at once. Raises as `OpenFile.ready` does."""
    await fan_out(OpenFile.ready, (file for file in files if not file.is_open), limit=OPENED_AT_ONCE)
