"""A relay in front of an S3 server: sees every request, and loses or spoils what a test asks it to."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from tests.storage.scripted_server import ScriptedServer, read_request

Fate = Literal[
    "pass", "lose request", "lose answer", "flip a bit", "stay silent", "answer oddly", "refuse oddly"
]


@dataclass(frozen=True)
class Seen:
    """One request as it came over the wire; header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    size: int

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def operation(self) -> str:
        """S3's name for it, as far as the tests need one."""
        query = self.query
        if "partNumber" in query:
            return "CopyPart" if "x-amz-copy-source" in self.headers else "UploadPart"
        if "uploads" in query:
            return "CreateUpload" if self.method == "POST" else "ListUploads"
        if "delete" in query:
            return "DeleteMany"
        if "list-type" in query:
            return "List"
        if "uploadId" in query:
            return {"POST": "Complete", "DELETE": "Abort", "GET": "ListParts"}[self.method]
        return {"PUT": "Put", "GET": "Get", "HEAD": "Head", "DELETE": "Delete"}.get(self.method, self.method)


class Relay(ScriptedServer):
    """Serves one request on each connection; `decide` says what becomes of it."""

    def __init__(self, upstream_url: str) -> None:
        super().__init__(self._answer)
        parts = urlsplit(upstream_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self.endpoint_url = self.url
        self.seen: list[Seen] = []
        self.odd_answer = b""
        """What "answer oddly" says after the request was carried out, and "refuse oddly" instead of it."""
        self.decide: Callable[[Seen], Fate] = lambda _: "pass"

    def once(self, operation: str, fate: Fate) -> None:
        """The first request of that kind has that fate, the others pass."""
        left = [fate]
        self.decide = lambda seen: left.pop() if left and seen.operation == operation else "pass"

    def operations(self) -> list[str]:
        return [seen.operation for seen in self.seen]

    def _answer(self, client: socket.socket) -> None:
        head, content = read_request(client)
        lines = [line for line in head if not line.lower().startswith("connection:")]
        if not lines:
            return
        method, target, _ = lines[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = bytearray(content)
        seen = Seen(method, target, headers, len(body))
        self.seen.append(seen)
        fate = self.decide(seen)
        if fate == "lose request":
            return
        if fate == "stay silent":
            client.recv(1)
            return
        if fate == "flip a bit":
            body[len(body) // 2] ^= 1
        if fate == "refuse oddly":
            client.sendall(self.odd_answer)
            return
        answer = self._ask([*lines, "Connection: close"], bytes(body))
        if fate == "answer oddly":
            answer = self.odd_answer
        if fate != "lose answer":
            client.sendall(answer)

    def _ask(self, lines: list[str], body: bytes) -> bytes:
        with socket.create_connection(self._upstream, timeout=30) as upstream:
            upstream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            with upstream.makefile("rb") as reader:
                return reader.read()
