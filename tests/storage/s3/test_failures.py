"""S3Storage when things go wrong: lost answers, cut and silent connections, refusals, changes underneath."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from asyncckpt.errors import (
    AccessDeniedError,
    MissingExtraError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StorageError,
    StorageTimeoutError,
    UnavailableError,
)
from asyncckpt.storage.retry import Retries, RetryPolicy, on_retry
from asyncckpt.storage.s3.storage import S3Storage
from tests.guards import call_blocking
from tests.servers import S3Bucket, S3Server, Toxiproxy
from tests.storage.relay import Fate, Relay, Seen
from tests.storage.scripted_server import ScriptedServer, answering

MIB = 1024 * 1024
DATA = os.urandom(12 * MIB + 17)
HASTY = RetryPolicy(attempts=4, base_delay=0.01, max_delay=0.05)


@pytest.fixture
def relay(minio: S3Server) -> Iterator[Relay]:
    with Relay(minio.endpoint_url) as relay:
        yield relay


def through(endpoint_url: str, bucket: S3Bucket, *, retry: RetryPolicy = HASTY, **config: Any) -> S3Storage:
    given = bucket.storage_options
    given["client_kwargs"] = {**given["client_kwargs"], "endpoint_url": endpoint_url}
    given["config_kwargs"] = {**given["config_kwargs"], **config}
    return S3Storage(bucket.name, storage_options=given, retry=retry, part_bytes=5 * MIB)


async def save(storage: S3Storage, key: str, *, exclusive: bool, write_id: str | None = None) -> None:
    async with storage.open_writer(key, size=len(DATA), exclusive=exclusive, write_id=write_id) as writer:
        for index, start in enumerate(range(0, len(DATA), writer.part_bytes)):
            await writer.write_part(index, [memoryview(DATA)[start : start + writer.part_bytes]])


@contextmanager
def reporting_retries_to() -> Iterator[list[str]]:
    lines: list[str] = []
    token = on_retry.set(lines.append)
    try:
        yield lines
    finally:
        on_retry.reset(token)


# -- lost answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lose request", "lose answer"])
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_lost_put_is_settled(
    relay: Relay, minio_bucket: S3Bucket, fate: Fate, exclusive: bool
) -> None:
    relay.once("Put", fate)
    async with through(relay.endpoint_url, minio_bucket) as storage:
        write = storage.write_new if exclusive else storage.write
        with reporting_retries_to() as lines:
            info = await write("k", b"abc", write_id="mine")
        assert (info.size, info.write_id) == (3, "mine")
        assert info.version == (await storage.stat("k")).version
    assert minio_bucket.get("k") == b"abc"
    assert len(lines) == 1
    assert "writing 'k' in bucket" in lines[0]
    assert "closed the connection" in lines[0]
    expected = ["Put", "Put", "Head"] if exclusive and fate == "lose answer" else ["Put", "Put"]
    assert relay.operations()[:-1] == expected


@pytest.mark.parametrize("fate", ["lose request", "lose answer"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("operation", ["CreateUpload", "UploadPart", "Complete"])
async def test_a_lost_step_of_an_upload_is_settled(
    relay: Relay, minio_bucket: S3Bucket, operation: str, exclusive: bool, fate: Fate
) -> None:
    relay.once(operation, fate)
    async with through(relay.endpoint_url, minio_bucket) as storage:
        with reporting_retries_to() as lines:
            await save(storage, "k", exclusive=exclusive, write_id="mine")
        assert (await storage.stat("k")).write_id == "mine"
    assert len(lines) == 1
    assert minio_bucket.get("k") == DATA
    assert minio_bucket.uploads() == []


async def test_an_upload_of_another_writer_is_not_taken_for_a_lost_one(
    relay: Relay, minio_bucket: S3Bucket
) -> None:
    client = minio_bucket.server.client()
    other = client.create_multipart_upload(Bucket=minio_bucket.name, Key="k")["UploadId"]
    client.upload_part(Bucket=minio_bucket.name, Key="k", UploadId=other, PartNumber=1, Body=b"theirs")
    relay.once("CreateUpload", "lose answer")
    async with through(relay.endpoint_url, minio_bucket) as storage:
        await save(storage, "k", exclusive=False)
    assert minio_bucket.uploads() == [("k", other)]


@pytest.mark.parametrize("whole", [True, False])
async def test_an_object_of_another_writer_is_a_conflict(minio_bucket: S3Bucket, whole: bool) -> None:
    minio_bucket.put("k", b"theirs", Metadata={"asyncckpt-write-id": "their-id"})
    async with S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options) as storage:
        with pytest.raises(ObjectExistsError, match="write id their-id"):
            if whole:
                await storage.write_new("k", b"ours")
            else:
                await save(storage, "k", exclusive=True)
    assert minio_bucket.get("k") == b"theirs"
    assert minio_bucket.uploads() == []


@pytest.mark.parametrize("operation", ["Put", "Complete"])
async def test_a_store_that_falls_silent_at_the_commit_leaves_the_outcome_unknown(
    relay: Relay, minio_bucket: S3Bucket, operation: str
) -> None:
    dead = False

    def decide(seen: Seen) -> Fate:
        nonlocal dead
        if dead:
            return "lose request"
        dead = seen.operation == operation
        return "lose answer" if dead else "pass"

    relay.decide = decide
    async with through(relay.endpoint_url, minio_bucket) as storage:
        with pytest.raises(OutcomeUnknownError, match="write id mine") as caught:
            if operation == "Put":
                await storage.write("k", b"abc", write_id="mine")
            else:
                await save(storage, "k", exclusive=False, write_id="mine")
    assert caught.value.write_id == "mine"
    assert minio_bucket.head("k")["Metadata"] == {"asyncckpt-write-id": "mine"}


async def test_an_upload_that_vanishes_is_an_error(minio_bucket: S3Bucket) -> None:
    async with S3Storage(
        minio_bucket.name, storage_options=minio_bucket.storage_options, part_bytes=5 * MIB
    ) as storage:
        with pytest.raises(StorageError, match="NoSuchUpload"):
            async with storage.open_writer("k") as writer:
                await writer.write_part(0, [b"abc"])
                [(key, upload)] = minio_bucket.uploads()
                client = minio_bucket.server.client()
                client.abort_multipart_upload(Bucket=minio_bucket.name, Key=key, UploadId=upload)
    assert minio_bucket.keys() == []


# -- the network -----------------------------------------------------------------------------------------------


@contextmanager
def healed_by_the_first_retry(proxy: Any, kind: str, **toxic: Any) -> Iterator[list[str]]:
    """A toxic that is gone before the second attempt begins."""
    name = proxy.add_toxic(kind, **toxic)
    lines: list[str] = []

    def heal(line: str) -> None:
        if not lines:
            call_blocking(proxy.remove_toxic, name)
        lines.append(line)

    token = on_retry.set(heal)
    try:
        yield lines
    finally:
        on_retry.reset(token)


async def test_a_cut_in_the_middle_of_a_part(
    toxiproxy: Toxiproxy, minio: S3Server, minio_bucket: S3Bucket
) -> None:
    with toxiproxy.proxy(minio.endpoint_url) as proxy:
        async with through(proxy.endpoint_url, minio_bucket) as storage:
            async with storage.open_writer("k", size=len(DATA)) as writer:
                await writer.write_part(2, [DATA[10 * MIB :]])
                with healed_by_the_first_retry(
                    proxy, "limit_data", stream="upstream", bytes=2 * MIB
                ) as lines:
                    await writer.write_part(0, [DATA[: 5 * MIB]])
                await writer.write_part(1, [DATA[5 * MIB : 10 * MIB]])
    assert len(lines) == 1
    assert minio_bucket.get("k") == DATA


async def test_a_cut_in_the_middle_of_a_range_goes_on_where_it_stopped(
    toxiproxy: Toxiproxy, minio: S3Server, minio_bucket: S3Bucket
) -> None:
    minio_bucket.put("k", DATA)
    asked: list[str] = []
    with toxiproxy.proxy(minio.endpoint_url) as proxy:
        async with through(proxy.endpoint_url, minio_bucket) as storage:
            exchange = storage._session.exchange

            async def noting(request: Any, *args: Any, **parameters: Any) -> Any:
                if "Range" in request.headers:
                    asked.append(request.headers["Range"])
                return await exchange(request, *args, **parameters)

            storage._session.exchange = noting  # type: ignore[method-assign]
            async with storage.open_reader("k") as reader:
                with healed_by_the_first_retry(proxy, "limit_data", bytes=3 * MIB) as lines:
                    assert await reader.read_range(0, 7 * MIB) == DATA[: 7 * MIB]
    assert len(lines) == 1
    first, second = asked
    assert first == f"bytes=0-{7 * MIB - 1}"
    begun = int(second.removeprefix("bytes=").partition("-")[0])
    assert 0 < begun < 3 * MIB


async def test_latency_is_no_error(toxiproxy: Toxiproxy, minio: S3Server, minio_bucket: S3Bucket) -> None:
    with toxiproxy.proxy(minio.endpoint_url) as proxy, proxy.toxic("latency", latency=30, jitter=10):
        async with through(proxy.endpoint_url, minio_bucket) as storage:
            with reporting_retries_to() as lines:
                await save(storage, "k", exclusive=True)
                assert await storage.read("k") == DATA
    assert lines == []


async def test_a_silent_server_fails_in_time_and_truthfully(
    toxiproxy: Toxiproxy, minio: S3Server, minio_bucket: S3Bucket
) -> None:
    minio_bucket.put("k", DATA)
    hasty = RetryPolicy(attempts=2, base_delay=0.01)
    with toxiproxy.proxy(minio.endpoint_url) as proxy:
        async with through(proxy.endpoint_url, minio_bucket, retry=hasty, read_timeout=0.3) as storage:
            async with storage.open_reader("k", first_bytes=10) as reader:
                with proxy.toxic("timeout", timeout=0):
                    with pytest.raises(StorageTimeoutError):
                        await reader.read_range(0, len(DATA))
                    with pytest.raises(StorageTimeoutError):
                        await storage.stat("k")
                    with pytest.raises(OutcomeUnknownError):
                        await storage.write("new", b"abc")
                    with pytest.raises(StorageTimeoutError):
                        await save(storage, "large", exclusive=True)
    assert minio_bucket.get("k") == DATA
    assert minio_bucket.keys("large") == []


async def test_an_attempt_that_trickles_is_ended_by_the_policy(
    toxiproxy: Toxiproxy, minio: S3Server, minio_bucket: S3Bucket
) -> None:
    minio_bucket.put("k", DATA)
    with toxiproxy.proxy(minio.endpoint_url) as proxy:
        async with through(proxy.endpoint_url, minio_bucket) as storage:
            async with storage.open_reader("k") as reader:
                storage._session._retries = Retries(RetryPolicy(attempts=1, attempt_timeout=0.05))
                with proxy.toxic("bandwidth", rate=20):
                    with pytest.raises(StorageTimeoutError, match="no end within"):
                        await reader.read_range(0, 20_000)


async def test_a_refused_endpoint(minio_bucket: S3Bucket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with through(nobody, minio_bucket) as storage:
        for call in (
            storage.write("k", b"abc"),
            storage.read("k"),
            storage.stat("k"),
            storage.exists("k"),
            save(storage, "k", exclusive=True),
        ):
            with pytest.raises(UnavailableError, match=r"can't be reached.*check the endpoint"):
                await call
        with pytest.raises(UnavailableError, match="can't be reached"):
            [info async for info in storage.list()]


async def test_a_server_that_comes_up_in_the_meantime_is_waited_for() -> None:
    server = ScriptedServer(answering(b"", extra='ETag: "e"\r\n'))
    lines: list[str] = []

    with ExitStack() as running:

        def note(line: str) -> None:
            lines.append(line)
            if len(lines) == 3:
                call_blocking(running.enter_context, server)

        token = on_retry.set(note)
        try:
            given = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": server.url}}
            patient = RetryPolicy(base_delay=0.001)
            async with S3Storage("bucket", storage_options=given, retry=patient) as storage:
                assert (await storage.write("k", b"abc")).version == "e"
                assert (await storage.stat("k")).version == "e"
        finally:
            on_retry.reset(token)
    assert len(lines) == 3
    assert all("can't be reached (Connection refused)" in line for line in lines)


async def test_a_cancel_between_two_attempts_to_start_an_upload_ends_at_once() -> None:
    """What is shielded is the request whose answer has the upload's id, not the wait for the next one."""
    pausing = asyncio.Event()
    token = on_retry.set(lambda _: pausing.set())
    nobody = ScriptedServer(answering(b""))
    given = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": nobody.url}}
    endless = RetryPolicy(attempts=2, base_delay=10_000, budget=1_000_000)
    async with S3Storage("bucket", storage_options=given, retry=endless) as storage:
        try:
            saving = asyncio.create_task(save(storage, "k", exclusive=False))
        finally:
            on_retry.reset(token)
        await pausing.wait()
        saving.cancel()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert saving.cancelled()
    with nobody:
        pass


# -- refusals --------------------------------------------------------------------------------------------------


async def each_call_raises(storage: S3Storage, error: type[Exception], match: str) -> None:
    for call in (
        storage.write("k", b"abc"),
        storage.write_new("k", b"abc"),
        storage.read("k"),
        save(storage, "k", exclusive=False),
    ):
        with pytest.raises(error, match=match):
            await call
    with pytest.raises(error, match=match):
        [info async for info in storage.list()]


@pytest.mark.parametrize("server", ["minio_bucket", "seaweedfs_bucket"])
async def test_wrong_credentials(server: str, request: pytest.FixtureRequest) -> None:
    bucket: S3Bucket = request.getfixturevalue(server)
    for change in ({"secret": "wrong-secret"}, {"key": "nobody"}):
        given = {**bucket.storage_options, **change}
        async with S3Storage(bucket.name, storage_options=given) as storage:
            await each_call_raises(
                storage, AccessDeniedError, "check the credentials|check that the credentials"
            )
    assert bucket.keys() == []
    assert bucket.uploads() == []


async def test_no_credentials(minio_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    given = minio_bucket.storage_options
    del given["key"], given["secret"]
    async with S3Storage(minio_bucket.name, storage_options=given) as storage:
        await each_call_raises(storage, AccessDeniedError, "no credentials found")
    async with S3Storage(minio_bucket.name, storage_options={**given, "anon": True}) as storage:
        await each_call_raises(storage, AccessDeniedError, "AccessDenied")


async def test_a_missing_bucket_is_named(minio: S3Server) -> None:
    async with S3Storage("no-such-bucket", storage_options=minio.storage_options) as storage:
        await each_call_raises(storage, ObjectNotFoundError, "no-such-bucket")


async def test_a_missing_object(minio_bucket: S3Bucket) -> None:
    async with S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options) as storage:
        for call in (storage.read("none"), storage.stat("none"), storage.delete("none", missing_ok=False)):
            with pytest.raises(ObjectNotFoundError, match="'none'"):
                await call
        await storage.delete("none")
        assert not await storage.exists("none")


async def test_an_untrusted_certificate(minio_tls_bucket: S3Bucket) -> None:
    given = minio_tls_bucket.storage_options
    del given["client_kwargs"]["verify"]
    once = RetryPolicy(attempts=1)
    async with S3Storage(minio_tls_bucket.name, storage_options=given, retry=once) as storage:
        await each_call_raises(storage, UnavailableError, "certificate.*'verify'")
    given["client_kwargs"]["verify"] = False
    async with S3Storage(minio_tls_bucket.name, storage_options=given) as storage:
        await storage.write("k", b"abc")
        assert await storage.read("k") == b"abc"


async def test_a_certificate_bundle_from_the_environment(
    minio_tls_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = minio_tls_bucket.storage_options
    monkeypatch.setenv("AWS_CA_BUNDLE", given["client_kwargs"].pop("verify"))
    async with S3Storage(minio_tls_bucket.name, storage_options=given) as storage:
        await save(storage, "k", exclusive=True)
        assert await storage.read("k") == DATA


async def test_options_that_nobody_knows_are_refused() -> None:
    async with S3Storage("b", storage_options={"no_such_option": 1}) as storage:
        with pytest.raises(StorageError, match="no_such_option"):
            await storage.write("k", b"")


async def test_without_s3fs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"s3fs: pip install 'asyncckpt\[s3\]'"):
        S3Storage("b")


async def test_a_package_that_s3fs_brings_and_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    async with S3Storage("b") as storage:
        with pytest.raises(MissingExtraError, match=r"aiobotocore.*: pip install 'asyncckpt\[s3\]'"):
            await storage.write("k", b"")


async def test_a_closed_storage_says_so(minio_bucket: S3Bucket) -> None:
    storage = S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options)
    await storage.write("k", b"")
    await storage.aclose()
    await storage.aclose()
    with pytest.raises(StorageError, match="is closed"):
        await storage.read("k")


# -- changes underneath ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["minio_bucket", "seaweedfs_bucket"])
async def test_an_object_replaced_or_removed_while_it_is_read(
    server: str, request: pytest.FixtureRequest
) -> None:
    bucket: S3Bucket = request.getfixturevalue(server)
    bucket.put("k", DATA)
    async with S3Storage(bucket.name, storage_options=bucket.storage_options) as storage:
        async with storage.open_reader("k", first_bytes=10) as reader:
            bucket.put("k", DATA[::-1])
            with pytest.raises(ObjectChangedError, match="'k' was replaced"):
                await reader.read_range(0, 100)
        async with storage.open_reader("k") as reader:
            bucket.delete("k")
            with pytest.raises(ObjectChangedError):
                await reader.read_range(0, 100)


async def test_a_cancel_in_the_middle_of_parts_leaves_nothing(
    toxiproxy: Toxiproxy, minio: S3Server, minio_bucket: S3Bucket
) -> None:
    with toxiproxy.proxy(minio.endpoint_url) as proxy:
        async with through(proxy.endpoint_url, minio_bucket) as storage:
            _, transport = await storage._session.open()
            exchange, moving = transport.exchange, 0
            both_moving = asyncio.Event()

            async def noting(*args: Any, **kwargs: Any) -> Any:
                nonlocal moving
                moving += 1
                if moving == 3:
                    both_moving.set()
                return await exchange(*args, **kwargs)

            transport.exchange = noting  # type: ignore[method-assign]

            async def slow_save() -> None:
                async with storage.open_writer("k", size=len(DATA)) as writer:
                    await writer.write_part(0, [DATA[: 5 * MIB]])
                    with proxy.toxic("bandwidth", stream="upstream", rate=500):
                        async with asyncio.TaskGroup() as group:
                            for index in (1, 2):
                                part = DATA[index * 5 * MIB : (index + 1) * 5 * MIB]
                                group.create_task(writer.write_part(index, [part]))

            task = asyncio.create_task(slow_save())
            await both_moving.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert minio_bucket.uploads() == []
            assert minio_bucket.keys() == []
