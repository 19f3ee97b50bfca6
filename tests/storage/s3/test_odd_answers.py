"""S3 servers that answer with something else: an error with a line, never a lie that is believed."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from asyncckpt.errors import BucketNotFoundError, OutcomeUnknownError, StorageError
from asyncckpt.storage.http.errors import OddAnswerError
from asyncckpt.storage.retry import RetryPolicy
from asyncckpt.storage.s3.storage import S3Storage
from tests.servers import S3Bucket, S3Server
from tests.storage.odd_answers import (
    BELIEVED,
    ODD_ANSWERS,
    VERBS,
    always,
    answer,
    endlessly,
    outcome_of,
)
from tests.storage.relay import Fate, Relay
from tests.storage.scripted_server import Handler, ScriptedServer, read_request

ONCE = RetryPolicy(attempts=1)
RIGHT = {
    # What S3 itself answers.
    ("delete", "no content"),
    # What counts of the answer to a PUT is there: 200 and the tag.
    *itertools.product(
        ("write", "write new"),
        (
            "an object without a length",
            "a length of letters",
            "a negative length",
            "a length of 5000 digits",
            "headers that are no text",
        ),
    ),
}


def storage_at(url: str, **more: Any) -> S3Storage:
    options = {
        "key": "id",
        "secret": "secret",
        "token": "the-session-token",
        "client_kwargs": {"endpoint_url": url, "region_name": "us-east-1"},
    }
    return S3Storage("bucket", storage_options={**options, **more}, retry=ONCE)


@pytest.mark.parametrize("odd", ODD_ANSWERS)
async def test_an_odd_answer_is_an_error_with_a_line(odd: str) -> None:
    with ScriptedServer(always(ODD_ANSWERS[odd])) as server:
        async with storage_at(server.url) as storage:
            outcomes = {name: await outcome_of(verb, storage) for name, verb in VERBS.items()}
    believed = {(name, odd) for name, outcome in outcomes.items() if outcome == BELIEVED}
    assert believed <= RIGHT, outcomes


@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden", "500 Internal Server Error"])
async def test_a_body_without_an_end_is_not_read_to_it(status: str) -> None:
    with ScriptedServer(endlessly(status)) as server:
        async with storage_at(server.url) as storage:
            outcomes = {name: await outcome_of(verb, storage) for name, verb in VERBS.items()}
    assert BELIEVED not in outcomes.values(), outcomes


# -- redirects -------------------------------------------------------------------------------------------------


def stranger(heard: list[str]) -> Handler:
    """Says yes to everything, in the way that S3 does, and notes what it was sent."""

    def handle(connection: socket.socket) -> None:
        lines, _ = read_request(connection)
        if lines:
            heard.append("\n".join(lines))
            body = b"<ListBucketResult><Name>bucket</Name></ListBucketResult>"
            raw = answer("200 OK", 'ETag: "e"', body=b"" if lines[0].startswith("HEAD") else body)
            connection.sendall(raw)

    return handle


@pytest.mark.parametrize("region", [None, "eu-west-1"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int, region: str | None) -> None:
    heard: list[str] = []
    with ScriptedServer(stranger(heard)) as elsewhere:
        headers = [f"Location: {elsewhere.url}/bucket/p"]
        if region:
            headers.append(f"x-amz-bucket-region: {region}")
        with ScriptedServer(always(answer(f"{status} Moved", *headers))) as server:
            async with storage_at(server.url) as storage:
                outcomes = {name: await outcome_of(verb, storage) for name, verb in VERBS.items()}
    assert heard == []
    assert BELIEVED not in outcomes.values(), outcomes
    expected = "another region" if region and status in (301, 307) else "redirect is not followed"
    assert all(expected in line for line in outcomes.values()), outcomes


async def test_a_bucket_in_another_region_is_asked_for_there() -> None:
    """What S3 itself needs: botocore signs anew for the region that the answer names."""
    signed_for: list[str] = []

    def handle(connection: socket.socket) -> None:
        lines, _ = read_request(connection)
        if not lines:
            return
        scope = next(line for line in lines if line.lower().startswith("authorization:"))
        signed_for.append(scope.split("Credential=")[1].split("/")[2])
        body = b"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
        moved = answer(
            "301 Moved Permanently",
            "x-amz-bucket-region: eu-west-1",
            body=b"<Error><Code>PermanentRedirect</Code></Error>",
        )
        connection.sendall(answer("200 OK", body=body) if "eu-west-1" in scope else moved)

    with ScriptedServer(handle) as server:
        async with storage_at(server.url) as storage:
            assert [info async for info in storage.list()] == []
    assert signed_for == ["us-east-1", "eu-west-1"]


async def test_a_session_that_can_not_be_kept_from_redirects_is_refused() -> None:
    from aiobotocore.httpsession import AIOHTTPSession

    class Careless:
        """Another session, about which nothing is known."""

        def __init__(self, **options: Any) -> None:
            self._session = AIOHTTPSession(**options)

        async def __aenter__(self) -> Careless:
            return self

        async def __aexit__(self, *_: object) -> None:
            return

        async def close(self) -> None:
            return

    async with storage_at("http://127.0.0.1:1", config_kwargs={"http_session_cls": Careless}) as storage:
        with pytest.raises(StorageError, match="can't be kept from following redirects"):
            await storage.exists("k")


# -- writes whose answer is odd ----------------------------------------------------------------------------------

UNTELLING = ["a page", "a page that is XML", "nothing", "no content", "another XML"]


@pytest.fixture
def relay(minio: S3Server) -> Iterator[Relay]:
    with Relay(minio.endpoint_url) as relay:
        yield relay


def through(relay: Relay, bucket: S3Bucket) -> S3Storage:
    given = bucket.storage_options
    given["client_kwargs"] = {**given["client_kwargs"], "endpoint_url": relay.endpoint_url}
    return S3Storage(bucket.name, storage_options=given, retry=ONCE)


@pytest.mark.parametrize("odd", UNTELLING)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("operation", ["Put", "Complete"])
async def test_a_write_whose_answer_is_odd_is_settled(
    relay: Relay, minio_bucket: S3Bucket, operation: str, exclusive: bool, odd: str
) -> None:
    relay.odd_answer = ODD_ANSWERS[odd]
    async with through(relay, minio_bucket) as storage:
        for fate in cast(list[Fate], ["answer oddly", "refuse oddly"]):
            relay.once(operation, fate)
            try:
                if operation == "Put":
                    write = storage.write_new if exclusive else storage.write
                    info = await write(fate, b"abc", write_id="mine")
                else:
                    async with storage.open_writer(fate, exclusive=exclusive, write_id="mine") as writer:
                        await writer.write_part(0, [b"abc"])
                    assert writer.committed is not None
                    info = writer.committed
            except OddAnswerError:
                assert fate == "refuse oddly"
            else:
                assert fate == "answer oddly"
                assert (info.size, info.write_id) == (3, "mine")
                assert info.version == (await storage.stat(fate)).version
    assert minio_bucket.keys() == ["answer oddly"]
    assert minio_bucket.uploads() == []


@pytest.mark.parametrize("odd", UNTELLING)
@pytest.mark.parametrize("operation", ["CreateUpload", "UploadPart"])
async def test_an_odd_answer_before_the_commit_fails_the_save_and_leaves_nothing(
    relay: Relay, minio_bucket: S3Bucket, operation: str, odd: str
) -> None:
    relay.odd_answer = ODD_ANSWERS[odd]
    relay.once(operation, "answer oddly")
    async with through(relay, minio_bucket) as storage:
        with pytest.raises(OddAnswerError, match="check that the endpoint"):
            async with storage.open_writer("k") as writer:
                await writer.write_part(0, [b"abc"])
    assert minio_bucket.keys() == []
    assert minio_bucket.uploads() == []


async def test_a_write_is_unknown_when_even_the_look_at_it_is_odd(
    relay: Relay, minio_bucket: S3Bucket
) -> None:
    relay.odd_answer = ODD_ANSWERS["a page that is XML"]
    relay.decide = lambda seen: "answer oddly"
    async with through(relay, minio_bucket) as storage:
        with pytest.raises(OutcomeUnknownError, match="write id mine") as caught:
            await storage.write("k", b"abc", write_id="mine")
    assert caught.value.write_id == "mine"
    assert minio_bucket.head("k")["Metadata"] == {"asyncckpt-write-id": "mine"}


# -- buckets ---------------------------------------------------------------------------------------------------


async def test_nothing_is_said_of_objects_in_a_missing_bucket(minio: S3Server) -> None:
    async with S3Storage("no-such-bucket", storage_options=minio.storage_options) as storage:
        for name, verb in VERBS.items():
            with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
                await verb(storage)
                raise AssertionError(name)


async def test_a_bucket_that_was_seen_is_not_looked_for_again() -> None:
    asked: list[str] = []

    def handle(connection: socket.socket) -> None:
        lines, _ = read_request(connection)
        if not lines:
            return
        asked.append(lines[0].split()[0])
        listing = answer("200 OK", body=b"<ListBucketResult><Name>bucket</Name></ListBucketResult>")
        connection.sendall(answer("404 Not Found") if asked[-1] == "HEAD" else listing)

    with ScriptedServer(handle) as server:
        async with storage_at(server.url) as storage:
            assert [await storage.exists("a"), await storage.exists("b")] == [False, False]
    assert asked == ["HEAD", "GET", "HEAD"]


async def test_a_bucket_that_may_not_be_listed_is_there() -> None:
    denied = answer("403 Forbidden", body=b"<Error><Code>AccessDenied</Code></Error>")

    def handle(connection: socket.socket) -> None:
        lines, _ = read_request(connection)
        if lines:
            connection.sendall(answer("404 Not Found") if lines[0].startswith("HEAD") else denied)

    with ScriptedServer(handle) as server:
        async with storage_at(server.url) as storage:
            assert not await storage.exists("a")
