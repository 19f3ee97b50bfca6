"""Bad input: each kind its own error and one clear line that says what to do; nothing is written, nothing lost."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.operations.convert import convert
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.retry import NO_RETRY, RetryPolicy
from asyncckpt.storage.s3.storage import S3Storage
from tests.disks import files_in, largest_file
from tests.operations.places import EVERYWHERE, open_medium
from tests.servers import GcsBucket, S3Bucket

IMPATIENT = RetryPolicy(attempts=2, base_delay=0.01, budget=2.0, attempt_timeout=0.3)
STATE = {"w": np.arange(1_000), "step": 1}


async def refused(call: Awaitable[object], kind: type[BaseException], *says: str) -> str:
    """The message of the error that the call ends in: of that kind, one line, with all of `says` in it."""
    with pytest.raises(kind) as caught:
        await call
    message = str(caught.value)
    assert "\n" not in message
    for text in says:
        assert text in message, message
    return message


@pytest.fixture
async def checkpoint(tmp_path: Path) -> Path:
    """A good one, alone in its folder."""
    path = tmp_path / "good" / "a.checkpoint"
    await asyncckpt.save(STATE, path)
    return path


async def _open(location: Any) -> None:
    async with asyncckpt.open_checkpoint(location) as opened:
        assert opened.tensors is not None


READERS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "load": asyncckpt.load,
    "open": _open,
    "convert": lambda location: convert(location, (MemoryStorage(), "b.checkpoint")),
}


@pytest.fixture(params=list(READERS))
def read(request: pytest.FixtureRequest) -> Callable[[Any], Awaitable[object]]:
    return READERS[request.param]


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"dear diary, ...", b"\x00" * 500, b"\x17\xfe\x01\x99\x80\x42\xd3", b"%PDF-1.7\n" * 50]
)
async def test_a_file_that_is_no_checkpoint(
    read: Callable[[Any], Awaitable[object]], content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    start = content[:8].hex(" ")
    await refused(
        read(path), asyncckpt.UnknownFormatError, str(path), f"begins with {start}", "known are mlcp"
    )
    await refused(asyncckpt.verify(path), asyncckpt.UnknownFormatError, "not a checkpoint")
    assert files_in(tmp_path) == {"notes.txt": content}


async def test_an_empty_file(read: Callable[[Any], Awaitable[object]], tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    path.write_bytes(b"")
    await refused(read(path), asyncckpt.UnknownFormatError, str(path), "is empty")


async def test_a_truncated_file_at_every_length(checkpoint: Path) -> None:
    data = checkpoint.read_bytes()
    lengths = [*range(1, 700), *range(700, len(data), 487), len(data) - 1]
    for length in lengths:
        # Shorter than the magic nothing can be recognised.
        kind = asyncckpt.TruncatedError if length >= 4 else asyncckpt.UnknownFormatError
        advice = "copy it again, or use another one" if length >= 4 else "known are"
        await refused(asyncckpt.load(data[:length]), kind, advice)
    report = await asyncckpt.verify(data[:-1])
    assert not report.ok
    assert "cut short" in str(report.problems[0])


async def test_a_wrong_version(read: Callable[[Any], Awaitable[object]], checkpoint: Path) -> None:
    data = checkpoint.read_bytes().replace(b"\x051.1.0", b"\x059.1.0", 1)
    checkpoint.write_bytes(data)
    await refused(
        read(checkpoint), asyncckpt.UnsupportedVersionError, str(checkpoint), "'9.1.0'", "upgrade asyncckpt"
    )
    assert checkpoint.read_bytes() == data


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 2**30])
async def test_a_hostile_length(
    read: Callable[[Any], Awaitable[object]], length: int, checkpoint: Path
) -> None:
    """A header that promises more than there is takes no memory for it."""
    data = bytearray(checkpoint.read_bytes())
    position = data.index(b"1.1.0") + 5
    data[position : position + 4] = length.to_bytes(4, "little", signed=True)
    checkpoint.write_bytes(data)
    await refused(read(checkpoint), asyncckpt.FormatError, str(checkpoint), str(length))


async def test_hostile_numbers_in_the_metadata(checkpoint: Path) -> None:
    data = checkpoint.read_bytes()
    assert data.count(b'"shape":[1000]') == 1
    for shape in (b'"shape":[9e18]', b'"shape":[-100]', b'"shape":[9999]', b'"shape":"1000"'):
        await refused(asyncckpt.load(data.replace(b'"shape":[1000]', shape)), asyncckpt.FormatError)


async def test_damage_names_the_tensor(checkpoint: Path) -> None:
    data = bytearray(checkpoint.read_bytes())
    data[-10] ^= 4
    checkpoint.write_bytes(data)
    await refused(asyncckpt.load(checkpoint), asyncckpt.ChecksumMismatchError, "tensor 'w' is damaged")
    report = await asyncckpt.verify(checkpoint)
    assert [problem.tensor for problem in report.problems] == ["w"]


# --- places -----------------------------------------------------------------------------------------------------


async def test_nothing_there(read: Callable[[Any], Awaitable[object]], tmp_path: Path) -> None:
    path = tmp_path / "none.checkpoint"
    await refused(read(path), asyncckpt.CheckpointNotFoundError, f"no checkpoint at {path}")
    await refused(asyncckpt.verify(path), asyncckpt.CheckpointNotFoundError, str(path))
    assert files_in(tmp_path) == {}


async def test_a_folder_instead_of_a_file(checkpoint: Path) -> None:
    folder = checkpoint.parent
    before = files_in(folder.parent)
    await refused(asyncckpt.load(folder), asyncckpt.CheckpointNotFoundError, "is a folder")
    await refused(
        asyncckpt.load(f"{folder}/"), asyncckpt.InvalidKeyError, "names a folder; add the name of the object"
    )
    for overwrite in (False, True):
        await refused(
            asyncckpt.save(STATE, folder, overwrite=overwrite),
            asyncckpt.UnsupportedOperationError,
            "folder of that name is in the way; choose another",
        )
    assert files_in(folder.parent) == before


@pytest.mark.parametrize(
    ("location", "kind", "says"),
    [
        (17, TypeError, "must be a URL, a path, (storage, key) or bytes, not int"),
        (None, TypeError, "not NoneType"),
        (("storage", "key"), TypeError, "a location pair is (storage, key), not (str, …)"),
        ("", asyncckpt.InvalidKeyError, "got an empty one"),
        ("s3://bucket", asyncckpt.InvalidKeyError, "add the object's key, as in s3://bucket/key"),
        ("nowhere://host/a", asyncckpt.UnsupportedOperationError, "use a path, s3://, gs:// or a scheme"),
    ],
)
async def test_what_is_no_location(
    read: Callable[[Any], Awaitable[object]], location: Any, kind: type[Exception], says: str
) -> None:
    await refused(read(location), kind, says)
    await refused(asyncckpt.save(STATE, location), kind, says)


async def test_bytes_can_be_read_but_not_saved_to(checkpoint: Path) -> None:
    data = checkpoint.read_bytes()
    for overwrite in (False, True):
        await refused(
            asyncckpt.save(STATE, data, overwrite=overwrite), TypeError, "give (MemoryStorage(), key)"
        )
        await refused(convert(checkpoint, b"", overwrite=overwrite), TypeError, "for reading only")


@pytest.mark.parametrize("key", ["../a", "/etc/a", "a/../../b", "a//b", "a\0b", "", "a/", "..", "a\\..\\b\0"])
async def test_a_key_that_leaves_the_root(key: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for storage in (MemoryStorage(), asyncckpt.LocalStorage(root)):
        async with storage:
            await refused(asyncckpt.save(STATE, (storage, key)), asyncckpt.InvalidKeyError)
            await refused(asyncckpt.load((storage, key)), asyncckpt.InvalidKeyError)
    assert files_in(tmp_path) == {}


async def test_an_existing_checkpoint_is_called_by_the_name_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await asyncckpt.save(STATE, "a.checkpoint")
    message = await refused(asyncckpt.save({}, "a.checkpoint"), asyncckpt.CheckpointExistsError)
    assert message.startswith("a.checkpoint exists already: choose another name, or pass overwrite=True")


# --- states -----------------------------------------------------------------------------------------------------


class Custom:
    """Something that no adapter knows."""


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"model": {"layers": [1, Custom()]}}, "state['model']['layers'][1]"),
        ({"a": {1, 2}}, "state['a']"),
        ({"a": (None, lambda: None)}, "state['a'][1]"),
        ({1.5: "float keys"}, "state"),
        ({"a": np.array([Custom()])}, "state['a']"),
        (Custom(), "state"),
    ],
)
async def test_an_object_that_cannot_be_stored(state: Any, path: str, tmp_path: Path) -> None:
    await refused(
        asyncckpt.save(state, tmp_path / "new" / "a.checkpoint"), asyncckpt.UnsupportedStateError, path
    )
    assert list(tmp_path.iterdir()) == []


async def test_a_state_that_holds_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = {"again": state}
    await refused(
        asyncckpt.save(state, tmp_path / "a.checkpoint"), asyncckpt.UnsupportedStateError, "state['self']"
    )
    assert files_in(tmp_path) == {}


# --- disks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [300_000, 3_000_000], ids=["small", "in parts"])
async def test_a_full_disk(items: int, checkpoint: Path) -> None:
    before = files_in(checkpoint.parent)
    with largest_file(100_000):
        await refused(
            asyncckpt.save({"w": np.zeros(items, np.float32)}, checkpoint, overwrite=True),
            asyncckpt.StorageFullError,
            "a.checkpoint",
        )
    assert files_in(checkpoint.parent) == before


@pytest.mark.parametrize("items", [3_000, 3_000_000], ids=["small", "in parts"])
@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ENOSPC, asyncckpt.StorageFullError, "no space is left on the disk; free some"),
        (errno.EDQUOT, asyncckpt.StorageFullError, "quota"),
    ],
)
async def test_no_space_for_the_last_bytes(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    items: int,
    code: int,
    kind: type[Exception],
    says: str,
) -> None:
    before = files_in(checkpoint.parent)

    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", full)
    await refused(asyncckpt.save({"w": np.zeros(items, np.float32)}, checkpoint, overwrite=True), kind, says)
    assert files_in(checkpoint.parent) == before


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.EROFS, "the file system is read-only"), (errno.EACCES, "check the folder's owner and mode")],
)
async def test_a_read_only_folder(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    """Injected where the system is called, because nothing is read-only for root."""
    before = files_in(checkpoint.parent)
    real = os.open

    def read_only(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    for location in (checkpoint, checkpoint.with_name("new.checkpoint")):
        await refused(
            asyncckpt.save(STATE, location, overwrite=True), asyncckpt.AccessDeniedError, says, location.name
        )
    monkeypatch.undo()
    assert files_in(checkpoint.parent) == before


# --- servers ----------------------------------------------------------------------------------------------------


async def test_a_missing_bucket_on_s3(minio_bucket: S3Bucket) -> None:
    location = "s3://asyncckpt-no-such-bucket/a.checkpoint"
    options = minio_bucket.storage_options
    for call in (asyncckpt.save(STATE, location, storage_options=options), _list(location, options)):
        await refused(call, asyncckpt.ObjectNotFoundError, "asyncckpt-no-such-bucket", "create the bucket")
    await refused(
        asyncckpt.load(location, storage_options=options),
        asyncckpt.CheckpointNotFoundError,
        "asyncckpt-no-such-bucket",
        "create the bucket",
    )


async def test_a_missing_bucket_on_gcs(gcs_bucket: GcsBucket) -> None:
    location = "gs://asyncckpt-no-such-bucket/a.checkpoint"
    options = gcs_bucket.storage_options
    await refused(
        asyncckpt.save(STATE, location, storage_options=options), asyncckpt.ObjectNotFoundError, "bucket"
    )
    await refused(
        asyncckpt.load(location, storage_options=options), asyncckpt.CheckpointNotFoundError, "bucket"
    )


async def _list(location: str, options: dict[str, Any]) -> list[str]:
    """A listing error must never read as "no checkpoints"."""
    root = location.rpartition("/")[0]
    async with asyncckpt.open_storage(root, storage_options=options) as storage:
        return [info.key async for info in storage.list()]


@pytest.mark.parametrize("wrong", ["key", "secret"])
async def test_wrong_credentials(minio_bucket: S3Bucket, wrong: str) -> None:
    options = {**minio_bucket.storage_options, wrong: "not-the-right-one"}
    location = f"{minio_bucket.url}/a.checkpoint"
    large = {"w": np.zeros(4_000_000, np.float32)}
    for call in (
        asyncckpt.save(STATE, location, storage_options=options),
        asyncckpt.save(large, location, storage_options=options, overwrite=True),
        asyncckpt.load(location, storage_options=options),
        _list(location, options),
    ):
        message = await refused(call, asyncckpt.AccessDeniedError, "check")
        assert "not-the-right-one" not in message
        assert minio_bucket.server.secret_key not in message
    assert (minio_bucket.keys(), minio_bucket.uploads()) == ([], [])


def _options(port: int) -> dict[str, Any]:
    return {
        "key": "nobody",
        "secret": "nothing",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"},
        "config_kwargs": {"connect_timeout": 1, "read_timeout": 1},
    }


async def _calls(storage: S3Storage) -> AsyncIterator[tuple[str, Awaitable[object]]]:
    place = (storage, "a.checkpoint")
    yield "small save", asyncckpt.save(STATE, place)
    yield "large save", asyncckpt.save({"w": np.zeros(4_000_000, np.float32)}, place, overwrite=True)
    yield "load", asyncckpt.load(place)
    yield "verify", asyncckpt.verify(place)


async def test_a_refused_endpoint() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port, and it refuses
        port = taken.getsockname()[1]
        async with S3Storage("bucket", storage_options=_options(port), retry=NO_RETRY) as storage:
            async for _, call in _calls(storage):
                await refused(call, asyncckpt.UnavailableError, "can't be reached", "check the endpoint")


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Takes connections and what is sent, and never says a word."""
    over = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_a_silent_endpoint() -> None:
    async with (
        silent_server() as port,
        S3Storage("bucket", storage_options=_options(port), retry=IMPATIENT) as storage,
    ):
        async for what, call in _calls(storage):
            if what == "small save":
                # One PUT is the whole save: whether the server has it, nobody knows, and the error says that.
                await refused(call, asyncckpt.OutcomeUnknownError, "a.checkpoint", "write id", "look for")
            else:
                await refused(call, asyncckpt.StorageTimeoutError, "a.checkpoint")


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_an_object_overwritten_while_it_is_read(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What was opened, or an error that says so: never a mixture, never a checksum error."""
    old = {"w": np.zeros(300_000, np.float32)}
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, "a.checkpoint")
        await asyncckpt.save(old, place)
        async with asyncckpt.open_checkpoint(place) as opened:
            await asyncckpt.save({"w": np.ones(300_000, np.float32)}, place, overwrite=True)
            if kind in ("minio", "gcs"):
                await refused(opened.read("w"), asyncckpt.ObjectChangedError, "a.checkpoint", "open it again")
            else:
                assert not (await opened.read("w")).any()
        assert (await asyncckpt.load(place))["w"].all()


async def test_a_folder_with_a_nul_byte(tmp_path: Path) -> None:
    location = f"{tmp_path}/a\0b/model.checkpoint"
    await refused(asyncckpt.save(STATE, location), asyncckpt.InvalidKeyError, "NUL")
    await refused(asyncckpt.load(location), asyncckpt.InvalidKeyError, "NUL")
    assert files_in(tmp_path) == {}


async def test_no_thread_to_be_had(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: Callable[..., object], args: tuple[object, ...]) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", refuse)
        for call in (asyncckpt.load(checkpoint), asyncckpt.save(STATE, tmp_path / "new" / "b.checkpoint")):
            await refused(call, asyncckpt.StorageError, "no thread could be started", "ulimit -u")
    assert not (tmp_path / "new").exists()
    assert (await asyncckpt.load(checkpoint))["step"] == 1
