"""LocalStorage: the contract, and what only a disk can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.storage.local import LocalStorage
from asyncckpt.testing.storage_contract import StorageContract


class TestLocalStorage(StorageContract):
    stores_write_ids = False

    @pytest.fixture(autouse=True)
    def medium(self, tmp_path: Path) -> None:
        self.root = tmp_path / "not" / "there yet"

    async def make_storage(self) -> LocalStorage:
        return LocalStorage(self.root)

    async def raw_objects(self) -> dict[str, bytes]:
        return await run_in_thread(self._files)

    def _files(self) -> dict[str, bytes]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in files}

    async def raw_leftovers(self) -> list[str]:
        return [name for name in await self.raw_objects() if name.endswith(".tmp")]

    async def raw_put(self, key: str, data: bytes) -> None:
        await run_in_thread(self._put_file, self.root / key, data)

    def _put_file(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
