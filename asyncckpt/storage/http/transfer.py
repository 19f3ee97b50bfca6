"""Moving bytes over HTTP from worker threads: views out as they are, bytes in straight to where they belong.

`exchange` sends one request and reads its answer; it blocks, holds the GIL for microseconds at a time, and ends at
once when its `Abort` is called. `Transport` runs exchanges in threads that are joined before a cancel is seen.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import urllib3

from asyncckpt._aio import WorkerThreads
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.http.connections import (
    KERNEL_TIMEOUTS,
    Abort,
    AnyConnection,
    Connections,
    ConnectionSettings,
    PlainConnection,
    set_kernel_timeouts,
)
from asyncckpt.storage.http.errors import connect_error, talk_error
from asyncckpt.storage.http.messages import (
    MAX_ERROR_BODY_BYTES,
    SLICE_BYTES,
    HttpAnswer,
    HttpRequest,
    Receiver,
)

SENT_SLICE_BYTES = 8 * 1024 * 1024
"""What one call sends."""
SMALL_VIEW_BYTES = 64 * 1024
"""Views below this are joined before they are sent."""
# The loop gets the core first. Alternated with 0 in 2 × 12 rounds of 1 GiB to a sink, on 2 cores with a load of
# about 10: p99 gap of the loop 24–38 → 12–18 ms, throughput within the (wide) spread. Not measured when idle.
_NICE = 5


class Transport:
    """Connections and the threads that use them. For one event loop; `aclose` joins the threads."""

    def __init__(self, settings: ConnectionSettings, *, threads: int) -> None:
        self._connections = Connections(settings)
        self._threads = WorkerThreads(threads, name="transfer", nice=_NICE)
        self.slots = asyncio.Semaphore(threads)
        """To be held from before a request is signed until it is done: nothing signed ever waits in a queue."""

    async def exchange(
        self, request: HttpRequest, *, body: Sequence[Buffer] = (), receiver: Receiver | None = None
    ) -> HttpAnswer:
        """Send the request and read its answer, whatever its status.

        Raises StorageTimeoutError and UnavailableError, by what the connection did.
        """
        abort = Abort()
        return await self._threads.run(
            exchange, self._connections, request, abort, body, receiver, abort=abort
        )

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run something else that takes long, such as a checksum, in one of the threads."""
        return await self._threads.run(function, *args)

    async def aclose(self) -> None:
        """Join the threads and close the connections. Idempotent."""
        try:
            await self._threads.close()
        finally:
            self._connections.close()


def exchange(
    connections: Connections,
    request: HttpRequest,
    abort: Abort,
    body: Sequence[Buffer] = (),
    receiver: Receiver | None = None,
) -> HttpAnswer:
    """One request and its answer, in this thread. Raises as `Transport.exchange` does."""
    settings = connections.settings
    try:
        pool, connection = connections.take(request.url, abort)
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
        # The causes are dropped on purpose: their messages may hold the URL.
        raise connect_error(error, request.host, settings) from None
    try:
        forwarded = pool.proxy is not None and pool.scheme == "http"
        headers = {**request.headers, **(dict(pool.proxy_headers) if forwarded else {})}
        talk = _Talk(connection, settings.read_timeout, request.method)
        talk.send(request.url if forwarded else _path(request.url), headers, body)
        answer, reusable = talk.receive(receiver)
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
        connections.drop(connection)
        raise talk_error(error, request.host, settings) from None
    except BaseException:
        connections.drop(connection)
        raise
    if reusable:
        connections.give_back(pool, connection)
    else:
        connections.drop(connection)
    return answer


def _path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


class Patience:
    """How long a connection may be silent, when blocking calls are ended by the kernel's timeout.

    Such a call that has moved some bytes returns as if all were well, however long ago they moved: with the whole
    time as its timeout, a silence would be noticed only by the second or the third call.
    """

    def __init__(self, timeout: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self.look_seconds = timeout / 4
        """The kernel's timeout for one call."""

    def move(self, call: Callable[..., int], *args: Any) -> int:
        """Call it until it moves something. Raises BlockingIOError when it does not in time."""
        begun = self._clock()
        while True:
            try:
                return call(*args)
            except BlockingIOError:
                if self._clock() - begun >= self._timeout * 0.99:
                    raise


class _Talk:
    """One request and its answer on one connection.

    Bodies over plain TCP are moved by blocking calls with the kernel's timeouts, a whole slice each; heads, and all
    of TLS, by calls with Python's timeouts.
    """

    def __init__(self, connection: AnyConnection, timeout: float, method: str) -> None:
        self._connection = connection
        self._timeout = timeout
        self._method = method
        self._direct = KERNEL_TIMEOUTS and isinstance(connection, PlainConnection)
        self._refused: OSError | None = None
        self._ahead = 0
        assert connection.sock is not None, "connected by Connections.take"
        self._sock: Any = connection.sock
        self._patience = Patience(timeout)
        if self._direct:
            set_kernel_timeouts(self._sock, self._patience.look_seconds)

    def send(self, target: str, headers: Mapping[str, str], body: Sequence[Buffer]) -> None:
        self._sock.settimeout(self._timeout)
        connection = self._connection
        connection.putrequest(self._method, target, skip_accept_encoding=True)
        connection.putheader("Accept-Encoding", "identity")
        if self._method == "PUT":
            connection.putheader("Content-Length", str(total_bytes(body)))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        if body:
            self._send_body(body)

    def _send_body(self, body: Sequence[Buffer]) -> None:
        if self._direct:
            self._sock.settimeout(None)
        try:
            for chunk in _chunks(body, self._connection.gather_buffer()):
                self._send_chunk(chunk)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            # A server that stops listening has often answered already.
            self._refused = error

    def _send_chunk(self, chunk: memoryview) -> None:
        if not self._direct:
            self._sock.sendall(chunk)
            return
        while chunk.nbytes:
            chunk = chunk[self._patience.move(self._sock.send, chunk) :]

    def receive(self, receiver: Receiver | None) -> tuple[HttpAnswer, bool]:
        """The answer, and whether the connection can be used again."""
        self._sock.settimeout(self._timeout)
        try:
            # urllib3's own would wrap the answer in an object that copies, and log the URL when a header is odd.
            response = http.client.HTTPConnection.getresponse(
                cast(http.client.HTTPConnection, self._connection)
            )
        except (OSError, http.client.HTTPException) as error:
            raise self._refused or error from None
        with response:
            answer = HttpAnswer(
                response.status, {name.lower(): value for name, value in response.getheaders()}
            )
            if receiver is None or response.status not in (200, 206):
                answer = replace(answer, body=response.read(MAX_ERROR_BODY_BYTES))
                complete = response.isclosed()
            else:
                complete = self._fill(response, receiver.views(answer))
        return answer, complete and self._refused is None and not response.will_close

    def _fill(self, response: http.client.HTTPResponse, views: Iterator[memoryview]) -> bool:
        """Fill the views from the body; whether it was read to its end."""
        left = response.length
        if left is None:
            for view in views:
                _fill_buffered(response, view)
            return response.read(1) == b""
        direct = self._direct and left > 0
        if direct:
            self._sock.settimeout(None)
            # What http.client has read ahead along with the head (or now: then one small piece of the body).
            self._ahead = len(response.fp.peek(1))
        for view in views:
            if view.nbytes > left:
                raise http.client.IncompleteRead(b"", view.nbytes - left)
            if direct:
                self._fill_directly(response, view)
            else:
                _fill_buffered(response, view)
            left -= view.nbytes
        return left == 0

    def _fill_directly(self, response: http.client.HTTPResponse, view: memoryview) -> None:
        done = min(self._ahead, view.nbytes)
        if done:
            response.fp.readinto(view[:done])
            self._ahead -= done
        while done < view.nbytes:
            wanted = min(SLICE_BYTES, view.nbytes - done)
            got = self._patience.move(
                self._sock.recv_into, view[done : done + wanted], wanted, socket.MSG_WAITALL
            )
            if got == 0:
                raise http.client.IncompleteRead(b"", view.nbytes - done)
            done += got


def _fill_buffered(response: http.client.HTTPResponse, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        got = response.readinto(view[done : done + SLICE_BYTES])
        if not got:
            raise http.client.IncompleteRead(b"", view.nbytes - done)
        done += got


def _chunks(body: Sequence[Buffer], gather: bytearray) -> Iterator[memoryview]:
    """The bytes of the body in pieces that are worth a system call; small views are joined in `gather`."""
    room = memoryview(gather)
    used = 0
    for buffer in body:
        view = memoryview(buffer).cast("B")
        small = view.nbytes < SMALL_VIEW_BYTES
        if used and (not small or used + view.nbytes > len(room)):
            yield room[:used]
            used = 0
        if small:
            room[used : used + view.nbytes] = view
            used += view.nbytes
            continue
        for start in range(0, view.nbytes, SENT_SLICE_BYTES):
            yield view[start : start + SENT_SLICE_BYTES]
    if used:
        yield room[:used]
