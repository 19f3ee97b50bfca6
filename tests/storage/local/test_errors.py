"""What the operating system refuses: each errno its own error, nothing left, the old object intact."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncckpt.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectExistsError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
    UnavailableError,
    UnsupportedOperationError,
)
from asyncckpt.storage.local import LocalStorage, kernel
from asyncckpt.storage.local.errors import translated
from asyncckpt.testing.storage.calls import call
from tests.disks import files_in, largest_file

BY_ERRNO = [
    (errno.ENOSPC, StorageFullError),
    (errno.EDQUOT, StorageFullError),
    (errno.EFBIG, StorageFullError),
    (errno.EACCES, AccessDeniedError),
    (errno.EPERM, AccessDeniedError),
    (errno.EROFS, AccessDeniedError),
    (errno.EIO, UnavailableError),
    (errno.ESTALE, UnavailableError),
    (errno.EMFILE, UnavailableError),
    (errno.ETIMEDOUT, StorageTimeoutError),
    (errno.ENAMETOOLONG, InvalidKeyError),
    (errno.EXDEV, StorageError),
]


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    (tmp_path / "key").write_bytes(b"old")
    return LocalStorage(tmp_path)


def fail(code: int, *, when: Callable[..., bool] = lambda *_, **__: True, real: Any = None) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return function


@pytest.mark.parametrize(("code", "kind"), BY_ERRNO)
@pytest.mark.parametrize("method", ["write", "open_writer"])
async def test_writing_fails(
    storage: LocalStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[StorageError],
    method: str,
) -> None:
    monkeypatch.setattr(os, "pwritev", fail(code))
    with pytest.raises(kind, match=f"^'key': .*{errno.errorcode[code]}") as caught:
        await call(storage, method, "key", None)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert files_in(tmp_path) == {"key": b"old"}


@pytest.mark.parametrize("name", ["open", "mkdir", "ftruncate", "utime", "fsync", "replace", "link"])
@pytest.mark.parametrize("method", ["write", "write_new", "open_writer"])
async def test_each_step_may_fail(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    def below_the_root(*_: Any, **kwargs: Any) -> bool:
        return name != "open" or kwargs.get("dir_fd") is not None

    monkeypatch.setattr(os, name, fail(errno.EROFS, when=below_the_root, real=getattr(os, name)))
    # `link` serves exclusive creates only, `replace` the others.
    unused = name == ("link" if method != "write_new" else "replace")
    if unused:
        await call(storage, method, "folder/new", None)
        assert files_in(tmp_path) == {"key": b"old", "folder/new": b"data"}
        return
    with pytest.raises(AccessDeniedError, match="read-only"):
        await call(storage, method, "folder/new", None)
    assert files_in(tmp_path) == {"key": b"old"}
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("method", ["read", "stat", "list", "delete", "open_reader"])
async def test_a_folder_that_may_not_be_read(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(os, "open", fail(errno.EACCES))
    with pytest.raises(AccessDeniedError):
        await call(storage, method, "key", None)


async def test_reading_fails(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", fail(errno.EIO))
    with pytest.raises(UnavailableError, match="check the disk"):
        await storage.read_range("key", 0, 3)


def test_an_error_without_a_number() -> None:
    error = translated(OSError("odd"), "key")
    assert type(error) is StorageError
    assert "odd" in str(error)


# -- no space ----------------------------------------------------------------------------------------------------


async def test_a_real_limit_of_the_file_size(storage: LocalStorage, tmp_path: Path) -> None:
    with largest_file(100_000):
        with pytest.raises(StorageFullError):
            await storage.write("key", bytes(200_000))
        with pytest.raises(StorageFullError):
            async with storage.open_writer("key", part_bytes=80_000) as writer:
                for index in range(3):
                    await writer.write_part(index, [bytes(80_000)])
    assert files_in(tmp_path) == {"key": b"old"}


async def test_space_that_is_not_there_is_refused_before_the_first_byte(
    storage: LocalStorage, tmp_path: Path
) -> None:
    with pytest.raises(StorageFullError):
        async with storage.open_writer("new/key", size=1 << 62):
            pytest.fail("the writer was opened")
    assert files_in(tmp_path) == {"key": b"old"}
    assert not (tmp_path / "new").exists()


async def test_a_file_system_that_can_not_reserve_space(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "reserve_space", lambda *_: False)
    monkeypatch.setattr(kernel, "start_writeback", lambda *_: False)
    async with storage.open_writer("key", size=20, part_bytes=10) as writer:
        await writer.write_part(1, [b"56789"])
        await writer.write_part(0, [b"0123456789"])
    assert await storage.read("key") == b"012345678956789"


# -- publishing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
async def test_without_links_an_exclusive_rename_serves(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", fail(code))
    await storage.write_new("new", b"new")
    with pytest.raises(ObjectExistsError):
        async with storage.open_writer("other", exclusive=True):
            (tmp_path / "other").write_bytes(b"theirs")
    assert files_in(tmp_path) == {"key": b"old", "new": b"new", "other": b"theirs"}


async def test_with_neither_the_create_is_refused(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", fail(errno.EPERM))
    monkeypatch.setattr(kernel, "rename_exclusively", lambda *_: False)
    with pytest.raises(UnsupportedOperationError, match="overwrite=True"):
        await storage.write_new("new", b"new")
    assert files_in(tmp_path) == {"key": b"old"}


@pytest.mark.parametrize("method", ["write", "open_writer"])
async def test_a_folder_that_can_not_be_synced_leaves_the_outcome_open(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def is_folder(descriptor: int) -> bool:
        return stat.S_ISDIR(os.stat(descriptor).st_mode)

    monkeypatch.setattr(os, "fsync", fail(errno.EIO, when=is_folder, real=os.fsync))
    with pytest.raises(OutcomeUnknownError, match="could not be synced") as caught:
        await call(storage, method, "key", None)
    assert caught.value.write_id
    assert files_in(tmp_path) == {"key": b"data"}


async def test_a_file_system_without_sync_of_folders(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_folder(descriptor: int) -> bool:
        return stat.S_ISDIR(os.stat(descriptor).st_mode)

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL, when=is_folder, real=os.fsync))
    await storage.write("folder/key", b"data")
    assert await storage.read("folder/key") == b"data"
