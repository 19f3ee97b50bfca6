"""Many objects in one request: what the server refuses is named, or tried again where that may help."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

import pytest

from asyncckpt.errors import AccessDeniedError, DeleteFailuresError, UnavailableError
from asyncckpt.storage.retry import RetryPolicy
from asyncckpt.storage.s3.storage import S3Storage
from tests.storage.odd_answers import answer
from tests.storage.scripted_server import Handler, ScriptedServer, read_request

QUICK = RetryPolicy(attempts=3, base_delay=0.001, max_delay=0.001)


def storage_at(url: str) -> S3Storage:
    given = {
        "key": "id",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": url, "region_name": "us-east-1"},
    }
    return S3Storage("bucket", "root", storage_options=given, retry=QUICK)


def refusing(asked: list[list[str]], refusal: Callable[[str, int], str | None]) -> Handler:
    """Answers each request with the codes that `refusal(key, request)` gives."""

    def handle(connection: socket.socket) -> None:
        lines, body = read_request(connection)
        if not lines:
            return
        if lines[0].startswith("DELETE"):
            asked.append([lines[0].split(" ")[1]])
            connection.sendall(answer("204 No Content", length=""))
            return
        keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
        asked.append(keys)
        codes = {key: refusal(key, len(asked)) for key in keys}
        errors = "".join(
            f"<Error><Key>{key}</Key><Code>{code}</Code><Message>no</Message></Error>"
            for key, code in codes.items()
            if code
        )
        connection.sendall(answer("200 OK", body=f"<DeleteResult>{errors}</DeleteResult>".encode()))

    return handle


async def test_what_is_refused_is_named_and_not_asked_for_again() -> None:
    asked: list[list[str]] = []
    with ScriptedServer(
        refusing(asked, lambda key, _: "AccessDenied" if key == "root/b" else None)
    ) as server:
        async with storage_at(server.url) as storage:
            with pytest.raises(DeleteFailuresError, match=r"1 of 3 objects .* 'b'") as caught:
                await storage.delete_many(["a", "b", "c"])
    assert {key: type(error) for key, error in caught.value.failures.items()} == {"b": AccessDeniedError}
    assert asked == [["root/a", "root/b", "root/c"]]


async def test_what_the_server_could_not_do_just_now_is_asked_for_again() -> None:
    asked: list[list[str]] = []
    busy = refusing(asked, lambda key, request: "InternalError" if key == "root/b" and request == 1 else None)
    with ScriptedServer(busy) as server:
        async with storage_at(server.url) as storage:
            await storage.delete_many(["a", "b"])
    assert asked == [["root/a", "root/b"], ["root/b"]]


async def test_a_server_that_stays_busy() -> None:
    asked: list[list[str]] = []
    with ScriptedServer(refusing(asked, lambda *_: "SlowDown")) as server:
        async with storage_at(server.url) as storage:
            with pytest.raises(DeleteFailuresError) as caught:
                await storage.delete_many(["a", "b"])
    assert {type(error) for error in caught.value.failures.values()} == {UnavailableError}
    assert len(asked) == 3


async def test_a_missing_object_is_no_error_and_an_unknown_request_is_made_one_by_one() -> None:
    asked: list[list[str]] = []
    with ScriptedServer(refusing(asked, lambda *_: "NoSuchKey")) as server:
        async with storage_at(server.url) as storage:
            await storage.delete_many(["a"])
    with ScriptedServer(refusing(asked, lambda *_: "NotImplemented")) as server:
        async with storage_at(server.url) as storage:
            await storage.delete_many(["a", "b"])
    assert sorted(line[0] for line in asked[2:]) == ["/bucket/root/a", "/bucket/root/b"]
