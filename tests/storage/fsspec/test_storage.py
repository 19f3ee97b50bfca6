"""FsspecStorage: what it promises for which filesystem, torn puts, wrong listings, errors by status."""

from __future__ import annotations

import errno
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from asyncckpt.errors import (
    AccessDeniedError,
    InvalidKeyError,
    MissingExtraError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RangeError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
    UnavailableError,
    UnsupportedOperationError,
)
from asyncckpt.storage.fsspec.errors import translated, translating
from asyncckpt.storage.fsspec.storage import FsspecStorage
from asyncckpt.storage.retry import NO_RETRY, RetryPolicy
from asyncckpt.storage.urls import Secrets
from tests.servers import S3Bucket

pytestmark = pytest.mark.filterwarnings("ignore::asyncckpt.storage.NotAtomicWarning")
PATIENT = RetryPolicy(base_delay=0.001, max_delay=0.01)


class Memory(MemoryFileSystem):
    """fsspec's memory filesystem with files of its own, and a list of failures to come."""

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.failures: list[tuple[str, Exception]] = []
        self.calls: list[str] = []

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.failures and self.failures[0][0] == name:
            raise self.failures.pop(0)[1]

    def info(self, path: str, **options: Any) -> Any:
        self._note("info")
        return super().info(path, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        self._note("cat_file")
        return bytes(super().cat_file(path, start=start, end=end, **options))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        self._note("pipe_file")
        super().pipe_file(path, value, mode=mode, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._note("ls")
        return super().ls(path, detail=detail, **options)


class Tearing(LocalFileSystem):
    """A local filesystem whose next put breaks off after so many bytes, as a full disk would."""

    cachable = False
    breaks_after: int | None = None

    def put_file(self, path1: str, path2: str, callback: Any = None, **options: Any) -> None:
        self._write(path2, Path(path1).read_bytes())

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._write(path, bytes(value))

    def _write(self, path: str, data: bytes) -> None:
        if self.breaks_after is None:
            Path(path).write_bytes(data)
            return
        Path(path).write_bytes(data[: self.breaks_after])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def memory() -> Memory:
    return Memory(skip_instance_cache=True)


@pytest_asyncio.fixture
async def storage(memory: Memory) -> AsyncIterator[FsspecStorage]:
    async with FsspecStorage(filesystem=memory, root="/run", retry=PATIENT) as storage:
        yield storage


# -- promises ----------------------------------------------------------------------------------------------------


def test_what_is_promised_depends_on_the_filesystem(tmp_path: Path, memory: Memory) -> None:
    def promised(storage: FsspecStorage) -> tuple[bool, bool]:
        return storage.capabilities.atomic, storage.capabilities.exclusive

    local = LocalFileSystem(skip_instance_cache=True)
    assert promised(FsspecStorage(filesystem=memory)) == (True, True)
    assert promised(FsspecStorage("memory://run")) == (True, True)
    assert promised(FsspecStorage("s3://bucket/run")) == (True, True)
    assert promised(FsspecStorage(filesystem=local, root=str(tmp_path))) == (False, False)
    assert promised(FsspecStorage(filesystem=DirFileSystem(str(tmp_path), local))) == (False, False)
    assert promised(FsspecStorage(filesystem=DirFileSystem("/x", memory))) == (True, True)
    assert promised(FsspecStorage("ftp://host/run")) == (False, False)


async def test_an_exclusive_create_that_cannot_be_promised_is_refused(tmp_path: Path) -> None:
    async with FsspecStorage(tmp_path.as_uri()) as storage:
        with pytest.raises(UnsupportedOperationError, match="can't promise an exclusive create"):
            await storage.write_new("key", b"data")
        await storage.write("deep/er/key", b"data")
        assert await storage.read("deep/er/key") == b"data"


def test_urls_that_cannot_be_served() -> None:
    with pytest.raises(UnsupportedOperationError, match="nothing-of-the-kind"):
        FsspecStorage("nothing-of-the-kind://x")
    with pytest.raises(MissingExtraError, match="smb://"):
        FsspecStorage("smb://host/share")
    with pytest.raises(ValueError, match="one of the two"):
        FsspecStorage()


def test_passwords_in_urls_are_not_shown() -> None:
    assert repr(FsspecStorage("ftp://me:secret@host/run?sig=secret")) == "FsspecStorage('ftp://…@host/run?…')"


async def test_a_folder_inside_a_filesystem(memory: Memory) -> None:
    async with FsspecStorage(filesystem=DirFileSystem("/outer", memory), root="inner") as storage:
        await storage.write("a/b", b"data")
        assert [info.key async for info in storage.list()] == ["a/b"]
    assert list(memory.store) == ["/outer/inner/a/b"]


async def test_a_chained_url(tmp_path: Path) -> None:
    url = f"dir://sub::file://{tmp_path}"
    async with FsspecStorage(url, storage_options={"auto_mkdir": True}) as storage:
        assert storage.capabilities.exclusive is False


# -- writing -----------------------------------------------------------------------------------------------------


async def test_a_large_object_is_spooled_and_the_spool_removed(
    storage: FsspecStorage, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("asyncckpt.storage.fsspec.storage.SPOOLED_BYTES", 10)
    await storage.write_new("key", [b"01234", b"56789", b"abc"])
    assert memory.store["/run/key"].getvalue() == b"0123456789abc"
    assert list(tmp_path.iterdir()) == []


async def test_a_mapped_spool_reaches_the_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Remote(LocalFileSystem):
        async_impl = False

        def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
            Path(path).write_bytes(b"".join(value[i : i + 7] for i in range(0, len(value), 7)))

    monkeypatch.setattr("asyncckpt.storage.fsspec.writer._BYTES_LIMIT", 10)
    monkeypatch.setattr("asyncckpt.storage.fsspec.driver._KNOWN", {})
    async with FsspecStorage(filesystem=Remote(skip_instance_cache=True), root=str(tmp_path)) as storage:
        assert storage._driver is not None
        storage._driver.traits = type(storage._driver.traits)(atomic=True)
        async with storage.open_writer("key", part_bytes=10) as writer:
            await writer.write_part(1, [b"abcde"])
            await writer.write_part(0, [b"0123456789"])
    assert (tmp_path / "key").read_bytes() == b"0123456789abcde"


@pytest.mark.parametrize("breaks_after", [0, 1, 5, 70_000])
@pytest.mark.parametrize("parts", [True, False])
async def test_what_a_broken_put_left_is_removed(tmp_path: Path, breaks_after: int, parts: bool) -> None:
    data = bytes(range(256)) * 500
    filesystem = Tearing(skip_instance_cache=True)
    filesystem.breaks_after = breaks_after
    async with FsspecStorage(filesystem=filesystem, root=str(tmp_path)) as storage:
        with pytest.raises(StorageFullError, match="no space"):
            if parts:
                async with storage.open_writer("key", part_bytes=len(data)) as writer:
                    await writer.write_part(0, [data])
            else:
                await storage.write("key", data)
        assert not (tmp_path / "key").exists()


async def test_what_somebody_else_wrote_is_never_removed(tmp_path: Path) -> None:
    class Overtaken(Tearing):
        def _write(self, path: str, data: bytes) -> None:
            Path(path).write_bytes(b"somebody else")
            raise OSError(errno.ECONNRESET, "reset")

    async with FsspecStorage(
        filesystem=Overtaken(skip_instance_cache=True), root=str(tmp_path), retry=NO_RETRY
    ) as storage:
        with pytest.raises(UnavailableError):
            await storage.write("key", bytes(100))
    assert (tmp_path / "key").read_bytes() == b"somebody else"


async def test_a_put_that_failed_before_it_began_leaves_the_old_object(tmp_path: Path) -> None:
    class Refusing(Tearing):
        def _write(self, path: str, data: bytes) -> None:
            raise PermissionError(errno.EACCES, "no")

    (tmp_path / "key").write_bytes(b"")
    async with FsspecStorage(filesystem=Refusing(skip_instance_cache=True), root=str(tmp_path)) as storage:
        with pytest.raises(AccessDeniedError):
            await storage.write("key", b"new")
    assert (tmp_path / "key").exists()


async def test_an_overwrite_is_tried_again(storage: FsspecStorage, memory: Memory) -> None:
    memory.failures = [("pipe_file", ConnectionResetError())]
    await storage.write("key", b"data")
    assert memory.calls.count("pipe_file") == 2


async def test_an_exclusive_create_is_not_tried_again(storage: FsspecStorage, memory: Memory) -> None:
    memory.failures = [("pipe_file", ConnectionResetError())]
    with pytest.raises(UnavailableError):
        await storage.write_new("key", b"data")
    assert memory.calls.count("pipe_file") == 1
    memory.store["/run/key"] = (
        memory.store.get("/run/other") or type("Stored", (), {"size": 1, "created": None})()
    )
    memory.failures = [("pipe_file", ConnectionResetError())]
    with pytest.raises(OutcomeUnknownError, match="keeps no write id"):
        await storage.write_new("key", b"data")


# -- reading -----------------------------------------------------------------------------------------------------


async def test_empty_ranges_need_no_request(storage: FsspecStorage, memory: Memory) -> None:
    await storage.write("key", b"0123456789")
    async with storage.open_reader("key") as reader:
        memory.calls.clear()
        assert await reader.read_range(4, 4) == b""
        assert await reader.read_range(10, 10) == b""
        with pytest.raises(RangeError):
            await reader.read_range(9, 11)
    assert memory.calls == []


async def test_a_listing_that_fails_is_no_empty_listing(storage: FsspecStorage, memory: Memory) -> None:
    await storage.write("folder/key", b"data")
    memory.failures = [("ls", PermissionError())]
    with pytest.raises(AccessDeniedError):
        [info async for info in storage.list()]


async def test_a_listing_looks_only_where_the_prefix_leads(storage: FsspecStorage, memory: Memory) -> None:
    for key in ("a/1", "a/2/3", "b/1", "ab"):
        await storage.write(key, b"")
    memory.calls.clear()
    assert [info.key async for info in storage.list("a/")] == ["a/1", "a/2/3"]
    assert memory.calls.count("ls") == 2
    assert [info.key async for info in storage.list("a")] == ["a/1", "a/2/3", "ab"]


async def test_s3_through_fsspec_is_exclusive_and_knows_its_errors(minio_bucket: S3Bucket) -> None:
    url, options = f"s3://{minio_bucket.name}/run", minio_bucket.storage_options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncckpt.storage.fsspec.storage.SPOOLED_BYTES", 1000)
        async with FsspecStorage(url, storage_options=options) as storage:
            await storage.write_new("key", bytes(5000))
            with pytest.raises(ObjectExistsError):
                await storage.write_new("key", b"other")
            with pytest.raises(ObjectNotFoundError):
                await storage.read("absent")
    async with FsspecStorage("s3://no-such-bucket-here/run", storage_options=options) as storage:
        with pytest.raises(ObjectNotFoundError):
            [info async for info in storage.list()]


test_s3_through_fsspec_is_exclusive_and_knows_its_errors = pytest.mark.blocking_allowed(
    "s3fs makes its client on the loop"
)(test_s3_through_fsspec_is_exclusive_and_knows_its_errors)


# -- errors ------------------------------------------------------------------------------------------------------


def _with_status(status: int) -> OSError:
    """An error as s3fs raises it: everything is EINVAL, and only the cause knows better."""
    cause = Exception("refused")
    cause.response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    error = OSError(errno.EINVAL, "Invalid argument")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("x"), ObjectNotFoundError),
        (FileExistsError(), ObjectExistsError),
        (PermissionError("x"), AccessDeniedError),
        (TimeoutError(), StorageTimeoutError),
        (ConnectionRefusedError(), UnavailableError),
        (OSError(errno.ENOSPC, "full"), StorageFullError),
        (OSError(errno.EROFS, "read-only"), AccessDeniedError),
        (OSError("no number"), StorageError),
        (ValueError("odd"), StorageError),
        (_with_status(412), ObjectExistsError),
        (_with_status(416), RangeError),
        (_with_status(403), AccessDeniedError),
        (_with_status(503), UnavailableError),
    ],
)
def test_errors_are_told_by_status_type_and_errno(error: Exception, expected: type[StorageError]) -> None:
    mapped = translated(error, "write of 'key'")
    assert type(mapped) is expected
    assert "'key'" in str(mapped)
    assert "\n" not in str(mapped)


def test_not_found_is_told_from_not_reached() -> None:
    """fsspec's HTTP says "not found" for every failure."""
    for cause, expected in (
        (ConnectionRefusedError(), UnavailableError),
        (TimeoutError(), StorageTimeoutError),
        (socket.gaierror(-2, "unknown"), UnavailableError),
        (aiohttp.ServerDisconnectedError(), UnavailableError),
        (KeyError("key"), ObjectNotFoundError),
        (FileNotFoundError("key"), ObjectNotFoundError),
    ):
        error = FileNotFoundError("http://host/key")
        error.__cause__ = cause
        assert type(translated(error, "stat of 'key'")) is expected, cause


async def test_a_key_with_a_query_is_refused_without_showing_it() -> None:
    async with FsspecStorage("http://127.0.0.1:9/folder") as storage:
        with pytest.raises(InvalidKeyError, match=r"'a\.ckpt' has a query behind it") as caught:
            await storage.read("a.ckpt?sig=hunter2")
    assert "hunter2" not in str(caught.value)


async def test_a_mistake_in_a_program_stays_one() -> None:
    async def fail() -> None:
        raise TypeError("wrong argument")

    with pytest.raises(TypeError):
        await translating("write", fail(), Secrets())
    # But not when it would show a secret.
    with pytest.raises(StorageError, match="failed: TypeError") as caught:
        await translating("write", fail(), Secrets(options={"password": "argument"}))
    assert caught.value.driver_said == "TypeError: wrong …"
    assert caught.value.__context__ is None
