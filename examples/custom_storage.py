"""A storage of your own in one file: checkpoints inside an SQLite database. `python examples/custom_storage.py`.

A backend fills in six hooks and two small classes; keys, tokens, shields and errors are asyncckpt's business.
tests/docs/test_custom_storage.py proves it with `asyncckpt.testing.StorageContract`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

import asyncckpt
from asyncckpt import Capabilities, ICheckpointStorage, ObjectInfo
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.ranges import ByteRange, MergedRange
from asyncckpt.storage import ObjectReader, ObjectWriter, run_in_thread

T = TypeVar("T")
SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, version TEXT, size INTEGER, write_id TEXT);
CREATE TABLE IF NOT EXISTS parts (version TEXT, start INTEGER, data BLOB, PRIMARY KEY (version, start));
"""


class Database:
    """One connection, one transaction at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction. Raises asyncckpt's errors only: a backend maps its driver's, here, once.

        `run_in_thread` waits for the thread's end whoever cancels. With `run_in_executor` a cancelled delete would
        go on behind its caller's back, and remove what somebody has written since.
        """

        def transaction() -> T:
            try:
                with self._open() as connection:
                    return work(connection)
            except sqlite3.Error as error:
                raise asyncckpt.UnavailableError(f"{self._path.name}: {error}") from error

        async with self._turn:
            return await run_in_thread(transaction)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, check_same_thread=False)
            self._connection.executescript(SCHEMA)
        return self._connection

    async def close(self) -> None:
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None:
                await run_in_thread(connection.close)


class SqliteStorage(ICheckpointStorage):
    """Objects as rows; `parts` that no object names are a write that is not committed yet."""

    capabilities = Capabilities(atomic=True, exclusive=True, any_order=True)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = Database(path)

    def __repr__(self) -> str:
        return f"SqliteStorage({self._path.name!r})"

    async def _close(self) -> None:
        await self._database.close()

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        version, data = uuid.uuid4().hex, b"".join(views)

        def put(connection: sqlite3.Connection) -> ObjectInfo:
            connection.execute("INSERT INTO parts VALUES (?, 0, ?)", (version, data))
            return publish(connection, ObjectInfo(key, len(data), version, write_id), exclusive=exclusive)

        return await self._database.run(put)

    async def _open_writer(
        self, key: str, *, size: int | None, exclusive: bool, part_bytes: int | None, write_id: str
    ) -> ObjectWriter:
        return SqliteWriter(self._database, key, exclusive, part_bytes or 4 * 1024 * 1024, write_id)

    async def _open_reader(self, key: str, *, first_bytes: int) -> ObjectReader:
        info = await self._stat(key)
        reader = SqliteReader(self._database, info)
        reader.first = await reader.read_range(0, min(first_bytes, info.size))
        return reader

    async def _stat(self, key: str) -> ObjectInfo:
        found = await self._database.run(
            lambda connection: connection.execute("SELECT * FROM objects WHERE key = ?", (key,)).fetchone()
        )
        if found is None:
            raise asyncckpt.ObjectNotFoundError(f"there is no object {key!r} in {self!r}")
        key, version, size, write_id = found
        return ObjectInfo(key, size, version, write_id)

    async def _list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        query = "SELECT * FROM objects WHERE substr(key, 1, ?) = ? ORDER BY key"  # BINARY: by the bytes
        rows = await self._database.run(lambda c: c.execute(query, (len(prefix), prefix)).fetchall())
        yield [ObjectInfo(key, size, version, write_id) for key, version, size, write_id in rows]

    async def _delete(self, key: str) -> None:
        await self._database.run(lambda connection: remove(connection, key))


class SqliteWriter(ObjectWriter):
    """Parts go into the table at once; the commit is one row that names them."""

    def __init__(self, database: Database, key: str, exclusive: bool, part_bytes: int, write_id: str) -> None:
        self.part_bytes, self.concurrency, self.write_id = part_bytes, 1, write_id
        self._database, self._key, self._exclusive = database, key, exclusive
        self._version = uuid.uuid4().hex

    async def write_part(self, index: int, views: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        row = (self._version, index * self.part_bytes, b"".join(views))
        if index < 0 or len(row[2]) > self.part_bytes:
            raise asyncckpt.RangeError(f"part {index} of {self._key!r} has {len(row[2])} bytes")
        await self._database.run(lambda c: c.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", row))

    async def commit(self) -> ObjectInfo:
        query = "SELECT total(length(data)), max(start + length(data)) FROM parts WHERE version = ?"

        def commit(connection: sqlite3.Connection) -> ObjectInfo:
            stored, end = connection.execute(query, (self._version,)).fetchone()
            if int(stored) != (end or 0):
                raise asyncckpt.RangeError(
                    f"{self._key!r} has {int(stored)} of {end} bytes: a part is missing"
                )
            info = ObjectInfo(self._key, int(stored), self._version, self.write_id)
            return publish(connection, info, exclusive=self._exclusive)

        return await self._database.run(commit)

    async def abort(self) -> None:
        await self._database.run(lambda c: c.execute("DELETE FROM parts WHERE version = ?", (self._version,)))


class SqliteReader(ObjectReader):
    """One version of an object: its parts are gone once another version has replaced it."""

    def __init__(self, database: Database, info: ObjectInfo) -> None:
        self.info, self.first = info, b""
        self._database = database

    async def fetch(
        self,
        requests: Sequence[MergedRange],
        ranges: Sequence[ByteRange],
        into: Sequence[memoryview],
        filled: Callable[[int], None] | None,
    ) -> None:
        for request in requests:
            for number in request.members:
                await self._database.run(lambda c, n=number: self._copy(c, ranges[n], into[n].cast("B")))  # type: ignore[misc]
                if filled is not None:
                    filled(number)

    def _copy(self, connection: sqlite3.Connection, wanted: ByteRange, into: memoryview) -> None:
        query = "SELECT start, data FROM parts WHERE version = ? AND start < ? AND start + length(data) > ?"
        copied = 0
        for start, data in connection.execute(query, (self.info.version, wanted.end, wanted.start)):
            begin, end = max(start, wanted.start), min(start + len(data), wanted.end)
            into[begin - wanted.start : end - wanted.start] = data[begin - start : end - start]
            copied += end - begin
        if copied != wanted.size:
            raise asyncckpt.ObjectChangedError(
                f"{self.info.key!r} was replaced while it was read: open it again"
            )


def publish(connection: sqlite3.Connection, info: ObjectInfo, *, exclusive: bool) -> ObjectInfo:
    """Give the parts their name, and drop those of the object that they replace: all in one transaction."""
    if exclusive and connection.execute("SELECT 1 FROM objects WHERE key = ?", (info.key,)).fetchone():
        raise asyncckpt.ObjectExistsError(f"{info.key!r} exists already")
    remove(connection, info.key)
    connection.execute(
        "INSERT INTO objects VALUES (?, ?, ?, ?)", (info.key, info.version, info.size, info.write_id)
    )
    return info


def remove(connection: sqlite3.Connection, key: str) -> None:
    connection.execute(
        "DELETE FROM parts WHERE version = (SELECT version FROM objects WHERE key = ?)", (key,)
    )
    connection.execute("DELETE FROM objects WHERE key = ?", (key,))


async def main(folder: Path) -> None:
    async with SqliteStorage(folder / "checkpoints.db") as storage:
        weight = np.arange(4_000_000, dtype=np.float32)
        await asyncckpt.save({"weight": weight, "step": 7}, (storage, "run/step-7.checkpoint"))
        loaded = await asyncckpt.load((storage, "run/step-7.checkpoint"))
        assert np.array_equal(loaded["weight"], weight)
        report = await asyncckpt.verify((storage, "run/step-7.checkpoint"))
        print(f"{[info.key async for info in storage.list()]} in {storage!r}, verified: {report.ok}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
