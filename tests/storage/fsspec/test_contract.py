"""The storage contract on fsspec: memory, local files, the async wrapper, and s3fs as an asynchronous one."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.fsspec.storage import FsspecStorage
from asyncckpt.testing import StorageContract
from asyncckpt.testing.storage.calls import METHODS
from tests.guards import call_blocking
from tests.servers import S3Bucket

pytestmark = pytest.mark.thorough
LACKS = {
    "server_copy": "fsspec can't copy into a part",
    "write_ids": "fsspec has no place for them",
    "map": "the file belongs to the filesystem",
    "store_time": "fsspec does not ask for it",
}


class SpoolFolder:
    """Gives every test a temp folder of its own, in which nothing may be left."""

    spool: Path

    @pytest.fixture(autouse=True)
    def _spool(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spool = tmp_path / "spool"
        self.spool.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(self.spool))

    async def raw_leftovers(self) -> Sequence[str]:
        return [path.name for path in self.spool.iterdir()]


class TestFsspecMemoryContract(SpoolFolder, StorageContract):
    skips: ClassVar = LACKS
    filesystem: MemoryFileSystem

    @pytest.fixture(autouse=True)
    def _filesystem(self) -> None:
        self.filesystem = MemoryFileSystem(skip_instance_cache=True)
        # Not through the constructor: older releases have only the store of the whole process.
        self.filesystem.store, self.filesystem.pseudo_dirs = {}, [""]

    async def make_storage(self) -> ICheckpointStorage:
        return FsspecStorage(filesystem=self.filesystem, root="/run/1")

    async def raw_objects(self) -> dict[str, bytes]:
        return {
            path.removeprefix("/run/1/"): stored.getvalue() for path, stored in self.filesystem.store.items()
        }

    async def raw_put(self, key: str, data: bytes) -> None:
        self.filesystem.pipe_file(f"/run/1/{key}", data)


class _Wrapped(TestFsspecMemoryContract):
    """fsspec's wrapper is asynchronous by name only; its filesystem is called in our joined threads."""

    async def make_storage(self) -> ICheckpointStorage:
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        wrapped = AsyncFileSystemWrapper(self.filesystem, asynchronous=True)
        return FsspecStorage(filesystem=wrapped, root="/run/1")


if importlib.util.find_spec("fsspec.implementations.asyn_wrapper"):  # since fsspec 2024.12
    TestFsspecWrappedContract = _Wrapped


class TestFsspecLocalContract(SpoolFolder, StorageContract):
    skips: ClassVar = {
        **LACKS,
        "atomic": "a file is written where it will be",
        "exclusive": "fsspec looks first, then writes",
    }
    folder: Path

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "run"

    async def make_storage(self) -> ICheckpointStorage:
        return FsspecStorage(filesystem=LocalFileSystem(skip_instance_cache=True), root=str(self.folder))

    async def raw_objects(self) -> dict[str, bytes]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    async def raw_put(self, key: str, data: bytes) -> None:
        path = self.folder / key
        call_blocking(path.parent.mkdir, parents=True, exist_ok=True)
        call_blocking(path.write_bytes, data)

    @pytest.mark.parametrize("method", [method for method in METHODS if method != "write_new"])
    async def test_a_fired_token_stops_it_at_once(self, storage: ICheckpointStorage, method: str) -> None:
        # A create that can't be exclusive is refused before any token is looked at.
        await super().test_a_fired_token_stops_it_at_once(storage, method)


@pytest.mark.blocking_allowed("s3fs makes its client, and botocore reads its model, on the loop")
class TestFsspecS3Contract(SpoolFolder, StorageContract):
    """An asynchronous filesystem, on this loop."""

    skips: ClassVar = LACKS
    exhaustive = False
    bucket: S3Bucket

    @pytest_asyncio.fixture(autouse=True)
    async def _medium(self, minio_bucket: S3Bucket, sweep_seed: int) -> AsyncIterator[None]:
        self.sweep_seed = sweep_seed
        self.bucket = minio_bucket
        yield

    async def make_storage(self) -> ICheckpointStorage:
        options: dict[str, Any] = self.bucket.storage_options
        return FsspecStorage(f"s3://{self.bucket.name}/run/1", storage_options=options)

    async def raw_objects(self) -> dict[str, bytes]:
        keys = call_blocking(self.bucket.keys)
        return {key.removeprefix("run/1/"): call_blocking(self.bucket.get, key) for key in keys}

    async def raw_leftovers(self) -> Sequence[str]:
        uploads = [key for key, _ in call_blocking(self.bucket.uploads)]
        return [*uploads, *await super().raw_leftovers()]

    async def raw_put(self, key: str, data: bytes) -> None:
        call_blocking(self.bucket.put, f"run/1/{key}", data)
