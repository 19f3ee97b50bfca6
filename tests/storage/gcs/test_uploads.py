"""What GcsStorage sends, and what it does when answers are lost, chunks are cut, bytes are damaged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncckpt.errors import (
    ObjectExistsError,
    OutcomeUnknownError,
    RangeError,
    StorageError,
    UnavailableError,
    UnsupportedOperationError,
)
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.retry import NO_RETRY, RetryPolicy
from tests.servers import GcsBucket
from tests.storage.gcs.front import QUANTUM, GcsFront

PATIENT = RetryPolicy(base_delay=0.001, max_delay=0.01)
PART = 2 * QUANTUM
DATA = random.Random(11).randbytes(2 * PART + QUANTUM + 777)


@pytest_asyncio.fixture
async def front(gcs_bucket: GcsBucket) -> AsyncIterator[GcsFront]:
    async with GcsFront(gcs_bucket).running() as front:
        yield front


@pytest_asyncio.fixture
async def storage(front: GcsFront) -> AsyncIterator[GcsStorage]:
    options = front.storage_options
    async with GcsStorage(front.bucket.name, storage_options=options, retry=PATIENT) as storage:
        yield storage


async def upload(
    storage: GcsStorage, data: bytes = DATA, *, exclusive: bool = False, write_id: str | None = None
) -> ObjectInfo:
    async with storage.open_writer("big", exclusive=exclusive, part_bytes=PART, write_id=write_id) as writer:
        for index, start in enumerate(range(0, len(data), PART)):
            await writer.write_part(index, [memoryview(data)[start : start + PART]])
    assert writer.committed is not None
    return writer.committed


async def test_a_small_object_is_one_request(front: GcsFront, storage: GcsStorage) -> None:
    info = await storage.write_new("small", [b"one", b"two"], write_id="w-1")
    assert [(seen.method, seen.query["uploadType"]) for seen in front.requests] == [("POST", "multipart")]
    assert front.requests[0].query["ifGenerationMatch"] == "0"
    raw = front.bucket.head("small")
    assert raw["metadata"] == {"asyncckpt-write-id": "w-1"}
    assert (raw["generation"], info.write_id) == (info.version, "w-1")
    assert front.bucket.get("small") == b"onetwo"


async def test_opening_with_first_bytes_is_one_request(front: GcsFront, storage: GcsStorage) -> None:
    await storage.write("small", b"0123456789")
    front.requests.clear()
    async with storage.open_reader("small", first_bytes=4) as reader:
        assert (reader.first, reader.info.size) == (b"0123", 10)
    assert len(front.requests) == 1


async def test_an_upload_is_one_session_with_chunks_in_order(front: GcsFront, storage: GcsStorage) -> None:
    info = await upload(storage, exclusive=True, write_id="w-2")
    start, *chunks = front.requests
    assert (start.method, start.query["uploadType"]) == ("POST", "resumable")
    assert start.query["ifGenerationMatch"] == "0"
    total = len(DATA)
    assert [chunk.headers["Content-Range"] for chunk in chunks] == [
        f"bytes 0-{QUANTUM - 1}/*",
        f"bytes {QUANTUM}-{3 * QUANTUM - 1}/*",
        f"bytes {3 * QUANTUM}-{5 * QUANTUM - 1}/*",
        f"bytes {5 * QUANTUM}-{total - 1}/{total}",
    ]
    assert chunks[-1].headers["X-Goog-Hash"] == f"crc32c={front.bucket.head('big')['crc32c']}"
    assert front.bucket.get("big") == DATA
    assert front.bucket.head("big")["metadata"] == {"asyncckpt-write-id": "w-2"}
    assert (info.size, info.write_id) == (total, "w-2")


async def test_nothing_is_visible_before_the_commit(front: GcsFront, storage: GcsStorage) -> None:
    async with storage.open_writer("big", size=PART, part_bytes=PART) as writer:
        await writer.write_part(0, [DATA[:PART]])
        assert front.bucket.keys() == []
    assert front.bucket.get("big") == DATA[:PART]


async def test_parts_out_of_order_are_refused(storage: GcsStorage) -> None:
    with pytest.raises(UnsupportedOperationError, match="part 0 of 'big' is due, got 1"):
        async with storage.open_writer("big", part_bytes=PART) as writer:
            await writer.write_part(1, [DATA[:PART]])


async def test_a_part_after_a_short_one_is_refused(front: GcsFront, storage: GcsStorage) -> None:
    with pytest.raises(RangeError, match="part 0 of 'big' was short"):
        async with storage.open_writer("big", part_bytes=PART) as writer:
            await writer.write_part(0, [DATA[: PART - 1]])
            await writer.write_part(1, [DATA[:PART]])
    assert front.open_sessions == []


# -- lost answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [True, False])
async def test_a_lost_answer_to_a_small_write(front: GcsFront, storage: GcsStorage, exclusive: bool) -> None:
    front.fail_next("after", "POST", uploadType="multipart")
    write = storage.write_new if exclusive else storage.write
    info = await write("small", b"data", write_id="mine")
    assert (info.write_id, info.size) == ("mine", 4)
    assert front.bucket.head("small")["generation"] == info.version


async def test_a_create_that_lost_to_another_writer_and_then_its_answer(
    front: GcsFront, storage: GcsStorage
) -> None:
    await storage.write("small", b"theirs")
    front.fail_next("after", "POST", uploadType="multipart")
    with pytest.raises(ObjectExistsError, match="'small' exists already"):
        await storage.write_new("small", b"ours")
    assert front.bucket.get("small") == b"theirs"


@pytest.mark.parametrize("kind", ["before", "after", "answer"])
async def test_a_chunk_whose_answer_is_lost(front: GcsFront, storage: GcsStorage, kind: str) -> None:
    front.fail_next(kind, "PUT", content_range=f"bytes {QUANTUM}-")
    await upload(storage)
    assert front.bucket.get("big") == DATA
    queries = [seen for seen in front.requests if seen.headers.get("Content-Range") == "bytes */*"]
    assert len(queries) == 1


async def test_a_chunk_that_is_cut_goes_on_where_google_has_it(front: GcsFront, storage: GcsStorage) -> None:
    front.fail_next("cut", "PUT", content_range=f"bytes {QUANTUM}-", cut_bytes=QUANTUM + 5)
    await upload(storage)
    assert front.bucket.get("big") == DATA
    sent = [seen.headers["Content-Range"] for seen in front.requests if "Content-Range" in seen.headers]
    assert f"bytes {2 * QUANTUM}-{3 * QUANTUM - 1}/*" in sent


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("kind", ["before", "after", "answer"])
async def test_a_commit_whose_answer_is_lost(
    front: GcsFront, storage: GcsStorage, kind: str, exclusive: bool
) -> None:
    front.fail_next(kind, "PUT", content_range=f"/{len(DATA)}")
    info = await upload(storage, exclusive=exclusive, write_id="mine")
    assert info.write_id == "mine"
    assert front.bucket.head("big")["generation"] == info.version
    assert front.bucket.get("big") == DATA


async def test_a_commit_that_stays_unanswered_is_settled_by_one_look(front: GcsFront) -> None:
    options = front.storage_options
    async with GcsStorage(front.bucket.name, storage_options=options, retry=NO_RETRY) as storage:
        front.fail_next("after", "PUT", content_range=f"/{len(DATA)}")
        info = await upload(storage, write_id="mine")
        assert info.write_id == "mine"
        front.fail_next("before", "PUT", content_range=f"/{len(DATA)}")
        with pytest.raises(UnavailableError):
            await upload(storage)
    assert front.bucket.head("big")["metadata"] == {"asyncckpt-write-id": "mine"}
    assert front.open_sessions == []


async def test_a_commit_nobody_can_tell_of(front: GcsFront) -> None:
    options = front.storage_options
    async with GcsStorage(front.bucket.name, storage_options=options, retry=NO_RETRY) as storage:
        front.fail_next("after", "PUT", content_range=f"/{len(DATA)}")
        front.fail_next("answer", "GET", status=503)
        with pytest.raises(OutcomeUnknownError, match="write id mine") as caught:
            await upload(storage, write_id="mine")
    assert caught.value.write_id == "mine"


async def test_a_write_that_never_left_is_no_unknown_outcome(front: GcsFront) -> None:
    options = {**front.storage_options, "endpoint_url": "http://127.0.0.1:9"}
    async with GcsStorage(front.bucket.name, storage_options=options, retry=NO_RETRY) as storage:
        with pytest.raises(UnavailableError, match=r"no connection to 127\.0\.0\.1:9"):
            await storage.write_new("small", b"data")


# -- races, damage, cancel ---------------------------------------------------------------------------------------


async def test_one_of_two_exclusive_uploads_wins(front: GcsFront, storage: GcsStorage) -> None:
    async def attempt(number: int) -> ObjectInfo:
        return await upload(storage, bytes([number]) * (PART + 9), exclusive=True)

    outcomes = await asyncio.gather(*(attempt(number) for number in range(4)), return_exceptions=True)
    won = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, ObjectInfo)]
    assert len(won) == 1
    assert all(isinstance(o, ObjectInfo | ObjectExistsError) for o in outcomes)
    assert front.bucket.get("big") == bytes(won) * (PART + 9)
    assert front.open_sessions == []


async def test_a_chunk_damaged_on_its_way_is_refused_by_google(front: GcsFront, storage: GcsStorage) -> None:
    await storage.write("big", b"old")
    front.fail_next("damage", "PUT", content_range=f"bytes {QUANTUM}-")
    with pytest.raises(StorageError, match="HTTP 400"):
        await upload(storage)
    assert front.bucket.get("big") == b"old"
    assert front.open_sessions == []


async def test_a_small_object_damaged_on_its_way_is_refused_by_google(
    front: GcsFront, storage: GcsStorage
) -> None:
    front.fail_next("damage", "POST", uploadType="multipart")
    with pytest.raises(StorageError, match="HTTP 400"):
        await storage.write("small", bytes(100_000))
    assert front.bucket.keys() == []


async def test_a_server_that_checks_nothing_is_checked_by_us(
    gcs_bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Straight to the emulator, which ignores X-Goog-Hash: the crc32c of its answer gives it away."""
    monkeypatch.setattr("asyncckpt.storage.gcs.writer.crc32c_combine", lambda *_: 12345)
    async with GcsStorage(gcs_bucket.name, storage_options=gcs_bucket.storage_options) as storage:
        with pytest.raises(StorageError, match=r"damaged on its way: crc32c .* save again"):
            await upload(storage)
    assert gcs_bucket.keys() == []


@pytest.mark.parametrize("when", ["bytes 0-", f"bytes {QUANTUM}-"])
async def test_a_cancel_deletes_the_session(front: GcsFront, storage: GcsStorage, when: str) -> None:
    reached = asyncio.Event()
    front.fail_next("hang", "PUT", content_range=when)
    front.on_request = lambda seen: when in seen.headers.get("Content-Range", "") and reached.set()  # type: ignore[assignment,func-returns-value]
    task = asyncio.create_task(upload(storage))
    await reached.wait()
    assert len(front.open_sessions) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert front.open_sessions == []
    assert [seen.method for seen in front.requests][-1] == "DELETE"
    assert front.bucket.keys() == []


async def test_a_cancel_while_the_session_is_asked_for(front: GcsFront, storage: GcsStorage) -> None:
    reached = asyncio.Event()
    front.on_request = lambda seen: reached.set()
    task = asyncio.create_task(upload(storage))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(front.sessions) == 1
    assert front.open_sessions == []


async def test_a_session_that_cannot_be_deleted_hides_no_error(
    front: GcsFront, caplog: pytest.LogCaptureFixture
) -> None:
    options = front.storage_options
    async with GcsStorage(front.bucket.name, storage_options=options, retry=NO_RETRY) as storage:
        front.fail_next("answer", "DELETE", status=500)
        with pytest.raises(ZeroDivisionError):
            async with storage.open_writer("big", part_bytes=PART) as writer:
                await writer.write_part(0, [DATA[:PART]])
                raise ZeroDivisionError
    assert "its session could not be deleted" in caplog.text
    assert next(iter(front.sessions)) not in caplog.text
