"""`ICheckpointStorage`: what every storage offers, and the small hooks that a backend fills in.

The public methods are final: they check the key, bind the cancellation token and leave the rest to hooks, whose
names begin with one underscore; what begins with two is not theirs to replace, and every other name is free. Hooks
raise `StorageError` subclasses only: a backend maps its driver's errors once, where they occur. Objects appear whole
or not at all, are never renamed, and folders do not exist.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, final

from asyncckpt._aio import (
    ShieldBrokenError,
    ShieldTimeoutError,
    WorkerThreads,
    run_shielded,
    shield,
)
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsupportedOperationError,
)
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.model.ranges import ByteRange, MergePolicy
from asyncckpt.storage.finals import refuse_overrides
from asyncckpt.storage.home import Home
from asyncckpt.storage.keys import validate_key, validate_prefix
from asyncckpt.storage.objects import Capabilities, ObjectInfo, ObjectReader, ObjectWriter

__all__ = [
    "CLEANUP_TIMEOUT",
    "COMMIT_TIMEOUT",
    "Capabilities",
    "ICheckpointStorage",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "abort_shielded",
    "commit_shielded",
    "new_write_id",
]

COMMIT_TIMEOUT = 60.0
"""Seconds that a commit may take after its caller was cancelled, before its outcome counts as unknown."""
CLEANUP_TIMEOUT = 30.0
"""Seconds that the removal of an unfinished upload may take."""
SLOWEST_BYTES_PER_SECOND = 1_000_000
"""A whole object gets this much more time, on top of the commit's."""
_WHOLE_READ_BYTES = 8 * 1024 * 1024


class ICheckpointStorage(ABC):
    """Where checkpoints live: objects under keys, inside one root.

    Every method takes a `cancellation` token; a fired token ends in OperationCancelledError, and nothing that
    was being written is left behind. Use it as an async context manager, or call `aclose`; once it is closed, every
    call raises StorageError.
    """

    capabilities: Capabilities = Capabilities()
    threads: WorkerThreads | None = None
    """Worker threads that the storage keeps while it is open, and lends to whoever reads and writes through it."""
    one_loop: bool = False
    """Whether its connections belong to the event loop and the process of its first use: others get an error."""
    __home: Home

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__, which a backend need not call.
        storage = super().__new__(cls)
        storage.__home = Home()
        return storage

    def __admit(self) -> None:
        self.__home.admit(self, one_loop=self.one_loop)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises TypeError for a class that replaces a final method."""
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, ICheckpointStorage)

    # -- writing -----------------------------------------------------------------------------------------------

    @final
    async def write(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        write_id: str | None = None,
        on_commit: Callable[[ObjectInfo], None] | None = None,
        cancellation: CancellationToken | None = None,
    ) -> ObjectInfo:
        """Write a whole object, replacing what was there. Once it has begun it runs to its end.

        `on_commit` hears of the success also when the caller was cancelled meanwhile.
        """
        return await self.__write(key, data, False, write_id, on_commit, cancellation)

    @final
    async def write_new(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        write_id: str | None = None,
        on_commit: Callable[[ObjectInfo], None] | None = None,
        cancellation: CancellationToken | None = None,
    ) -> ObjectInfo:
        """The same for an object that must not exist yet. Raises ObjectExistsError."""
        return await self.__write(key, data, True, write_id, on_commit, cancellation)

    async def __write(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        exclusive: bool,
        write_id: str | None,
        on_commit: Callable[[ObjectInfo], None] | None,
        cancellation: CancellationToken | None,
    ) -> ObjectInfo:
        self.__admit()
        validate_key(key)
        views = [data] if isinstance(data, bytes | bytearray | memoryview) else list(data)
        identity = write_id or new_write_id()
        size = total_bytes(views)
        async with cancel_scope(cancellation) as scope:
            self.__require(exclusive=exclusive)
            scope.commit()
            return await commit_shielded(
                self._put(key, views, exclusive=exclusive, write_id=identity),
                key=key,
                write_id=identity,
                timeout=COMMIT_TIMEOUT + size / SLOWEST_BYTES_PER_SECOND,
                on_commit=on_commit,
            )

    @final
    @asynccontextmanager
    async def open_writer(
        self,
        key: str,
        *,
        size: int | None = None,
        exclusive: bool = False,
        part_bytes: int | None = None,
        write_id: str | None = None,
        cancellation: CancellationToken | None = None,
    ) -> AsyncIterator[ObjectWriter]:
        """An object written in parts: visible after a clean exit from the block, gone after any other.

        `size` is the exact size, None when the end is not known yet (then set `part_bytes` for large objects).
        Raises ObjectExistsError at the exit (or before) when `exclusive` and the key is taken.
        """
        self.__admit()
        validate_key(key)
        identity = write_id or new_write_id()
        async with cancel_scope(cancellation) as scope:
            self.__require(exclusive=exclusive)
            writer = await self._open_writer(
                key, size=size, exclusive=exclusive, part_bytes=part_bytes, write_id=identity
            )
            try:
                yield writer
            except BaseException as error:
                await abort_shielded(writer, key, error)
                raise
            scope.commit()
            await self.__commit(writer, key)

    async def __commit(self, writer: ObjectWriter, key: str) -> None:
        def note(info: ObjectInfo) -> None:
            writer.committed = info

        try:
            await commit_shielded(
                writer.commit(), key=key, write_id=writer.write_id, timeout=COMMIT_TIMEOUT, on_commit=note
            )
        except BaseException as error:
            if writer.committed is None:
                await abort_shielded(writer, key, error)
            raise

    # -- reading -----------------------------------------------------------------------------------------------

    @final
    @asynccontextmanager
    async def open_reader(
        self, key: str, *, first_bytes: int = 0, cancellation: CancellationToken | None = None
    ) -> AsyncIterator[ObjectReader]:
        """The object as it is now, pinned, with its first bytes, in one request. Raises ObjectNotFoundError."""
        self.__admit()
        validate_key(key)
        is_open = True

        def admit() -> None:
            self.__admit()
            if not is_open:
                raise StorageError(f"the reader of {key!r} is closed; open it again")

        async with cancel_scope(cancellation):
            reader = await self._open_reader(key, first_bytes=first_bytes)
            reader.admit = admit
            try:
                yield reader
            finally:
                is_open = False
                await run_shielded(reader.aclose(), timeout=CLEANUP_TIMEOUT)

    @final
    async def read(self, key: str, *, cancellation: CancellationToken | None = None) -> bytes:
        """The whole object. Raises ObjectNotFoundError."""
        async with self.open_reader(key, first_bytes=_WHOLE_READ_BYTES, cancellation=cancellation) as reader:
            if len(reader.first) == reader.info.size:
                return reader.first
            return reader.first + await reader.read_range(len(reader.first), reader.info.size)

    @final
    async def read_range(
        self, key: str, start: int, end: int, *, cancellation: CancellationToken | None = None
    ) -> bytes:
        """Bytes [start, end) of the object. Raises ObjectNotFoundError, RangeError."""
        async with self.open_reader(key, cancellation=cancellation) as reader:
            return await reader.read_range(start, end)

    @final
    async def read_ranges(
        self,
        key: str,
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        *,
        policy: MergePolicy | None = None,
        cancellation: CancellationToken | None = None,
    ) -> None:
        """Fill the caller's buffers with ranges of one version of the object. Raises as `read_range` does."""
        async with self.open_reader(key, cancellation=cancellation) as reader:
            await reader.read_ranges(ranges, into, policy=policy)

    @final
    async def stat(self, key: str, *, cancellation: CancellationToken | None = None) -> ObjectInfo:
        """What is known of the object. Raises ObjectNotFoundError."""
        self.__admit()
        validate_key(key)
        async with cancel_scope(cancellation):
            return await self._stat(key)

    @final
    async def exists(self, key: str, *, cancellation: CancellationToken | None = None) -> bool:
        """Whether the object is there. A storage that can't tell raises; it never answers False.

        Raises BucketNotFoundError where there is no bucket.
        """
        try:
            await self.stat(key, cancellation=cancellation)
        except BucketNotFoundError:
            raise
        except ObjectNotFoundError:
            return False
        return True

    @final
    async def list(
        self, prefix: str = "", *, cancellation: CancellationToken | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """Every object whose key begins with `prefix`, in the order of the keys' bytes; never from a cache."""
        validate_prefix(prefix)
        pages = self._list(prefix)
        try:
            while True:
                self.__admit()
                async with cancel_scope(cancellation):
                    page = await anext(pages, None)
                if page is None:
                    return
                for info in page:
                    yield info
        finally:
            await pages.aclose()

    @final
    async def delete(
        self, key: str, *, missing_ok: bool = True, cancellation: CancellationToken | None = None
    ) -> None:
        """Remove the object. Raises ObjectNotFoundError only with `missing_ok=False`.

        Once it has begun it runs to its end: a request that was abandoned could still remove what somebody
        writes under this key afterwards.
        """
        self.__admit()
        validate_key(key)
        async with cancel_scope(cancellation) as scope:
            if not missing_ok:
                await self._stat(key)
            scope.commit()
            await run_shielded(self._delete(key), timeout=COMMIT_TIMEOUT)

    @final
    async def aclose(self) -> None:
        """Close connections and end threads. Safe to call twice.

        Raises StorageError on another loop, or in another process, than that of a storage with `one_loop`.
        """
        self.__home.close(self)
        await self._close()

    async def __aenter__(self) -> Self:
        self.__admit()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_shielded(self.aclose(), timeout=CLEANUP_TIMEOUT)

    def __require(self, *, exclusive: bool) -> None:
        if exclusive and not self.capabilities.exclusive:
            raise UnsupportedOperationError(
                f"{self!r} can't promise an exclusive create; pass overwrite=True if no other writer uses the key"
            )

    # -- hooks -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _put(
        self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str
    ) -> ObjectInfo: ...

    @abstractmethod
    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter: ...

    @abstractmethod
    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader: ...

    @abstractmethod
    async def _stat(self, key: str) -> ObjectInfo: ...

    @abstractmethod
    def _list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Pages of objects, in the order of the keys' bytes."""

    @abstractmethod
    async def _delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""

    async def _close(self) -> None:  # noqa: B027 - not every storage has connections
        """Close connections and end threads. May be called twice."""


async def commit_shielded(
    commit: Coroutine[Any, Any, ObjectInfo],
    *,
    key: str,
    write_id: str,
    timeout: float,
    on_commit: Callable[[ObjectInfo], None] | None,
) -> ObjectInfo:
    """Run a commit to its end whoever cancels, then raise the cancel, from the commit's error if it has one.

    Raises OutcomeUnknownError when nobody can say whether it happened.
    """
    outcome = await shield(commit, timeout=timeout)
    if outcome.error is None and on_commit is not None:
        on_commit(outcome.result())
    failure = outcome.error
    if isinstance(failure, ShieldTimeoutError | ShieldBrokenError):
        unknown = OutcomeUnknownError(
            f"nobody can say whether {key!r} was written (write id {write_id}): its commit {failure}; "
            "look for an object with that write id before you write again",
            write_id=write_id,
        )
        unknown.__cause__ = failure
        failure = unknown
    if outcome.cancellation is not None:
        raise outcome.cancellation from failure
    if failure is not None:
        raise failure
    return outcome.result()


async def abort_shielded(writer: ObjectWriter, key: str, error: BaseException) -> None:
    """Remove an unfinished object whoever cancels. `error`, which led here, stays the one to be raised."""
    outcome = await shield(writer.abort(), timeout=CLEANUP_TIMEOUT)
    if outcome.error is not None and not isinstance(outcome.error, Exception):
        # A second Ctrl-C has hit the removal itself; an abort is right in any state.
        outcome = await shield(writer.abort(), timeout=CLEANUP_TIMEOUT)
    if outcome.error is not None:
        error.add_note(f"what was written of {key!r} could not be removed: {outcome.error}")
    if not isinstance(error, asyncio.CancelledError):
        outcome.raise_if_cancelled()


def new_write_id() -> str:
    """A fresh identity for one write, with which a lost acknowledgement is settled."""
    return uuid.uuid4().hex
