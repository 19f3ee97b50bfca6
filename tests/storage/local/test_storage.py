"""LocalStorage: the contract, and what only a disk can do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncckpt._aio import run_in_thread
from asyncckpt.errors import (
    InvalidKeyError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnsupportedOperationError,
)
from asyncckpt.model.ranges import ByteRange
from asyncckpt.storage.local import LocalStorage, objects
from asyncckpt.storage.local.folders import is_temp_name, temp_name
from asyncckpt.testing.storage.bytes import pattern
from asyncckpt.testing.storage.calls import call
from asyncckpt.testing.storage.contract import StorageContract
from tests.guards import call_blocking

TOKEN = "0123456789abcdef" * 2


def descriptors_below(folder: Path) -> list[str]:
    """The files and folders there that this process holds open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


@pytest.fixture(autouse=True)
def _no_descriptor_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert descriptors_below(tmp_path) == []


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


class TestLocalStorage(StorageContract):
    skips: ClassVar = {"write_ids": "not every file system keeps attributes"}

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


# -- writing -----------------------------------------------------------------------------------------------------


async def test_unfinished_files_are_hidden_and_beside_their_target(
    storage: LocalStorage, tmp_path: Path
) -> None:
    async with storage.open_writer("run/key", part_bytes=10) as writer:
        await writer.write_part(0, [b"0123456789"])
        (name,) = os.listdir(tmp_path / "run")
        assert name.startswith(".key.")
        assert is_temp_name(name)
        assert [info.key async for info in storage.list()] == []
    assert os.listdir(tmp_path / "run") == ["key"]


@pytest.mark.parametrize(("method", "publish"), [("write", "replace"), ("write_new", "link")])
async def test_synced_before_it_gets_its_name_and_after(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, method: str, publish: str
) -> None:
    calls: list[str] = []

    def note(name: str, real: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            folder = name == "fsync" and stat.S_ISDIR(os.stat(args[0]).st_mode)
            calls.append("sync folder" if folder else name)
            return real(*args, **kwargs)

        return noted

    for name in ("mkdir", "pwritev", "fsync", "replace", "link", "unlink"):
        monkeypatch.setattr(os, name, note(name, getattr(os, name)))
    await call(storage, method, "folder/key", None)
    ending = ["unlink"] if publish == "link" else []
    assert calls == ["mkdir", "sync folder", "pwritev", "fsync", publish, *ending, "sync folder"]


@pytest.mark.parametrize("name", ["a", "ü" * 127, "x" * 255])
def test_temp_names_fit_the_file_system(name: str) -> None:
    hidden = temp_name(name, TOKEN)
    assert len(hidden.encode()) <= 255
    assert is_temp_name(hidden)
    assert not is_temp_name(name)


@pytest.mark.parametrize("method", ["write", "write_new", "open_writer", "read", "stat", "delete"])
async def test_names_of_unfinished_files_are_no_keys(storage: LocalStorage, method: str) -> None:
    for key in (f".x.{TOKEN}.tmp", f".x.{TOKEN}.tmp/y"):
        with pytest.raises(InvalidKeyError, match="unfinished"):
            await call(storage, method, key, None)


async def test_a_failed_write_removes_only_the_folders_it_made(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(ZeroDivisionError):
        async with storage.open_writer("theirs/ours/deep/key"):
            raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["theirs"]


async def test_failing_and_succeeding_writers_share_a_new_folder(
    storage: LocalStorage, tmp_path: Path
) -> None:
    async def fail(i: int) -> None:
        with pytest.raises(ZeroDivisionError):
            async with storage.open_writer(f"new/folder/bad-{i}"):
                raise ZeroDivisionError

    async def succeed(i: int) -> None:
        await storage.write(f"new/folder/good-{i}", b"data")

    await asyncio.gather(*(step(i) for i in range(12) for step in (fail, succeed)))
    assert sorted(os.listdir(tmp_path / "new/folder")) == sorted(f"good-{i}" for i in range(12))


async def test_many_views_and_short_writes(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: real(fd, [_at_most(views, 700)], offset))
    data = pattern(20_000, seed=1)
    views = [data[start : start + 3] for start in range(0, len(data), 3)]
    assert len(views) > 2 * 1024
    await storage.write("key", views)
    assert await storage.read("key") == data


async def test_short_reads(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pattern(20_000, seed=2)
    await storage.write("key", data)
    real = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, offset: real(fd, [views[0][: min(99, len(views[0]))]], offset)
    )
    buffers = [bytearray(10), bytearray(3000), bytearray(7000)]
    ranges = [ByteRange(0, 10), ByteRange(20, 3020), ByteRange(9000, 16_000)]
    await storage.read_ranges("key", ranges, [memoryview(b) for b in buffers])
    assert [bytes(b) for b in buffers] == [data[r.start : r.end] for r in ranges]


def _at_most(views: Sequence[memoryview], count: int) -> bytes:
    return b"".join(views[:300])[:count]


async def test_parts_larger_than_one_piece_are_read_by_several_threads(storage: LocalStorage) -> None:
    data = bytes(range(251)) * 160_000
    async with storage.open_writer("key", size=len(data), part_bytes=5_000_000) as writer:
        for index in range(9):
            await writer.write_part(index, [memoryview(data)[index * 5_000_000 : (index + 1) * 5_000_000]])
    filled: list[int] = []
    buffers = [bytearray(len(data) - 100), bytearray(50), bytearray(50)]
    ranges = [ByteRange(0, len(data) - 100), ByteRange(1, 51), ByteRange(len(data) - 50, len(data))]
    async with storage.open_reader("key") as reader:
        await reader.read_ranges(ranges, [memoryview(b) for b in buffers], filled=filled.append)
    assert sorted(filled) == [0, 1, 2]
    assert all(buffer == data[r.start : r.end] for buffer, r in zip(buffers, ranges, strict=True))


@pytest.mark.parametrize("code", [None, "EXDEV", "EINVAL"])
async def test_copied_parts(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, code: str | None) -> None:
    data = pattern(5000, seed=3)
    await storage.write("source", data)
    if code is not None:
        monkeypatch.setattr(os, "copy_file_range", _raising(getattr(errno, code)))
    async with storage.open_writer("copy", part_bytes=4000) as writer:
        await writer.copy_part(0, "source", 500, 4500)
        await writer.copy_part(1, "source", 0, 7)
    assert await storage.read("copy") == data[500:4500] + data[:7]


def _raising(code: int) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# -- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [20_000, 21_000, 500, 0])
async def test_a_change_in_place_is_noticed(storage: LocalStorage, tmp_path: Path, size: int) -> None:
    await storage.write("key", pattern(20_000, seed=4))
    async with storage.open_reader("key") as reader:
        await reader.read_range(0, 100)
        (tmp_path / "key").write_bytes(pattern(size, seed=5))
        with pytest.raises(ObjectChangedError, match="'key'"):
            await reader.read_range(100, 20_000)


async def test_a_reader_keeps_the_version_that_was_replaced(storage: LocalStorage) -> None:
    old, new = pattern(9000, seed=6), pattern(9000, seed=7)
    await storage.write("key", old)
    async with storage.open_reader("key") as reader:
        await storage.write("key", new)
        assert await reader.read_range(0, 9000) == old
        await storage.delete("key")
        assert await reader.read_range(0, 9000) == old
        mapped = await run_in_thread(reader.map)
    assert mapped is not None
    assert bytes(mapped) == old


async def test_a_file_that_can_not_be_mapped(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    await storage.write("key", b"data")
    await storage.write("empty", b"")

    def fail(*_: object, **__: object) -> None:
        raise OSError(19, "no such device")

    monkeypatch.setattr(mmap, "mmap", fail)
    async with storage.open_reader("key") as reader:
        assert await run_in_thread(reader.map) is None
        assert await reader.read_range(0, 4) == b"data"
    async with storage.open_reader("empty") as reader:
        mapped = await run_in_thread(reader.map)
    assert mapped is not None
    assert len(mapped) == 0


# -- what else lies in the folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["write", "write_new", "open_writer", "read", "stat", "exists", "delete"])
async def test_a_linked_folder_never_leads_out(storage: LocalStorage, tmp_path: Path, method: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "key").write_bytes(b"secret")
    (root / "link").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / "link").symlink_to(outside)
    for key in ("link/key", "inner/link/key", "link/new"):
        with pytest.raises(InvalidKeyError, match="symbolic link"):
            await call(LocalStorage(root), method, key, None)
    assert [path.name for path in outside.iterdir()] == ["key"]
    assert (outside / "key").read_bytes() == b"secret"


async def test_a_linked_file_is_not_followed(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.write_bytes(b"secret")
    (root / "link").symlink_to(secret)
    storage = LocalStorage(root)
    for method in ("read", "stat", "delete"):
        with pytest.raises(InvalidKeyError, match="link"):
            await call(storage, method, "link", None)
    with pytest.raises(ObjectExistsError):
        await storage.write_new("link", b"new")
    await storage.write("link", b"new")
    assert secret.read_bytes() == b"secret"
    assert (root / "link").read_bytes() == b"new"
    assert not (root / "link").is_symlink()


async def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    await LocalStorage(tmp_path / "root").write("key", b"data")
    assert (tmp_path / "real" / "key").read_bytes() == b"data"


async def test_list_shows_objects_only(storage: LocalStorage, tmp_path: Path) -> None:
    await storage.write("run/key", b"data")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "run" / "key")
    (tmp_path / "empty folder").mkdir()
    (tmp_path / "back\\slash").write_bytes(b"")
    (tmp_path / "line\nbreak").write_bytes(b"")
    (tmp_path / temp_name("key", TOKEN)).write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    with open(os.fsencode(tmp_path) + b"/\xff\xfe", "wb"):
        pass
    assert [info.key async for info in storage.list()] == [".hidden", "run/key"]


async def test_pipes_and_folders_are_no_objects(storage: LocalStorage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for key in ("pipe", "folder"):
        for method in ("read", "stat"):
            with pytest.raises(ObjectNotFoundError):
                await call(storage, method, key, None)
    await storage.delete("folder")
    assert (tmp_path / "folder").is_dir()


@pytest.mark.parametrize("method", ["write", "write_new", "open_writer"])
async def test_files_and_folders_in_the_way(storage: LocalStorage, tmp_path: Path, method: str) -> None:
    await storage.write("file", b"data")
    await storage.write("folder/key", b"data")
    for key in ("file/below", "file/below/that", "folder"):
        with pytest.raises(UnsupportedOperationError, match="choose another key"):
            await call(storage, method, key, None)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "key"]


def _make_node(path: Path, kind: str) -> None:
    """A pipe, a socket or a device of the test's own."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
            listener.bind(path.name)  # an address has a hundred bytes at most
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("devices are made by root only")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("method", ["write", "write_new", "open_writer"])
async def test_only_files_and_links_are_replaced(
    storage: LocalStorage, tmp_path: Path, method: str, kind: str
) -> None:
    _make_node(tmp_path / "node", kind)
    before = os.lstat(tmp_path / "node")
    with pytest.raises(
        UnsupportedOperationError, match="only files and links are replaced; choose another key"
    ):
        await call(storage, method, "node", None)
    assert os.listdir(tmp_path) == ["node"]
    assert os.lstat(tmp_path / "node") == before


async def test_a_pipe_that_appears_during_the_write_is_not_replaced(
    storage: LocalStorage, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOperationError, match="a pipe"):
        async with storage.open_writer("node") as writer:
            await writer.write_part(0, [b"data"])
            os.mkfifo(tmp_path / "node")
    assert os.listdir(tmp_path) == ["node"]
    assert stat.S_ISFIFO(os.lstat(tmp_path / "node").st_mode)


async def test_a_root_that_is_not_there_is_empty(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "none")
    assert [info async for info in storage.list()] == []
    assert not await storage.exists("key")
    await storage.delete("key")
    assert not (tmp_path / "none").exists()


async def test_a_later_change_of_folder_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("root")
    await storage.write("first", b"data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await storage.write("key", b"data")
    assert (tmp_path / "root" / "key").read_bytes() == b"data"
    assert repr(storage) == f"LocalStorage({str(tmp_path / 'root')!r})"


@pytest.mark.parametrize("root", ["a\0b", "/tmp/\0", "a\ud800b"])
def test_a_root_that_no_folder_can_have(root: str) -> None:
    with pytest.raises(InvalidKeyError, match="invalid folder"):
        LocalStorage(root)


@pytest.mark.parametrize("options", [{"part_bytes": 0}, {"concurrency": 0}])
def test_senseless_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LocalStorage(tmp_path, **options)


# -- write ids, times, and listings behind a key ---------------------------------------------------------------------


def _keeps_attributes(folder: Path) -> bool:
    probe = folder / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"1")
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


async def test_the_write_id_is_an_attribute_where_the_file_system_has_them(
    storage: LocalStorage, tmp_path: Path
) -> None:
    if not call_blocking(_keeps_attributes, tmp_path):
        pytest.skip("the file system of the temp folder keeps no attributes")
    assert (await storage.write("key", b"data", write_id="mine")).write_id == "mine"
    assert (await storage.stat("key")).write_id == "mine"
    async with storage.open_reader("key") as reader:
        assert reader.info.write_id == "mine"
    assert call_blocking(os.getxattr, tmp_path / "key", "user.asyncckpt.write-id") == b"mine"


async def test_without_attributes_a_write_succeeds_all_the_same(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(os, "setxattr", refuse)
    assert (await storage.write("key", b"data", write_id="mine")).write_id is None
    assert (await storage.stat("key")).write_id is None


async def test_the_time_of_a_file_is_the_file_systems_own(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last digits apart: a network disk has another clock than this machine, and ages are measured by that."""
    given: list[int] = []
    real = os.utime

    def noted(file: int, *, ns: tuple[int, int]) -> None:
        given.append(abs(os.fstat(file).st_mtime_ns - ns[1]))
        real(file, ns=ns)

    monkeypatch.setattr(os, "utime", noted)
    await storage.write("key", b"data")
    assert given
    assert given[0] < 1_000_000


async def test_where_no_file_can_be_made_there_is_no_time(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.write("key", b"data")
    real = os.open

    def read_only(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "read-only")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    (page,) = [page async for page in storage.list_pages()]
    assert page.store_time is None
    assert [info.key for info in page.objects] == ["key"]


async def test_folders_before_the_key_are_not_even_opened(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(5):
        await storage.write(f"step-{step}/a", b"")
    looked: list[str] = []
    real = objects._names

    def noted(root: Path, folder: str) -> Any:
        looked.append(folder)
        return real(root, folder)

    monkeypatch.setattr(objects, "_names", noted)
    assert [info.key async for info in storage.list(start_after="step-3/a")] == ["step-4/a"]
    assert looked == ["", "step-3", "step-4"]
