"""Five hooks make a whole storage: the contract, retries and the breaker, and what memory it takes."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from asyncckpt.errors import (
    DeleteFailuresError,
    ObjectChangedError,
    ObjectExistsError,
    OutcomeUnknownError,
    StorageError,
    UnavailableError,
)
from asyncckpt.storage import Capabilities, MemoryStorage, NotAtomicWarning, ObjectInfo, RetryPolicy
from asyncckpt.storage.retry import on_retry
from asyncckpt.testing import StorageContract
from tests.storage.plain import PlainStorage

QUICK = RetryPolicy(attempts=3, base_delay=0.001, max_delay=0.001)


class TestPlainStorage(StorageContract):
    skips: ClassVar = {
        "server_copy": "parts wait in a temp file",
        "map": "there is no default for it",
        "store_time": "there is no default for it",
    }

    @pytest.fixture(autouse=True)
    def medium(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spool = tmp_path
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        self.plain = PlainStorage()

    async def make_storage(self) -> PlainStorage:
        return self.plain

    async def raw_objects(self) -> dict[str, bytes]:
        return {key: data for key, (_, data) in self.plain.objects.items()}

    async def raw_leftovers(self) -> Sequence[str]:
        return [path.name for path in self.spool.iterdir()]

    async def raw_put(self, key: str, data: bytes) -> None:
        self.plain.store(key, data, "raw")


async def parts(storage: PlainStorage) -> None:
    async with storage.open_writer("new", part_bytes=3) as writer:
        await writer.write_part(0, [b"abc"])


CALLS: dict[str, tuple[str, Callable[[PlainStorage], Awaitable[object]]]] = {
    "write": ("put", lambda storage: storage.write("key", b"new")),
    "write_new": ("put", lambda storage: storage.write_new("new", b"new")),
    "open_writer": ("put", parts),
    "read": ("read", lambda storage: storage.read("key")),
    "open": ("stat", lambda storage: storage.read("key")),
    "stat": ("stat", lambda storage: storage.stat("key")),
    "delete": ("delete", lambda storage: storage.delete("key")),
    "delete_many": ("delete", lambda storage: storage.delete_many(["key"])),
}


def filled(policy: RetryPolicy | None = QUICK) -> PlainStorage:
    storage = PlainStorage()
    storage.retry_policy = policy
    storage.store("key", b"old", "old")
    return storage


@pytest.mark.parametrize("name", CALLS)
async def test_every_verb_is_tried_again_by_the_policy(name: str) -> None:
    hook, call = CALLS[name]
    storage, heard = filled(), list[str]()
    storage.before = [(hook, UnavailableError("busy")), (hook, UnavailableError("busy"))]
    token = on_retry.set(heard.append)
    try:
        await call(storage)
    finally:
        on_retry.reset(token)
    assert storage.calls[hook] == 3
    assert len(heard) == 2
    assert "attempt 2 of 3" in heard[0]


@pytest.mark.parametrize("name", CALLS)
async def test_without_a_policy_there_is_one_attempt(name: str) -> None:
    hook, call = CALLS[name]
    storage = filled(None)
    storage.before = [(hook, UnavailableError("busy"))]
    with pytest.raises(StorageError, match="busy"):
        await call(storage)
    assert storage.calls[hook] == 1


async def test_the_breaker_stands_before_every_verb() -> None:
    storage = filled(RetryPolicy(attempts=1, breaker_failures=3, breaker_cooldown=60))
    storage.before = [("stat", UnavailableError("down"))] * 3
    for _ in range(3):
        with pytest.raises(UnavailableError, match="down"):
            await storage.stat("key")
    for _, call in CALLS.values():
        with pytest.raises(StorageError, match="not tried, because 3 requests in a row failed"):
            await call(storage)
    assert sum(storage.calls.values()) == 3


# -- a lost answer -----------------------------------------------------------------------------------------------


async def test_a_create_that_meets_its_own_first_attempt_has_succeeded() -> None:
    storage = filled()
    storage.after = [("put", UnavailableError("the answer was lost"))]
    info = await storage.write_new("new", b"data", write_id="mine")
    assert (info.write_id, storage.calls["put"]) == ("mine", 2)


async def test_a_create_that_meets_a_strangers_object_has_failed() -> None:
    storage = filled()
    storage.before = [("put", UnavailableError("busy"))]
    with pytest.raises(ObjectExistsError, match=r"'key' exists already \(3 bytes, write id old\)"):
        await storage.write_new("key", b"data")
    assert storage.objects["key"][1] == b"old"


async def test_a_write_whose_last_answer_was_lost_is_found() -> None:
    storage = filled(RetryPolicy(attempts=1))
    storage.after = [("put", UnavailableError("the answer was lost"))]
    assert (await storage.write("key", b"new", write_id="mine")).write_id == "mine"


async def test_without_write_ids_nobody_knows() -> None:
    class Forgetful(PlainStorage):
        capabilities = Capabilities(write_ids=False)
        retry_policy = QUICK

        def store(self, key: str, data: bytes, write_id: str | None) -> ObjectInfo:
            return super().store(key, data, None)

    storage = Forgetful()
    storage.after = [("put", UnavailableError("the answer was lost"))]
    with pytest.raises(OutcomeUnknownError, match="keeps no write ids") as caught:
        await storage.write_new("new", b"data", write_id="mine")
    assert (caught.value.write_id, storage.calls["put"]) == ("mine", 1)


async def test_a_storage_that_stays_silent() -> None:
    storage = filled(RetryPolicy(attempts=1))
    storage.after = [("put", UnavailableError("the answer was lost"))]
    storage.before = [("stat", UnavailableError("silent"))]
    with pytest.raises(OutcomeUnknownError, match="does not say how it ended"):
        await storage.write("key", b"data")


# -- listing, deleting, reading ----------------------------------------------------------------------------------


async def test_a_listing_goes_on_behind_the_last_key_after_a_failed_page() -> None:
    storage = filled()
    storage.page = 2
    for key in "abcdefg":
        storage.store(key, b"", "")
    listing = storage.list()
    found = [(await anext(listing)).key, (await anext(listing)).key]
    storage.before = [("list", UnavailableError("busy"))]
    found += [info.key async for info in listing]
    assert found == ["a", "b", "c", "d", "e", "f", "g", "key"]


async def test_what_could_not_be_deleted_is_named_and_the_rest_is_gone() -> None:
    storage = filled(None)
    for key in "abc":
        storage.store(key, b"", "")
    storage.before = [("delete", UnavailableError("busy"))]
    with pytest.raises(
        DeleteFailuresError, match="1 of 3 objects could not be deleted, the first is"
    ) as caught:
        await storage.delete_many(["a", "b", "c"])
    assert set(caught.value.failures) == storage.objects.keys() - {"key"}
    assert [str(error) for error in caught.value.failures.values()] == ["busy"]


async def test_a_read_through_the_hook_of_a_reader_checks_the_version() -> None:
    storage = MemoryStorage()
    info = await storage.write("key", b"0123456789")
    assert await storage._read("key", 2, 5, version=info.version) == b"234"
    with pytest.raises(ObjectChangedError):
        await storage._read("key", 2, 5, version="another")


async def test_a_read_that_is_too_short_is_no_success() -> None:
    class Short(PlainStorage):
        async def _read(self, key: str, start: int, end: int, *, version: str) -> bytes:
            return (await super()._read(key, start, end, version=version))[:-1]

    storage = Short()
    storage.store("key", b"0123456789", "")
    with pytest.raises(ObjectChangedError, match="gave 9 of 10 bytes"):
        await storage.read("key")


# -- warnings ----------------------------------------------------------------------------------------------------


async def test_the_first_write_to_a_storage_that_is_not_atomic_warns() -> None:
    storage = filled()
    storage.capabilities = Capabilities(atomic=False)
    with pytest.warns(NotAtomicWarning, match=r"PlainStorage.* appears whole or not at all"):
        await storage.write("key", b"data")
    await storage.write("key", b"data")
    assert await storage.read("key") == b"data"
