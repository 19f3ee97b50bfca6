"""`ICheckpointStorage`: what every storage offers, around the hooks that a backend fills in.

The public methods are final: they check the key, bind the cancellation token, retry what may be repeated, and leave
the rest to hooks, whose names begin with one underscore. Every other name is the backend's own. Objects appear whole
or not at all, are never renamed, and folders do not exist.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, final

from asyncckpt._aio import run_shielded
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import (
    BucketNotFoundError,
    DeleteFailuresError,
    UnsupportedOperationError,
)
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.guards import refuse_overrides
from asyncckpt.storage.hooks import StorageHooks, put_settled
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.objects import Capabilities, NotAtomicWarning, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.reading import ReadingVerbs
from asyncckpt.storage.settle import (
    CLEANUP_TIMEOUT,
    COMMIT_TIMEOUT,
    abort_shielded,
    commit_shielded,
    finish_shielded,
)

__all__ = [
    "CLEANUP_TIMEOUT",
    "Capabilities",
    "ICheckpointStorage",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "new_write_id",
]

SLOWEST_BYTES_PER_SECOND = 1_000_000
"""A whole object gets this much more time, on top of the commit's."""
SLOWEST_DELETES_PER_SECOND = 10


class ICheckpointStorage(ReadingVerbs):
    """Where checkpoints live: objects under keys, inside one root.

    Every method takes a `cancellation` token; a fired token ends in OperationCancelledError, and nothing that
    was being written is left behind. Use it as an async context manager, or call `aclose`; once it is closed, every
    call raises StorageError.
    """

    __warned = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises TypeError for a class that replaces a final method, or that has no way to read."""
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, ICheckpointStorage)
        if cls._read is StorageHooks._read and cls._open_reader is StorageHooks._open_reader:
            raise TypeError(f"{cls.__name__} has neither of the hooks _read and _open_reader")

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
        self.admit()
        validate_key(key)
        views = [data] if isinstance(data, bytes | bytearray | memoryview) else list(data)
        identity = write_id or new_write_id()
        size = total_bytes(views)
        async with cancel_scope(cancellation) as scope:
            self.__require(exclusive=exclusive)
            scope.commit()
            return await commit_shielded(
                put_settled(self, key, views, exclusive=exclusive, write_id=identity),
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
        self.admit()
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

    # -- removing and closing ----------------------------------------------------------------------------------

    @final
    async def delete(
        self, key: str, *, missing_ok: bool = True, cancellation: CancellationToken | None = None
    ) -> None:
        """Remove the object. Raises ObjectNotFoundError only with `missing_ok=False`.

        Once it has begun it runs to its end: a request that was abandoned could still remove what somebody
        writes under this key afterwards.
        """
        self.admit()
        validate_key(key)
        async with cancel_scope(cancellation) as scope:
            what = f"delete of {key!r}"
            if not missing_ok:
                await self.with_retries(lambda: self._stat(key), what)
            scope.commit()
            await finish_shielded(
                self.with_retries(lambda: self._delete(key), what), what, timeout=COMMIT_TIMEOUT
            )

    @final
    async def delete_many(
        self, keys: Iterable[str], *, cancellation: CancellationToken | None = None
    ) -> None:
        """Remove the objects, in as few requests as the store has for it; one that is not there is no error.

        Once it has begun it runs to its end, as `delete` does. Raises DeleteFailuresError, which names those that
        could not be removed; all the others are gone. BucketNotFoundError where there is no bucket.
        """
        self.admit()
        wanted = list(dict.fromkeys(validate_key(key) for key in keys))
        async with cancel_scope(cancellation) as scope:
            scope.commit()
            failures = await finish_shielded(
                self._delete_many(wanted),
                f"delete of {len(wanted)} objects",
                timeout=COMMIT_TIMEOUT + len(wanted) / SLOWEST_DELETES_PER_SECOND,
            )
        for error in failures.values():
            if isinstance(error, BucketNotFoundError):
                raise error
        if failures:
            key, error = next(iter(failures.items()))
            raise DeleteFailuresError(
                f"{len(failures)} of {len(wanted)} objects could not be deleted, the first is {key!r}: {error}",
                failures=dict(failures),
            ) from error

    @final
    async def aclose(self) -> None:
        """Close connections and end threads. Safe to call twice.

        Raises StorageError on another loop, or in another process, than that of a storage with `one_loop`.
        """
        self.end_admission()
        await self._close()

    async def __aenter__(self) -> Self:
        self.admit()
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
        if not self.capabilities.atomic and not self.__warned:
            self.__warned = True
            text = f"{self!r} can't promise that an object appears whole or not at all: let nobody read before the end"
            warnings.warn(text, NotAtomicWarning, stacklevel=2)


def new_write_id() -> str:
    """A fresh identity for one write, with which a lost acknowledgement is settled."""
    return uuid.uuid4().hex
