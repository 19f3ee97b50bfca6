"""From locations to storages: by scheme, without secrets in errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from asyncckpt.errors import InvalidKeyError, UnsupportedOperationError
from asyncckpt.storage import factory
from asyncckpt.storage.factory import Location, open_storage, split_location
from asyncckpt.storage.fsspec.storage import FsspecStorage
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.s3.storage import S3Storage


@pytest.mark.parametrize(
    ("url", "root", "key"),
    [
        ("s3://bucket/run/model.ckpt", "s3://bucket/run", "model.ckpt"),
        ("s3://bucket/model.ckpt", "s3://bucket", "model.ckpt"),
        ("s3://bucket/a b/ü?x#y.ckpt", "s3://bucket/a b", "ü?x#y.ckpt"),
        ("S3://Bucket/key", "s3://Bucket", "key"),
        ("gs://bucket/run/x", "gs://bucket/run", "x"),
        ("memory://run/x", "memory://run", "x"),
        ("memory://x", "memory://", "x"),
        ("simplecache::s3://bucket/run/x", "simplecache::s3://bucket/run", "x"),
        ("sftp://user@host/folder/x", "sftp://user@host/folder", "x"),
        ("/abs/folder/model.ckpt", "/abs/folder", "model.ckpt"),
        ("/model.ckpt", "/", "model.ckpt"),
        ("model.ckpt", ".", "model.ckpt"),
        ("runs/../model.ckpt", "runs/..", "model.ckpt"),
        (Path("runs/a.ckpt"), "runs", "a.ckpt"),
        (Path("~/a.ckpt"), "~", "a.ckpt"),
        ("file:///abs/a%20b.ckpt", "/abs", "a b.ckpt"),
        ("file://localhost/abs/x", "/abs", "x"),
        ("file://./rel/x", "./rel", "x"),
    ],
)
def test_root_and_key(url: Location, root: str, key: str) -> None:
    assert split_location(url) == (root, key)


def test_a_path_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert split_location("~/runs/a.ckpt") == ("/home/someone/runs", "a.ckpt")


@pytest.mark.parametrize(
    "url",
    ["", "folder/", "/", "..", "a/..", "s3://bucket", "gs://bucket", "s3://bucket/run/", "a\\b", "x/a\nb"],
)
def test_locations_without_a_key(url: str) -> None:
    with pytest.raises(InvalidKeyError):
        split_location(url)


def test_a_file_inside_another() -> None:
    with pytest.raises(UnsupportedOperationError, match="chains"):
        split_location("zip://inner.ckpt::s3://bucket/outer.zip")


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("s3://bucket/run", S3Storage, "s3://bucket/run"),
        ("s3a://bucket", S3Storage, "s3://bucket"),
        ("gs://bucket/a/b/", GcsStorage, "gs://bucket/a/b"),
        ("gcs://bucket", GcsStorage, "gs://bucket"),
        ("memory://run", FsspecStorage, "memory"),
        ("/abs/run", LocalStorage, "/abs/run"),
        ("relative", LocalStorage, "relative"),
        ("file:///abs/run", LocalStorage, "/abs/run"),
        ("local:///abs/run", LocalStorage, "/abs/run"),
        (Path("/abs/run"), LocalStorage, "/abs/run"),
    ],
)
async def test_storages_by_scheme(url: Location, kind: type, shown: str) -> None:
    async with open_storage(url) as storage:
        assert type(storage) is kind
        assert shown in repr(storage)


def test_open_storage_is_no_coroutine() -> None:
    assert not inspect.iscoroutinefunction(open_storage)


async def test_what_split_location_gives_opens(tmp_path: Path) -> None:
    for location in (tmp_path / "run" / "a.ckpt", f"file://{tmp_path}/run/b.ckpt", "memory://run/c.ckpt"):
        root, key = split_location(location)
        async with open_storage(root) as storage:
            await storage.write(key, b"data")
            assert await storage.read(key) == b"data"
            await storage.delete(key)


@pytest.mark.parametrize(
    "url",
    [
        "nope://user:hunter2@host/x",
        "s3://AKIA:hunter2@bucket/x",
        "nope://host/x?signature=hunter2",
        "s3:///run",
        "s3://AKIA:hunt/hunter2@bucket",
        "s3://AKIA:hunt/hunter2@bucket/x",
        "nope://user:hunt/hunter2@host/x",
        "file://user:hunt/hunter2@host/x",
    ],
)
@pytest.mark.parametrize("function", [open_storage, split_location])
def test_errors_show_no_secret(function: Callable[[str], object], url: str) -> None:
    try:
        function(url)
    except (UnsupportedOperationError, InvalidKeyError) as error:
        text = f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"
        assert "hunter2" not in text
        assert "AKIA" not in text
    else:
        assert function is split_location


def test_unknown_schemes_are_named() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"^no storage serves nope:// .*use a path, s3://"):
        open_storage("nope://host/run")


def test_a_local_path_takes_no_options() -> None:
    with pytest.raises(UnsupportedOperationError, match="key, secret") as caught:
        open_storage("/run", storage_options={"secret": "hunter2", "key": "x"})
    assert "hunter2" not in str(caught.value)


def test_files_of_other_hosts() -> None:
    with pytest.raises(UnsupportedOperationError, match="file:///share/x"):
        open_storage("file://server/share/x")


# -- entry points ------------------------------------------------------------------------------------------------


def registered(value: str) -> Callable[..., list[EntryPoint]]:
    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        assert group == "asyncckpt.storages"
        return [EntryPoint(name, value, group)] if name == "mine" else []

    return entry_points


def open_mine(url: str, options: dict[str, Any]) -> object:
    assert url == "mine://place/run"
    return MemoryStorage() if options == {"good": True} else "no storage"


def test_third_party_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "entry_points", registered("tests.storage.test_factory:open_mine"))
    assert isinstance(open_storage("mine://place/run", storage_options={"good": True}), MemoryStorage)
    with pytest.raises(UnsupportedOperationError, match="gave a str"):
        open_storage("mine://place/run")
