"""`open_checkpoint`: a checkpoint, opened lazily. One or two small reads; then only the bytes that are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain

import numpy as np

from asyncckpt._aio import WorkerThreads
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import CheckpointError, MismatchError, TensorNotFoundError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Index, StoredTensor
from asyncckpt.formats.kit.table import bytes_of_tensors
from asyncckpt.formats.registry import get_format
from asyncckpt.model.dtype import dtype_name
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata
from asyncckpt.model.state.tree import is_small
from asyncckpt.model.tensors import TensorTable
from asyncckpt.operations.location import Location, ObjectLocation, StorageOptions, resolve, with_options
from asyncckpt.operations.reading.catalog import Catalog
from asyncckpt.operations.reading.fetch import Fetcher
from asyncckpt.operations.reading.files import OpenFiles
from asyncckpt.operations.reading.open_file import OpenFile, short_of_memory
from asyncckpt.operations.reading.plan import Want
from asyncckpt.operations.reading.slices import Subscript
from asyncckpt.operations.runtime import (
    DEFAULT_MEMORY_BYTES,
    INLINE_TENSORS,
    reporting_retries_to,
    run_inline_or_threaded,
    run_unless,
    working_threads,
)
from asyncckpt.progress import Phase, ProgressCallback, ProgressReporter


class Checkpoint:
    """An open checkpoint. `tensors` maps names to metadata; their bytes are read when asked for."""

    def __init__(
        self,
        location: ObjectLocation,
        format: ICheckpointFormat,
        index: Index,
        files: Sequence[OpenFile],
        catalog: Catalog,
        fetcher: Fetcher,
        threads: WorkerThreads,
    ) -> None:
        self.threads = threads
        self._closed = False
        self._location = location
        self._format = format
        self._index = index
        self._files = files
        self._catalog = catalog
        self._fetcher = fetcher

    def __repr__(self) -> str:
        return f"<Checkpoint {self._location.display}: {self.format} {self.version}, {len(self.tensors)} tensors>"

    @property
    def format(self) -> str:
        """The name of its format."""
        return self._index.format

    @property
    def version(self) -> str:
        """The version of the format that the file has."""
        return self._index.version

    @property
    def metadata(self) -> CheckpointMetadata:
        return self._index.metadata

    @property
    def tensors(self) -> Mapping[str, TensorMetadata]:
        """Every tensor, by name; one that is stored in pieces is one tensor here, with its `pieces`."""
        return self._catalog.tensors

    @property
    def payloads(self) -> Mapping[str, TensorMetadata]:
        """Large bytes and strings of the state, which the file stores as tensors; `tensors` has none of them."""
        return self._catalog.payloads

    @property
    def tree(self) -> Json:
        """The tree of the state that was saved; None for a foreign file."""
        return self._index.tree

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._index.warnings

    @property
    def details(self) -> Mapping[str, Json]:
        """What is particular to the format, as `inspect` shows it."""
        return self._index.details

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.size for file in self._files)

    @property
    def index(self) -> Index:
        """Where every tensor's bytes are."""
        return self._index

    @property
    def files(self) -> Sequence[OpenFile]:
        return self._files

    @property
    def report(self) -> ProgressReporter:
        """Where reads tell of their progress."""
        return self._fetcher.report

    def remains(self) -> list[object]:
        """What there is of it for each of many tensors: who has opened it for himself lets go of this last."""
        if len(self._index.tensors) <= INLINE_TENSORS:
            return []
        # A table has no object for each of them.
        lists = [s.tensors for s in self.metadata.shards if not isinstance(s.tensors, TensorTable)]
        return [*self._catalog.listed.values(), *chain.from_iterable(lists)]

    def stored(self, name: str) -> StoredTensor | None:
        """Where a tensor's bytes are; None for one that is stored in pieces."""
        return None if name in self._catalog.joined else self._find(name)

    @checked
    async def read(self, name: str) -> np.ndarray:
        """One tensor, verified.

        Raises TensorNotFoundError, ChecksumMismatchError, StorageError subclasses, CheckpointError when closed.
        """
        return (await self.read_many([name]))[name]

    @checked
    async def read_many(
        self, names: Sequence[str], *, into: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Several tensors in few requests; those named in `into` are filled in place.

        Raises as `read` does, and MismatchError when an array of `into` has another shape or dtype.
        """
        self._require_open()
        places = into or {}
        wants = await run_inline_or_threaded(self.threads, len(names), self._wants, names, places)
        return dict(zip(names, await self._fetcher.read(wants), strict=True))

    def _wants(self, names: Sequence[str], into: Mapping[str, np.ndarray]) -> list[Want]:
        for name, array in into.items():
            self._require_match(name, array)
        joined, listed = self._catalog.joined, self._catalog.listed
        absent = next((name for name in names if name not in listed and name not in joined), None)
        if absent is not None:
            self._find(absent)
        return [Want(name, None, into.get(name)) for name in names]

    @checked
    async def read_slice(self, name: str, index: Subscript) -> np.ndarray:
        """A slice of one tensor, from its own bytes alone, rounded to checksum chunks.

        The index is made of integers, slices and `...`, as numpy takes them, alone or in a tuple. Raises as `read`
        does, InvalidArgumentError, and MismatchError for an index that does not fit the shape.
        """
        self._require_open()
        if name not in self._catalog.joined:
            self._find(name)
        (array,) = await self._fetcher.read([Want(name, index)])
        return array

    async def read_stored(self, name: str) -> np.ndarray:
        """One tensor as the file lists it: a piece of a larger one by its own name. Raises as `read` does."""
        self._require_open()
        return await self._fetcher.read_stored(self._find(name))

    async def check_stored(self, name: str) -> None:
        """Read one tensor, as the file lists it, for nothing but its checks. Raises as `read` does."""
        self._require_open()
        await self._fetcher.check(self._find(name))

    async def read_bytes(self, name: str, start: int, end: int) -> memoryview:
        """Bytes [start, end) of one tensor as the file lists it, in C order, verified. Raises as `read` does."""
        self._require_open()
        return await self._fetcher.read_bytes(self._find(name), start, end)

    @checked
    async def read_into(self, name: str, destination: np.ndarray) -> None:
        """One tensor into an array that exists, of the same shape and dtype. Raises as `read_many` does."""
        await self.read_many([name], into={name: destination})

    def close(self) -> None:
        """Called at the end of its block: what was read stays, and the next read raises CheckpointError."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise CheckpointError(
                f"{self._location.display} is closed; read inside the block of open_checkpoint, or open it again"
            )

    def _find(self, name: str) -> StoredTensor:
        try:
            return self._catalog.listed[name]
        except KeyError:
            raise TensorNotFoundError(
                f"{self._location.display} has no tensor {name!r}{self._catalog.similar(name)}"
            ) from None

    def _require_match(self, name: str, array: np.ndarray) -> None:
        tensor = self.tensors[name] if name in self.tensors else self._find(name).metadata
        if array.shape != tensor.shape or dtype_name(array.dtype) != tensor.dtype:
            raise MismatchError(
                f"tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, the array to fill is "
                f"{array.dtype} {list(array.shape)}"
            )
        if not array.flags.writeable:
            raise MismatchError(f"the array to fill with {name!r} is read-only")


@checked
@asynccontextmanager
async def open_checkpoint(
    location: Location,
    *,
    format: str | ICheckpointFormat | None = None,
    verify: bool = True,
    map: bool = True,
    memory_bytes: AtLeastOne = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> AsyncIterator[Checkpoint]:
    """Open a checkpoint of any format, recognised by its bytes unless `format` names it.

    A local file is mapped into memory, and arrays that are read are views of it; with `map=False` they are read
    into memory of their own (`load` says what for). Its version is pinned: should the object be replaced while it
    is open, reads raise ObjectChangedError. The token ends the whole block; after it reads raise CheckpointError.
    Raises InvalidArgumentError, CheckpointNotFoundError, IncompleteCheckpointError, FormatError subclasses,
    StorageError subclasses, OperationCancelledError.
    """
    location, storage_options, format = with_options(location, storage_options, format)
    with ProgressReporter(progress) as report:
        report.phase(Phase.OPEN)
        async with (
            cancel_scope(cancellation),
            resolve(location, storage_options) as resolved,
            working_threads(resolved.storage, "load") as threads,
            AsyncExitStack() as stack,
        ):
            chosen = await threads.run(get_format, format) if isinstance(format, str) else format
            opened = OpenFiles(resolved, threads, stack, map=map)
            # Not for the whole block: what the caller does in it may belong to another operation.
            with reporting_retries_to(report), short_of_memory(resolved.display, lambda: "its header"):
                found, index = await opened.parse(chosen)
            files = opened.of(index)
            total = await run_inline_or_threaded(threads, len(index.tensors), bytes_of_tensors, index.tensors)
            report.phase(Phase.READ, bytes_total=total)
            quick = len(index.tensors) <= INLINE_TENSORS and is_small(index.tree)
            catalog = await run_unless(threads, quick, Catalog, index)
            fetcher = Fetcher(
                catalog, files, threads, verify=verify, memory_bytes=memory_bytes, report=report
            )
            checkpoint = Checkpoint(resolved, found, index, files, catalog, fetcher, threads)
            try:
                yield checkpoint
            finally:
                checkpoint.close()
