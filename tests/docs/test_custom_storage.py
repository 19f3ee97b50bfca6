"""The storage of examples/custom_storage.py passes the contract that asyncckpt ships."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from asyncckpt.testing import StorageContract
from examples.custom_storage import SCHEMA, SqliteStorage
from tests.guards import call_blocking

pytestmark = pytest.mark.thorough


class TestSqliteStorage(StorageContract):
    skips: ClassVar = {
        "server_copy": "parts wait in a temp file until the commit",
        "map": "a row can't be mapped",
        "store_time": "the rows have no time",
    }

    @pytest.fixture(autouse=True)
    def medium(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.spool = tmp_path / "spool"
        self.spool.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(self.spool))
        self.versions = itertools.count()
        self.path = tmp_path / "objects.db"
        with closing(sqlite3.connect(self.path)) as self.raw:
            self.raw.executescript(f"{SCHEMA}; PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")
            yield

    async def make_storage(self) -> SqliteStorage:
        return SqliteStorage(self.path)

    async def raw_objects(self) -> dict[str, bytes]:
        return dict(self.raw.execute("SELECT key, data FROM objects").fetchall())

    async def raw_leftovers(self) -> Sequence[str]:
        return [path.name for path in self.spool.iterdir()]

    async def raw_put(self, key: str, data: bytes) -> None:
        call_blocking(self._put, key, data)

    def _put(self, key: str, data: bytes) -> None:
        row = (key, len(data), f"raw-{next(self.versions)}", None, data)
        with self.raw:
            self.raw.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", row)
