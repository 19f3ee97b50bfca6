"""The files of a checkpoint: found, opened as its parser needs them, and parsed."""

from __future__ import annotations

from contextlib import AsyncExitStack

from asyncckpt._aio import WorkerThreads, fan_out, gc_paused
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
from asyncckpt.formats.kit.index import DeclaredFile, Index, Need, ParseSteps
from asyncckpt.formats.kit.steps import Answer, Parsed, advance, clip
from asyncckpt.formats.kit.table import first_outside
from asyncckpt.formats.registry import SNIFF_BYTES, format_for_name, sniff
from asyncckpt.model.file_names import relative_key_problem
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.reading.open_file import FIRST_BYTES, OPENED_AT_ONCE, OpenFile, open_all
from asyncckpt.operations.runtime import run_inline_or_threaded


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

    # -- opening -----------------------------------------------------------------------------------------------

    def _file(self, name: str, declared: DeclaredFile | None = None) -> OpenFile:
        """The file of that key below the checkpoint's folder, open or not. Raises LayoutError."""
        if name not in self._by_name:
            problem = relative_key_problem(name)
            if problem is not None:
                raise LayoutError(f"the file {name[:80]!a} of the set can't be opened: {problem}")
            location = self._location.sibling(name)
            self._by_name[name] = OpenFile(location, declared=declared, opener=self._open_member)
        return self._by_name[name]

    async def _open_member(self, file: OpenFile) -> None:
        try:
            await self._open(file, first_bytes=0 if file.is_declared else FIRST_BYTES)
        except ObjectNotFoundError as error:
            raise IncompleteCheckpointError(f"{file.location.display} is missing from the set") from error
        except InvalidKeyError as error:
            # The caller's key was good; it is the checkpoint that names a file which can't be one on this storage.
            name = file.location.name[:80]
            raise LayoutError(f"the file {name!a} of the set can't be opened: {error}") from error
        if self._map:
            await self._threads.run(file.map)

    async def _open(self, file: OpenFile, *, first_bytes: int) -> None:
        location = file.location
        file.attach(
            await self._stack.enter_async_context(
                location.storage.open_reader(location.key, first_bytes=first_bytes, known=file.declared_info)
            )
        )

    async def _open_main(self, chosen: ICheckpointFormat | None) -> OpenFile:
        """The checkpoint's own file, or the one that leads the set of its name. Raises CheckpointNotFoundError."""
        file = OpenFile(self._location)
        try:
            await self._open(file, first_bytes=FIRST_BYTES)
        except ObjectNotFoundError as error:
            named = chosen or await self._threads.run(format_for_name, self._location.name)
            leader = await find_leader(self._location, named)
            if leader is None:
                raise CheckpointNotFoundError(
                    f"there is no checkpoint at {self._location.display}: {error}"
                ) from error
            file = OpenFile(leader)
            await self._open(file, first_bytes=FIRST_BYTES)
        self._by_name[""] = file
        return file

    # -- parsing -----------------------------------------------------------------------------------------------

    async def parse(self, chosen: ICheckpointFormat | None) -> tuple[ICheckpointFormat, Index]:
        """Recognise and parse the checkpoint. Raises FormatError subclasses, IncompleteCheckpointError."""
        main = await self._open_main(chosen)
        try:
            found, steps, state = await self._threads.run(gc_paused()(self._begin), main, chosen)
            while isinstance(state, Need):
                answer = await self._answer(state)
                state = await self._threads.run(gc_paused()(advance), steps, answer, self._known)
            index = state.value
            files = self.of(index)
            await open_all(
                file for name, file in zip(index.files, files, strict=True) if _unsized(index, name)
            )
            await run_inline_or_threaded(self._threads, len(index.tensors), require_inside, index, files)
        except FormatError as error:
            is_cut = isinstance(error, TruncatedError)
            error.locate(
                main.location.display,
                "it is cut short: copy it again, or use another one" if is_cut else None,
            )
            raise
        return found, index

    def _begin(
        self, main: OpenFile, chosen: ICheckpointFormat | None
    ) -> tuple[ICheckpointFormat, ParseSteps, Need | Parsed[Index]]:
        if self._map:
            main.map()
        head = main.known(0, min(SNIFF_BYTES, main.size)) or memoryview(b"")
        found = chosen or sniff(head, main.source)
        steps = found.parse(main.source)
        return found, steps, advance(steps, None, self._known)

    async def _answer(self, need: Need) -> Answer:
        await fan_out(_open_if_there, map(self._file, need.ahead), limit=OPENED_AT_ONCE)
        file = self._file(need.file)
        try:
            await file.ready()
        except IncompleteCheckpointError as error:
            return error
        return await file.read(*clip(need, file.size))

    def _known(self, need: Need) -> memoryview | None:
        if need.ahead:
            return None
        file = self._by_name.get(need.file)
        return None if file is None or not file.is_open else file.known(*clip(need, file.size))

    def of(self, index: Index) -> list[OpenFile]:
        """The files of the index, in its order; those that the parser did not need are not open."""
        return [self._file(name, index.declared.get(name)) for name in index.files]


async def _open_if_there(file: OpenFile) -> None:
    try:
        await file.ready()
    except IncompleteCheckpointError:
        # The parser has not asked for it yet; it is told when it does.
        return


def _unsized(index: Index, name: str) -> bool:
    return name not in index.declared


def require_inside(index: Index, files: list[OpenFile]) -> None:
    """Every run of bytes must lie in its file; a parser can't tell for the other files of a set.

    Raises TruncatedError.
    """
    sizes = [file.size for file in files]
    found = first_outside(index.tensors, sizes)
    if found is not None:
        stored, extent = found
        raise TruncatedError(
            f"tensor {stored.name!r} ends at byte {extent.end} of {index.files[extent.file]!r}, "
            f"which has {sizes[extent.file]}"
        )


async def find_leader(location: ObjectLocation, format: ICheckpointFormat | None) -> ObjectLocation | None:
    """The file that leads the set with this base name (`model.sdnb`: `model.shard0-of-3.sdnb`); None for no set.

    Raises LayoutError when several sets have the name.
    """
    prefix = format.leader_prefix(location.name) if format is not None else None
    if format is None or prefix is None:
        return None
    keys = [info.key async for info in location.storage.list(location.sibling(prefix).key)]
    names = [name for key in keys if (name := key.rpartition("/")[2]) != location.name]
    leaders = format.leaders(location.name, names)
    if len(leaders) > 1:
        raise LayoutError(
            f"several sets have the name {location.display}: {', '.join(leaders)}; name the one you mean"
        )
    return location.sibling(leaders[0]) if leaders else None
