"""A relay in front of an S3 server: sees every request, and loses or spoils what a test asks it to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Literal, Self
from urllib.parse import parse_qs, urlsplit

Fate = Literal["pass", "lose request", "lose answer", "flip a bit", "stay silent"]


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
        if "uploadId" in query:
            return {"POST": "Complete", "DELETE": "Abort", "GET": "ListParts"}[self.method]
        return {"PUT": "Put", "GET": "Get", "HEAD": "Head", "DELETE": "Delete"}.get(self.method, self.method)


class Relay:
    """Serves one request on each connection; `decide` says what becomes of it.

    Use it as a context manager; all its threads are joined at the end.
    """

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.endpoint_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen: list[Seen] = []
        self.decide: Callable[[Seen], Fate] = lambda _: "pass"

    def once(self, operation: str, fate: Fate) -> None:
        """The first request of that kind has that fate, the others pass."""
        left = [fate]
        self.decide = lambda seen: left.pop() if left and seen.operation == operation else "pass"

    def operations(self) -> list[str]:
        return [seen.operation for seen in self.seen]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            sockets = [self._listener, *self._open]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, function: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=function, args=args, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as reader:
                self._answer(client, reader)
        except OSError:
            # The client is gone: that is what many of the tests are about.
            return
        finally:
            with self._lock:
                self._open.discard(client)

    def _answer(self, client: socket.socket, reader: BinaryIO) -> None:
        lines = _read_head(reader)
        if not lines:
            return
        method, target, _ = lines[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = bytearray(reader.read(int(headers.get("content-length", 0))))
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
        answer = self._ask([*lines, "Connection: close"], bytes(body))
        if fate != "lose answer":
            client.sendall(answer)

    def _ask(self, lines: list[str], body: bytes) -> bytes:
        with socket.create_connection(self._upstream, timeout=30) as upstream:
            upstream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            with upstream.makefile("rb") as reader:
                return reader.read()


def _read_head(reader: BinaryIO) -> list[str]:
    lines: list[str] = []
    while True:
        line = reader.readline().decode("latin-1").rstrip("\r\n")
        if not line:
            return lines
        if not line.lower().startswith("connection:"):
            lines.append(line)
