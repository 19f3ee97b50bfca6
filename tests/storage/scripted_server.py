"""A TCP server whose every connection is handled by a test's own function."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

Handler = Callable[[socket.socket], None]


class ScriptedServer:
    """Calls `handler(connection)` in a thread for each connection; all threads are joined at the end.

    It has its port from the beginning; before the block is entered nobody listens there.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._listener.listen(64)
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shut_down([self._listener])
        self._listener.close()
        # Once nobody accepts any more, the list of connections is complete.
        self._threads[0].join()
        with self._lock:
            open_now = list(self._open)
        _shut_down(open_now)
        for thread in self._threads:
            thread.join()

    def _start(self, function: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=function, args=args, name="scripted", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._handler(connection)
        except OSError:
            # The client is gone: that is what many of the tests are about.
            return
        finally:
            with self._lock:
                self._open.discard(connection)


def _shut_down(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def read_request(connection: socket.socket) -> tuple[list[str], bytes]:
    """The lines of the head, and the body by its Content-Length; no line at all when the client is gone."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return [], b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next(
        (int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")), 0
    )
    while len(body) < length:
        more = connection.recv(1 << 20)
        if not more:
            break
        body += more
    return lines, bytes(body)


def answering(body: bytes, *, status: str = "200 OK", extra: str = "") -> Handler:
    """A handler that gives the same answer to every request of a connection."""

    def handle(connection: socket.socket) -> None:
        while read_request(connection)[0]:
            head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
            connection.sendall(head.encode() + body)

    return handle
