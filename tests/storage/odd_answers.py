"""Answers that no object store gives, each as raw bytes; and the calls of a storage that hear them."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Awaitable, Callable

from asyncckpt.errors import StorageError
from asyncckpt.storage.base import ICheckpointStorage
from tests.storage.scripted_server import Handler, read_request

Verb = Callable[[ICheckpointStorage], Awaitable[object]]

BELIEVED = "believed"
"""A call that returned: the outcome that an odd answer must not have."""


async def _listed(storage: ICheckpointStorage) -> object:
    return [info async for info in storage.list("p")]


async def _paged(storage: ICheckpointStorage) -> object:
    return [page async for page in storage.list_pages("p", start_after="p/a", limit=3)]


async def _read_some(storage: ICheckpointStorage) -> object:
    async with storage.open_reader("p/k", first_bytes=4) as reader:
        return reader.first, await reader.read_range(4, 8)


async def _saved(storage: ICheckpointStorage) -> object:
    async with storage.open_writer("p/k", part_bytes=5 << 20) as writer:
        await writer.write_part(0, [b"abc"])
    return writer.committed


VERBS: dict[str, Verb] = {
    "list": _listed,
    "exists": lambda storage: storage.exists("p/k"),
    "stat": lambda storage: storage.stat("p/k"),
    "delete": lambda storage: storage.delete("p/k"),
    "delete, if there": lambda storage: storage.delete("p/k", missing_ok=False),
    "delete many": lambda storage: storage.delete_many(["p/k", "p/l"]),
    "list pages": _paged,
    "read": lambda storage: storage.read("p/k"),
    "read a range": lambda storage: storage.read_range("p/k", 1, 3),
    "open a reader": _read_some,
    "write": lambda storage: storage.write("p/k", b"abc"),
    "write new": lambda storage: storage.write_new("p/k", b"abc"),
    "save in parts": _saved,
}


def answer(status: str, *headers: str, body: bytes = b"", length: str | None = None) -> bytes:
    """A whole answer; `length` is what it says of its size, None for the truth, "" for nothing."""
    lines = [f"HTTP/1.1 {status}", "Connection: close", *headers]
    said = str(len(body)) if length is None else length
    if said:
        lines.append(f"Content-Length: {said}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


_HTML = b"<!DOCTYPE html><html><head><title>Sign in</title><body>Please sign in<br></html>"
_XHTML = b"<html xmlns='http://www.w3.org/1999/xhtml'><body>Please sign in</body></html>"
_XML = b"<?xml version='1.0' encoding='UTF-8'?>"
_TAG = 'ETag: "0123456789abcdef"'

ODD_ANSWERS: dict[str, bytes] = {
    "a page": answer("200 OK", "Content-Type: text/html", body=_HTML),
    "a page that is XML": answer("200 OK", "Content-Type: text/html", body=_XHTML),
    "nothing": answer("200 OK"),
    "nothing, and no length": answer("200 OK", length=""),
    "no content": answer("204 No Content", length=""),
    "accepted": answer("202 Accepted", body=b"{}"),
    "JSON": answer("200 OK", "Content-Type: application/json", body=b'{"ok": true}'),
    "JSON, but a list": answer("200 OK", "Content-Type: application/json", body=b"[]"),
    "JSON, but null": answer("200 OK", "Content-Type: application/json", body=b"null"),
    "JSON with odd items": answer("200 OK", body=b'{"items": [{"name": 3, "size": "x"}, null]}'),
    "JSON, deep": answer("200 OK", body=b"[" * 20_000),
    "another XML": answer("200 OK", body=_XML + b"<Other><Key>p/k</Key></Other>"),
    "an error that is a success": answer("200 OK", body=_XML + b"<Error><Code>Oh</Code></Error>"),
    "half an XML": answer("200 OK", body=_XML + b"<ListBucketResult><Name>b</Name><Cont"),
    "a truncated body": answer("200 OK", body=_XML, length="5000"),
    "an object without a tag": answer("200 OK", body=b"0123456789"),
    "an object without a length": answer("200 OK", _TAG, body=b"0123456789", length=""),
    "a length of letters": answer("200 OK", _TAG, body=b"0123456789", length="abc"),
    "a negative length": answer("200 OK", _TAG, body=b"0123456789", length="-1"),
    "a length of 5000 digits": answer("200 OK", _TAG, body=b"0123456789", length="9" * 5000),
    "a part without a range": answer("206 Partial Content", _TAG, body=b"0123"),
    "a part of nothing known": answer(
        "206 Partial Content", _TAG, "Content-Range: bytes 0-3/*", body=b"0123"
    ),
    "a part of letters": answer("206 Partial Content", _TAG, "Content-Range: bytes a-b/c", body=b"0123"),
    "a part from elsewhere": answer(
        "206 Partial Content", _TAG, "Content-Range: bytes 7-10/20", body=b"0123"
    ),
    "a part past its end": answer("206 Partial Content", _TAG, "Content-Range: bytes 0-30/4", body=b"0123"),
    "headers that are no text": answer("200 OK", "ETag: \xff\xfe\x80", "Date: \xff", length="abc"),
    "a page that is missing": answer("404 Not Found", "Content-Type: text/html", body=_HTML),
    "missing, without a word": answer("404 Not Found"),
    "not modified": answer("304 Not Modified", length=""),
    "early hints": answer("103 Early Hints", length=""),
    "a teapot": answer("418 I'm a teapot", body=b"short and stout"),
    "no status that exists": answer("799 What", body=b"?"),
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "not a byte": b"",
    "a page of a list, and no next": answer(
        "200 OK", body=_XML + b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    ),
    "the same page for ever": answer(
        "200 OK",
        body=_XML + b"<ListBucketResult><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>1</NextContinuationToken></ListBucketResult>",
    ),
    "a list of another prefix": answer(
        "200 OK",
        body=_XML + b"<ListBucketResult><Contents><Key>q</Key><Size>1</Size><ETag>e</ETag></Contents>"
        b"</ListBucketResult>",
    ),
    "a list of an object without a size": answer(
        "200 OK", body=_XML + b"<ListBucketResult><Contents><Key>p/k</Key></Contents></ListBucketResult>"
    ),
    "a list of an object of -1 bytes": answer(
        "200 OK",
        body=_XML + b"<ListBucketResult><Contents><Key>p/k</Key><Size>-1</Size><ETag>e</ETag></Contents>"
        b"</ListBucketResult>",
    ),
    "a list of an object of x bytes": answer(
        "200 OK",
        body=_XML + b"<ListBucketResult><Contents><Key>p/k</Key><Size>x</Size><ETag>e</ETag></Contents>"
        b"</ListBucketResult>",
    ),
    "an upload without an id": answer(
        "200 OK", body=_XML + b"<InitiateMultipartUploadResult></InitiateMultipartUploadResult>"
    ),
}


def always(raw: bytes) -> Handler:
    """One request for each connection, always with this answer."""

    def handle(connection: socket.socket) -> None:
        if read_request(connection)[0]:
            connection.sendall(raw)

    return handle


def endlessly(status: str) -> Handler:
    """An answer whose body never ends."""

    def handle(connection: socket.socket) -> None:
        if read_request(connection)[0]:
            connection.sendall(answer(status, length=""))
            for _ in itertools.repeat(None):
                connection.sendall(b"<Error>" * 10_000)

    return handle


async def outcome_of(verb: Verb, storage: ICheckpointStorage) -> str:
    """The error's one line, or BELIEVED. Anything but a StorageError is raised."""
    line = BELIEVED
    try:
        await verb(storage)
    except StorageError as error:
        line = str(error)
    assert line
    assert "\n" not in line
    assert len(line) < 700
    return line
