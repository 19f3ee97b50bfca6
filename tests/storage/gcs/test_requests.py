"""GcsStorage's reads, listings, error mapping, credentials, and what it never shows."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import google.auth.credentials
import google.auth.exceptions
import pytest
import pytest_asyncio

from asyncckpt.errors import (
    AccessDeniedError,
    MissingExtraError,
    ObjectChangedError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StorageTimeoutError,
    UnavailableError,
)
from asyncckpt.model.ranges import ByteRange
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.retry import NO_RETRY, RetryPolicy, on_retry
from tests.servers import GcsBucket
from tests.storage.gcs.front import QUANTUM, GcsFront

PATIENT = RetryPolicy(base_delay=0.001, max_delay=0.01)
DATA = random.Random(5).randbytes(700_001)


@pytest_asyncio.fixture
async def front(gcs_bucket: GcsBucket) -> AsyncIterator[GcsFront]:
    async with GcsFront(gcs_bucket).running() as front:
        yield front


def storage_on(front: GcsFront, *, retry: RetryPolicy = NO_RETRY, **options: Any) -> GcsStorage:
    return GcsStorage(front.bucket.name, storage_options={**front.storage_options, **options}, retry=retry)


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, StorageError),
        (401, AccessDeniedError),
        (403, AccessDeniedError),
        (404, ObjectNotFoundError),
        (408, StorageTimeoutError),
        (416, RangeError),
        (429, UnavailableError),
        (500, UnavailableError),
        (503, UnavailableError),
        (504, StorageTimeoutError),
    ],
)
async def test_a_status_becomes_its_error(front: GcsFront, status: int, error: type[StorageError]) -> None:
    async with storage_on(front) as storage:
        front.fail_next("answer", "GET", status=status)
        with pytest.raises(error) as caught:
            await storage.stat("key")
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


async def test_a_missing_bucket(front: GcsFront) -> None:
    options = front.storage_options
    async with GcsStorage("no-such-bucket", storage_options=options, retry=NO_RETRY) as storage:
        for attempt in (storage.write("key", b"data"), storage.read("key"), storage.stat("key")):
            with pytest.raises(ObjectNotFoundError):
                await attempt
        with pytest.raises(ObjectNotFoundError, match="create it, or check its name"):
            [info async for info in storage.list()]


async def test_an_endpoint_that_hangs(front: GcsFront) -> None:
    policy = RetryPolicy(attempts=1, attempt_timeout=0.05)
    async with storage_on(front, retry=policy) as storage:
        front.fail_next("hang", "GET")
        with pytest.raises(StorageTimeoutError):
            await storage.stat("key")


async def test_retries_are_heard_of(front: GcsFront) -> None:
    heard: list[str] = []
    on_retry.set(heard.append)
    async with storage_on(front, retry=PATIENT) as storage:
        front.bucket.put("key", b"data")
        front.fail_next("answer", "GET", status=503)
        front.fail_next("answer", "GET", status=429)
        assert (await storage.stat("key")).size == 4
    assert len(heard) == 2
    assert "HTTP 503" in heard[0]


def test_without_gcsfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'asyncckpt\[gcs\]'"):
        GcsStorage("bucket")


# -- reading -----------------------------------------------------------------------------------------------------


async def test_a_range_that_breaks_off_goes_on_where_it_was(front: GcsFront) -> None:
    front.bucket.put("key", DATA)
    async with storage_on(front, retry=PATIENT) as storage:
        front.fail_next("truncate", "GET", alt="media", cut_bytes=300_000)
        async with storage.open_reader("key") as reader:
            front.requests.clear()
            assert await reader.read_range(1, len(DATA)) == DATA[1:]
    first, second = (seen.headers["Range"] for seen in front.requests)
    assert first == f"bytes=1-{len(DATA) - 1}"
    begin = int(second.removeprefix("bytes=").split("-")[0])
    assert 1 <= begin <= 300_001


async def test_a_replaced_object_is_never_mixed(front: GcsFront) -> None:
    front.bucket.put("key", DATA)
    async with storage_on(front) as storage, storage.open_reader("key", first_bytes=10) as reader:
        front.bucket.put("key", bytes(len(DATA)))
        with pytest.raises(ObjectChangedError, match="'key' was replaced or deleted"):
            await reader.read_range(10, 20)


async def test_ranges_are_merged_and_land_in_the_callers_buffers(front: GcsFront) -> None:
    front.bucket.put("key", DATA)
    ranges = [
        ByteRange(0, 300_000),
        ByteRange(300_000, 300_010),
        ByteRange(299_990, 500_000),
        ByteRange(5, 5),
    ]
    buffers = [bytearray(wanted.size) for wanted in ranges]
    filled: list[int] = []
    async with storage_on(front) as storage, storage.open_reader("key") as reader:
        front.requests.clear()
        await reader.read_ranges(ranges, [memoryview(b) for b in buffers], filled=filled.append)
    assert [bytes(b) for b in buffers] == [DATA[r.start : r.end] for r in ranges]
    assert sorted(filled) == [0, 1, 2, 3]
    assert len(front.requests) == 1


async def test_a_listing_is_paged_and_never_cached(front: GcsFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncckpt.storage.gcs.listing.PAGE_OBJECTS", 2)
    for name in ("run/b", "run/a", "run/c/d", "runaway", "run/c", "run/folder/"):
        front.bucket.put(name, name.encode())
    options = front.storage_options
    async with GcsStorage(front.bucket.name, "run", storage_options=options) as storage:
        assert [info.key async for info in storage.list()] == ["a", "b", "c", "c/d"]
        assert len(front.requests) == 3
        assert [info.key async for info in storage.list("c")] == ["c", "c/d"]
        front.bucket.delete("run/c")
        assert [info.key async for info in storage.list("c")] == ["c/d"]


async def test_a_failed_page_is_no_end_of_the_listing(
    front: GcsFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncckpt.storage.gcs.listing.PAGE_OBJECTS", 1)
    front.bucket.put("a", b"")
    front.bucket.put("b", b"")
    async with storage_on(front) as storage:
        front.fail_next("answer", "GET", status=500, pageToken="b")
        with pytest.raises(UnavailableError):
            [info async for info in storage.list()]


# -- credentials and secrets -------------------------------------------------------------------------------------


class Credentials(google.auth.credentials.Credentials):
    """Tokens that are counted; each lives for an hour."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.broken = broken

    def refresh(self, request: object) -> None:
        if self.broken:
            raise google.auth.exceptions.RefreshError("the secret key-1234 is bad")  # type: ignore[no-untyped-call]
        self.count += 1
        self.token = f"secret-token-{self.count}"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)


async def test_a_token_is_renewed_in_the_middle_of_an_upload(front: GcsFront) -> None:
    credentials = Credentials()
    async with storage_on(front, token=credentials) as storage:
        async with storage.open_writer("big", part_bytes=QUANTUM) as writer:
            await writer.write_part(0, [DATA[:QUANTUM]])
            credentials.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=60)
            await writer.write_part(1, [DATA[QUANTUM : 2 * QUANTUM]])
    used = [seen.headers["Authorization"] for seen in front.requests]
    assert used[0] == "Bearer secret-token-1"
    assert used[-1] == "Bearer secret-token-2"
    assert front.bucket.get("big") == DATA[: 2 * QUANTUM]


async def test_credentials_that_cannot_be_renewed(front: GcsFront) -> None:
    async with storage_on(front, token=Credentials(broken=True)) as storage:
        with pytest.raises(AccessDeniedError, match="no credentials for GCS") as caught:
            await storage.stat("key")
    assert "key-1234" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", ["before", "after", "cut"])
async def test_tokens_and_session_uris_stay_secret(
    front: GcsFront, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    shown: list[str] = []
    storage = storage_on(front, token=Credentials())
    async with storage:
        front.fail_next(kind, "PUT", content_range="bytes 0-", cut_bytes=10)
        with pytest.raises(UnavailableError) as caught:
            async with storage.open_writer("big", part_bytes=8 * QUANTUM) as writer:
                shown += [repr(storage), repr(writer), repr(storage._client)]
                await writer.write_part(0, [DATA])
    asyncio.get_running_loop().set_debug(False)
    shown += [caplog.text, *traceback.format_exception(caught.value), repr(caught.value)]
    assert len(front.sessions) == 1
    for secret in (next(iter(front.sessions)), "upload_id", "secret-token"):
        assert not [text for text in shown if secret in text]


async def test_a_storage_closes_its_session_and_may_be_closed_twice(front: GcsFront) -> None:
    storage = storage_on(front)
    assert not await storage.exists("key")
    await storage.aclose()
    await storage.aclose()
    gc.collect()  # a session left open would warn here, and a warning fails the test
    assert repr(storage) == f"GcsStorage('gs://{front.bucket.name}/')"
