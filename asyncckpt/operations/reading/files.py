"""The files of an open checkpoint: pinned readers, memory maps, and what was read of them already."""

from __future__ import annotations

from contextlib import AsyncExitStack

from asyncckpt._aio import WorkerThreads, gc_paused
from asyncckpt.errors import (
    CheckpointNotFoundError,
    FormatError,
    IncompleteCheckpointError,
    InvalidKeyError,
    LayoutError,
    ObjectNotFoundError,
    TruncatedError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import FileInfo, Index, Need, ParseSteps
from asyncckpt.formats.registry import SNIFF_BYTES, format_for_name, sniff
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.reading.leader import find_leader
from asyncckpt.operations.runtime import run_inline_or_threaded
from asyncckpt.storage.base import ObjectReader

FIRST_BYTES = 128 * 1024
"""What the first request of an open fetches: the whole header of most checkpoints."""


class OpenFile:
    """One file: its pinned reader, its memory map where it has one, and runs of bytes that were read."""

    def __init__(self, location: ObjectLocation, reader: ObjectReader) -> None:
        self.location = location
        self.reader = reader
        self.mapped: memoryview | None = None
        self._runs: list[tuple[int, memoryview]] = [(0, memoryview(reader.first))]

    @property
    def size(self) -> int:
        return self.reader.info.size

    @property
    def source(self) -> FileInfo:
        return FileInfo(self.location.name, self.size)

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
        offset, view = self._runs[0]
        extended = min(self.size, end + max(end - start, FIRST_BYTES))
        if offset == 0 and start <= len(view) < end:
            more = await self.reader.read_range(len(view), extended)
            self._runs[0] = (0, memoryview(bytes(view) + more))
        else:
            self._runs.append((start, memoryview(await self.reader.read_range(start, extended))))
        found = self.known(start, end)
        assert found is not None
        return found


class OpenFiles:
    """All files of one checkpoint, opened as its parser asks for them; `map` maps those that can be mapped."""

    def __init__(
        self, location: ObjectLocation, threads: WorkerThreads, stack: AsyncExitStack, *, map: bool
    ) -> None:
        self._location = location
        self._map = map
        self._threads = threads
        self._stack = stack
        self._by_name: dict[str, OpenFile] = {}

    async def open(self, name: str) -> OpenFile:
        """The file of that name beside the checkpoint. Raises IncompleteCheckpointError, LayoutError."""
        if name in self._by_name:
            return self._by_name[name]
        location = self._location.sibling(name)
        try:
            file = await self._open(name, location)
        except ObjectNotFoundError as error:
            raise IncompleteCheckpointError(f"{location.display} is missing from the set") from error
        except InvalidKeyError as error:
            # The caller's key was good; it is the checkpoint that names a file which can't be one on this storage.
            raise LayoutError(f"the file {name[:80]!a} of the set can't be opened: {error}") from error
        if self._map:
            await self._threads.run(file.map)
        return file

    async def _open_main(self, chosen: ICheckpointFormat | None) -> OpenFile:
        """The checkpoint's own file, or the one that leads the set of its name. Raises CheckpointNotFoundError."""
        try:
            return await self._open("", self._location)
        except ObjectNotFoundError as error:
            named = chosen or await self._threads.run(format_for_name, self._location.name)
            leader = await find_leader(self._location, named)
            if leader is None:
                raise CheckpointNotFoundError(
                    f"there is no checkpoint at {self._location.display}: {error}"
                ) from error
        return await self._open("", leader)

    async def _open(self, name: str, location: ObjectLocation) -> OpenFile:
        reader = await self._stack.enter_async_context(
            location.storage.open_reader(location.key, first_bytes=FIRST_BYTES)
        )
        file = self._by_name[name] = OpenFile(location, reader)
        return file

    async def parse(self, chosen: ICheckpointFormat | None) -> tuple[ICheckpointFormat, Index]:
        """Recognise and parse the checkpoint. Raises FormatError subclasses, IncompleteCheckpointError."""
        main = await self._open_main(chosen)
        try:
            found, steps, need = await self._threads.run(gc_paused()(self._begin), main, chosen)
            while isinstance(need, Need):
                need = await self._answer(steps, need)
            await run_inline_or_threaded(self._threads, len(need.tensors), self._require_inside, need)
        except FormatError as error:
            is_cut = isinstance(error, TruncatedError)
            error.locate(
                main.location.display,
                "it is cut short: copy it again, or use another one" if is_cut else None,
            )
            raise
        return found, need

    def _require_inside(self, index: Index) -> None:
        """Every run of bytes must lie in its file; a parser can't tell for the other files of a set."""
        sizes = [file.size for file in self.of(index)]
        for stored in index.tensors:
            for extent in stored.runs:
                if extent.end > sizes[extent.file]:
                    raise TruncatedError(
                        f"tensor {stored.name!r} ends at byte {extent.end} of {index.files[extent.file]!r}, "
                        f"which has {sizes[extent.file]}"
                    )

    def _begin(
        self, main: OpenFile, chosen: ICheckpointFormat | None
    ) -> tuple[ICheckpointFormat, ParseSteps, Need | Index]:
        if self._map:
            main.map()
        head = main.known(0, min(SNIFF_BYTES, main.size)) or memoryview(b"")
        found = chosen or sniff(head, main.source)
        steps = found.parse(main.source)
        return found, steps, self._advance(steps, None)

    async def _answer(self, steps: ParseSteps, need: Need) -> Need | Index:
        try:
            file = await self.open(need.file)
        except IncompleteCheckpointError as error:
            return await self._threads.run(self._throw, steps, error)
        start, end = _absolute(need, file.size)
        if file.known(start, end) is None:
            await file.read(start, end)
        return await self._threads.run(gc_paused()(self._advance), steps, file.known(start, end))

    def _advance(self, steps: ParseSteps, data: memoryview | None) -> Need | Index:
        """Run the parser until it needs bytes that are not there yet, or has its index."""
        try:
            need = next(steps) if data is None else steps.send(data)
            while (known := self._known(need)) is not None:
                need = steps.send(known)
        except StopIteration as stop:
            index: Index = stop.value
            return index
        return need

    def _throw(self, steps: ParseSteps, error: IncompleteCheckpointError) -> Need | Index:
        try:
            need = steps.throw(error)
        except StopIteration as stop:
            index: Index = stop.value
            return index
        known = self._known(need)
        return need if known is None else self._advance(steps, known)

    def _known(self, need: Need) -> memoryview | None:
        file = self._by_name.get(need.file)
        return None if file is None else file.known(*_absolute(need, file.size))

    def of(self, index: Index) -> list[OpenFile]:
        """The files of the index, in its order; the parser has opened them all."""
        return [self._by_name[name] for name in index.files]


def _absolute(need: Need, size: int) -> tuple[int, int]:
    start = need.start if need.start >= 0 else max(0, size + need.start)
    start = min(start, size)
    return start, min(size, start + max(0, need.size))
