"""A storage of your own in one file: checkpoints inside an SQLite database. `python examples/custom_storage.py`.

A backend fills in five hooks; keys, tokens, shields, retries, parts and ranges are asyncckpt's business.
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
from asyncckpt.storage import Buffer, ICheckpointStorage, ObjectInfo, Page, RetryPolicy, run_in_thread

T = TypeVar("T")
SCHEMA = "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, size INT, version TEXT, write_id TEXT, data BLOB)"
INFO = "SELECT key, size, version, write_id FROM objects"


class SqliteStorage(ICheckpointStorage):
    """Each object is a row. One connection, one transaction at a time."""

    retry_policy = RetryPolicy(attempts=3)  # another process may hold the database for a moment

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteStorage({self._path.name!r})"

    async def _put(self, key: str, views: Sequence[Buffer], *, exclusive: bool, write_id: str) -> ObjectInfo:
        verb = "INSERT" if exclusive else "INSERT OR REPLACE"
        row = (key, sum(memoryview(view).nbytes for view in views), uuid.uuid4().hex, write_id)

        def put(connection: sqlite3.Connection) -> ObjectInfo:
            connection.execute(f"{verb} INTO objects VALUES (?, ?, ?, ?, ?)", (*row, b"".join(views)))
            return ObjectInfo(*row)

        return await self._run(put)

    async def _read(self, key: str, start: int, end: int, *, version: str) -> bytes:
        query = "SELECT substr(data, ?, ?) FROM objects WHERE key = ? AND version = ?"
        wanted = (start + 1, end - start, key, version)  # SQL counts from 1
        found = await self._run(lambda connection: connection.execute(query, wanted).fetchone())
        if found is None:
            raise asyncckpt.ObjectChangedError(f"{key!r} was replaced while it was read: open it again")
        return bytes(found[0])

    async def _stat(self, key: str) -> ObjectInfo:
        query = f"{INFO} WHERE key = ?"
        found = await self._run(lambda connection: connection.execute(query, (key,)).fetchone())
        if found is None:
            raise asyncckpt.ObjectNotFoundError(f"there is no object {key!r} in {self!r}")
        return ObjectInfo(*found)

    async def _list(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        query = f"{INFO} WHERE substr(key, 1, ?) = ? AND key > ? ORDER BY key LIMIT ?"  # by the keys' bytes
        wanted = (len(prefix), prefix, start_after, -1 if limit is None else limit)
        rows = await self._run(lambda connection: connection.execute(query, wanted).fetchall())
        yield Page([ObjectInfo(*row) for row in rows])

    async def _delete(self, key: str) -> None:
        await self._run(lambda connection: connection.execute("DELETE FROM objects WHERE key = ?", (key,)))

    async def _close(self) -> None:
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None:
                await run_in_thread(connection.close)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction. Raises asyncckpt's errors only: a backend maps its driver's, here, once.

        `run_in_thread` waits for the thread's end whoever cancels. With `run_in_executor` a cancelled delete would
        go on behind its caller's back, and remove what somebody has written since.
        """

        def transaction() -> T:
            try:
                if self._connection is None:
                    self._connection = sqlite3.connect(self._path, check_same_thread=False)
                    self._connection.execute(SCHEMA)
                with self._connection as connection:
                    return work(connection)
            except sqlite3.IntegrityError as error:
                raise asyncckpt.ObjectExistsError(f"{self!r}: the key is taken") from error
            except sqlite3.Error as error:
                raise asyncckpt.UnavailableError(f"{self!r}: {error}") from error

        async with self._turn:
            return await run_in_thread(transaction)


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
