"""One object of a storage: what is known of it, and the handles through which it is written and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, final

from asyncckpt._aio import gc_paused, run_in_thread
from asyncckpt.errors import RangeError, UnsupportedOperationError
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.ranges import ByteRange, MergedRange, MergePolicy, merge_ranges
from asyncckpt.storage.guards import refuse_overrides

_PLANNED_ON_THE_LOOP = 1000
"""More ranges than this are checked and merged in a thread: it would take the loop milliseconds."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object. `version` changes whenever its bytes do; `write_id` is who wrote it, where that is known."""

    key: str
    size: int
    version: str
    write_id: str | None = None
    modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a storage promises; the docs list it for each. Promise less rather than more."""

    atomic: bool = True
    """An object appears whole or not at all, and replaces another in one step. Without it the first write warns."""
    exclusive: bool = True
    """`write_new` and `exclusive=True` never overwrite, even against a racing writer."""
    any_order: bool = True
    """Parts may be written in any order, so that a header can go last."""
    server_copy: bool = False
    """`copy_part` works: where the server can, without sending the bytes through this process."""
    write_ids: bool = True
    """`stat` tells the write id, with which a lost answer is settled."""


class NotAtomicWarning(UserWarning):
    """Something is written to a storage that may show half of it: a reader must not look before the end."""


class ObjectWriter(ABC):
    """An object that is being written, in parts, and is visible only after the commit.

    Every part but the last has `part_bytes` bytes; part i begins at i × part_bytes. Without
    `Capabilities.any_order` they are written one after another. Hold it through `open_writer` only.
    """

    part_bytes: int
    concurrency: int
    write_id: str
    committed: ObjectInfo | None = None
    """What was written, once the block of `open_writer` has been left."""

    @abstractmethod
    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        """Write one part, given as views that are sent without being joined; `crc32c` is that of all of them."""

    async def copy_part(self, index: int, key: str, start: int, end: int) -> None:
        """Fill one part with bytes [start, end) of another object, on the server's side.

        Raises UnsupportedOperationError without `Capabilities.server_copy`.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} can't copy {key!r} [{start}, {end})")

    @abstractmethod
    async def commit(self) -> ObjectInfo:
        """Make the object visible, in one atomic step. Called once, shielded, by `open_writer`."""

    @abstractmethod
    async def abort(self) -> None:
        """Leave nothing behind. Called after any failure or cancel; must be safe to call in any state."""


class ObjectReader(ABC):
    """One version of an object, pinned: what is read through it is that version, or ObjectChangedError."""

    info: ObjectInfo
    first: bytes
    """The first bytes, as many as were asked for when it was opened (or all, if there are fewer)."""
    admit: Callable[[], None] | None = None
    """Raises StorageError once the reader or its storage is closed; set by `open_reader`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises TypeError for a class that replaces a final method."""
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, ObjectReader)

    @abstractmethod
    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        """Fill `into[i]` with `ranges[i]` for every member of every request; `filled(i)` may run in any thread."""

    def map(self) -> memoryview | None:
        """The whole object as private, writable memory; None where it can't be mapped. Blocks: call in a thread."""
        return None

    async def aclose(self) -> None:  # noqa: B027 - most pins hold nothing
        """Let go of what the pin holds."""

    @final
    async def read_range(self, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises RangeError when the object is shorter."""
        buffer = bytearray(max(0, end - start))
        await self.read_ranges([ByteRange(start, end)], [memoryview(buffer)])
        return bytes(buffer)

    @final
    async def read_ranges(
        self,
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        *,
        policy: MergePolicy | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        """Fill each buffer with its range, near ranges in one request.

        `filled(i)` is called once buffer i is complete, from whichever thread filled it, while the bytes are
        still in the cache. Raises RangeError when a range leaves the object, or does not fit its buffer, and
        StorageError when the reader or its storage is closed.
        """
        if self.admit is not None:
            self.admit()
        requests = await self.__plan(ranges, into, policy)
        if filled is not None:
            for number, wanted in enumerate(ranges):
                if not wanted.size:
                    filled(number)
        if requests:
            await self.fetch(requests, ranges, into, filled)

    async def __plan(
        self, ranges: Sequence[ByteRange], into: Sequence[memoryview], policy: MergePolicy | None
    ) -> list[MergedRange]:
        if len(ranges) <= _PLANNED_ON_THE_LOOP:
            return self.__checked(ranges, into, policy)
        return await run_in_thread(gc_paused()(self.__checked), ranges, into, policy)

    def __checked(
        self, ranges: Sequence[ByteRange], into: Sequence[memoryview], policy: MergePolicy | None
    ) -> list[MergedRange]:
        for wanted, buffer in zip(ranges, into, strict=True):
            if not 0 <= wanted.start <= wanted.end <= self.info.size:
                raise RangeError(
                    f"range [{wanted.start}, {wanted.end}) leaves {self.info.key!r}, which has {self.info.size} bytes"
                )
            if buffer.nbytes != wanted.size:
                raise RangeError(f"a range of {wanted.size} bytes does not fit a buffer of {buffer.nbytes}")
        return merge_ranges(ranges, policy)
