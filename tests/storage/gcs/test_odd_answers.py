"""GCS endpoints that answer with something else: an error with a line, never a lie that is believed."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import google.auth.credentials
import pytest

from asyncckpt.errors import BucketNotFoundError, OutcomeUnknownError
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.http.errors import OddAnswerError
from asyncckpt.storage.retry import NO_RETRY
from tests.servers import GcsServer
from tests.storage.odd_answers import (
    BELIEVED,
    ODD_ANSWERS,
    VERBS,
    Verb,
    always,
    answer,
    endlessly,
    outcome_of,
)
from tests.storage.scripted_server import Handler, ScriptedServer, read_request

RIGHT = {("delete", "no content")}
OBJECT = {"name": "p/k", "size": "3", "generation": "1"}


def said(**fields: Any) -> bytes:
    return answer("200 OK", "Content-Type: application/json", body=json.dumps(fields).encode())


ODD_RESOURCES: dict[str, bytes] = {
    "no kind": said(items=[]),
    "another kind": said(kind="storage#buckets"),
    "items that are none": said(kind="storage#objects", items="abc"),
    "an item that is none": said(kind="storage#objects", items=[1]),
    "an item without a size": said(kind="storage#objects", items=[{"name": "p/k"}], name="p/k"),
    "an item of -1 bytes": said(kind="storage#objects", items=[{**OBJECT, "size": "-1"}], **{**OBJECT, "size": -1}),
    "an item of x bytes": said(kind="storage#objects", items=[{**OBJECT, "size": "x"}], **{**OBJECT, "size": "x"}),
    "an item of another prefix": said(kind="storage#objects", items=[{**OBJECT, "name": "q"}]),
    "an item with a number for a name": said(kind="storage#objects", items=[{**OBJECT, "name": 3}]),
    "metadata that is none": said(kind="storage#objects", items=[{**OBJECT, "metadata": 3}], **OBJECT, metadata=3),
    "the same page for ever": said(kind="storage#objects", nextPageToken="1"),
}  # fmt: skip


def storage_at(url: str, token: Any = "anon") -> GcsStorage:
    return GcsStorage("bucket", storage_options={"endpoint_url": url, "token": token}, retry=NO_RETRY)


async def outcomes_at(handler: Handler, token: Any = "anon") -> dict[str, str]:
    with ScriptedServer(handler) as server:
        async with storage_at(server.url, token) as storage:
            return {name: await outcome_of(verb, storage) for name, verb in VERBS.items()}


@pytest.mark.parametrize("odd", [*ODD_ANSWERS, *ODD_RESOURCES])
async def test_an_odd_answer_is_an_error_with_a_line(odd: str) -> None:
    outcomes = await outcomes_at(always({**ODD_ANSWERS, **ODD_RESOURCES}[odd]))
    believed = {(name, odd) for name, outcome in outcomes.items() if outcome == BELIEVED}
    assert believed <= RIGHT, outcomes


@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content", "403 Forbidden", "500 Oh"])
async def test_a_body_without_an_end_is_not_read_to_it(status: str) -> None:
    outcomes = await outcomes_at(endlessly(status))
    assert BELIEVED not in outcomes.values(), outcomes


class Credentials(google.auth.credentials.Credentials):
    """A token that nobody else may see."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = "secret-token"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    def refresh(self, request: object) -> None:
        raise AssertionError("not needed for an hour")


@pytest.mark.parametrize(
    "status", ["200 OK", "301 Moved", "302 Found", "303 See Other", "307 Moved", "308 Moved"]
)
async def test_no_address_at_another_host_is_believed(status: str) -> None:
    """Not a redirect, and not the address of an upload session: the token would go there."""
    heard: list[str] = []

    def stranger(connection: socket.socket) -> None:
        heard.extend(read_request(connection)[0])
        connection.sendall(said(kind="storage#objects", **OBJECT))

    with ScriptedServer(stranger) as elsewhere:
        away = answer(status, f"Location: {elsewhere.url}/upload?upload_id=1")
        outcomes = await outcomes_at(always(away), Credentials())
    assert heard == []
    assert BELIEVED not in outcomes.values(), outcomes
    if not status.startswith("200"):
        assert "redirect is not followed" in outcomes["list"]


@pytest.mark.parametrize(
    ("uri", "served"),
    [
        ("https://storage.googleapis.com/upload?upload_id=1", True),
        ("https://www.googleapis.com/upload", True),
        ("http://storage.googleapis.com/upload", False),
        ("https://storage.googleapis.com.example/upload", False),
        ("https://examplegoogleapis.com/upload", False),
        ("https://storage.googleapis.com:x/upload", False),
        ("/upload", False),
        ("", False),
    ],
)
async def test_where_a_session_may_be(uri: str, served: bool) -> None:
    async with storage_at("https://storage.googleapis.com") as storage:
        await storage._client._connect("x")
        assert storage._client.serves(uri) is served


async def test_a_write_whose_answer_is_odd_is_settled() -> None:
    """The upload is answered with a page, and the object, when it is looked at, has our write id."""

    def handle(connection: socket.socket) -> None:
        lines, _ = read_request(connection)
        if lines:
            wanted = said(**OBJECT, metadata={"asyncckpt-write-id": "mine"})
            connection.sendall(wanted if lines[0].startswith("GET") else ODD_ANSWERS["a page"])

    with ScriptedServer(handle) as server:
        async with storage_at(server.url) as storage:
            assert (await storage.write("p/k", b"abc", write_id="mine")).version == "1"
            with pytest.raises(OddAnswerError):
                await storage.write("p/k", b"abc", write_id="another")


async def test_a_write_is_unknown_when_even_the_look_at_it_is_odd() -> None:
    with ScriptedServer(always(ODD_ANSWERS["a page"])) as server:
        async with storage_at(server.url) as storage:
            with pytest.raises(OutcomeUnknownError, match="write id mine"):
                await storage.write("p/k", b"abc", write_id="mine")


@pytest.mark.parametrize("name", ["list", "exists", "stat", "delete", "delete, if there", "read a range"])
async def test_nothing_is_said_of_objects_in_a_missing_bucket(fake_gcs: GcsServer, name: str) -> None:
    verb: Verb = VERBS[name]
    async with GcsStorage(
        "no-such-bucket", storage_options=fake_gcs.storage_options, retry=NO_RETRY
    ) as storage:
        with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
            await verb(storage)
