"""The storage of examples/custom_storage.py passes the contract that asyncckpt ships."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from asyncckpt.testing.storage.contract import StorageContract
from examples.custom_storage import SCHEMA, SqliteStorage
from tests.guards import call_blocking

pytestmark = pytest.mark.thorough


class TestSqliteStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def medium(self, tmp_path: Path) -> Iterator[None]:
        self.versions = itertools.count()
        self.path = tmp_path / "objects.db"
        with closing(sqlite3.connect(self.path)) as self.raw:
            self.raw.executescript(SCHEMA + "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")
            yield

    async def make_storage(self) -> SqliteStorage:
        return SqliteStorage(self.path)

    async def raw_objects(self) -> dict[str, bytes]:
        objects = self.raw.execute("SELECT key, version FROM objects").fetchall()
        return {key: b"".join(self._parts(version)) for key, version in objects}

    def _parts(self, version: str) -> list[bytes]:
        query = "SELECT data FROM parts WHERE version = ? ORDER BY start"
        return [data for (data,) in self.raw.execute(query, (version,))]

    async def raw_leftovers(self) -> Sequence[str]:
        query = "SELECT version FROM parts WHERE version NOT IN (SELECT version FROM objects)"
        return [version for (version,) in self.raw.execute(query)]

    async def raw_put(self, key: str, data: bytes) -> None:
        call_blocking(self._put, key, data)

    def _put(self, key: str, data: bytes) -> None:
        version = f"raw-{next(self.versions)}"
        with self.raw:
            self.raw.execute("DELETE FROM objects WHERE key = ?", (key,))
            self.raw.execute("DELETE FROM parts WHERE version NOT IN (SELECT version FROM objects)")
            self.raw.execute("INSERT INTO parts VALUES (?, 0, ?)", (version, data))
            self.raw.execute("INSERT INTO objects VALUES (?, ?, ?, NULL)", (key, version, len(data)))
