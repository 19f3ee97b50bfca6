"""Moving bytes by worker threads: what goes over the wire, and what becomes of broken connections and cancels."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import pytest_asyncio

from asyncckpt.errors import StorageTimeoutError, UnavailableError
from asyncckpt.storage.http import connections
from asyncckpt.storage.http.connections import Abort, Connections, ConnectionSettings
from asyncckpt.storage.http.errors import ConnectTimeoutError, UnreachableError
from asyncckpt.storage.http.messages import HttpAnswer, HttpRequest
from asyncckpt.storage.http.transfer import Patience, Transport, exchange
from tests.storage.scripted_server import ScriptedServer, answering, read_request

SECRET_PATH = "/bucket/key?X-Amz-Signature=0123456789abcdef"


class Into:
    """A receiver that fills one buffer in steps."""

    def __init__(self, size: int, step: int | None = None) -> None:
        self.buffer = bytearray(size)
        self.step = step or max(1, size)
        self.full = False

    def views(self, _: HttpAnswer) -> Iterator[memoryview]:
        for start in range(0, len(self.buffer), self.step):
            yield memoryview(self.buffer)[start : start + self.step]
        self.full = True


@pytest_asyncio.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(ConnectionSettings(connect_timeout=5, read_timeout=5), threads=3)
    yield transport
    await transport.aclose()


async def test_views_arrive_in_order_and_the_connection_is_kept(transport: Transport) -> None:
    bodies: list[bytes] = []
    heads: list[list[str]] = []

    def handle(connection: socket.socket) -> None:
        while True:
            lines, body = read_request(connection)
            if not lines:
                return
            heads.append(lines)
            bodies.append(body)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "e"\r\n\r\n')

    small = [bytes([i]) * (1000 + i) for i in range(200)]
    large = bytes(range(256)) * 4096 * 3
    views: list[bytes | memoryview] = [*small, large, b"", memoryview(large)[7:70_000], b"end"]
    with ScriptedServer(handle) as server:
        request = HttpRequest("PUT", server.url + SECRET_PATH, {"x-amz-meta-a": "b"})
        for _ in range(3):
            answer = await transport.exchange(request, body=views)
            assert (answer.status, answer.headers["etag"]) == (200, '"e"')
    assert bodies == [b"".join(views)] * 3
    assert server.connections == 1
    assert heads[0][0] == f"PUT {SECRET_PATH} HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}" in heads[0]
    assert "x-amz-meta-a: b" in heads[0]
    assert not any(line.lower().startswith("transfer-encoding") for line in heads[0])


@pytest.mark.parametrize("size", [1, 5000, 3_000_001])
@pytest.mark.parametrize("step", [None, 999, 100_000])
async def test_a_body_lands_in_the_views(transport: Transport, size: int, step: int | None) -> None:
    data = bytes(i * 31 % 251 for i in range(size))
    with ScriptedServer(answering(data)) as server:
        for _ in range(2):
            receiver = Into(size, step)
            await transport.exchange(HttpRequest("GET", server.url), receiver=receiver)
            assert receiver.buffer == data
            assert receiver.full
    assert server.connections == 1


async def test_a_body_that_is_not_wanted_whole_costs_the_connection_only(transport: Transport) -> None:
    with ScriptedServer(answering(b"x" * 50_000)) as server:
        for _ in range(2):
            receiver = Into(10)
            await transport.exchange(HttpRequest("GET", server.url), receiver=receiver)
            assert receiver.buffer == b"x" * 10
    assert server.connections == 2


async def test_chunked_and_closing_answers_are_read(transport: Transport) -> None:
    def chunked(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        )
        read_request(connection)

    def closing(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 7\r\n\r\nabc")
        connection.sendall(b"defg")

    for handler in (chunked, closing):
        with ScriptedServer(handler) as server:
            receiver = Into(7)
            await transport.exchange(HttpRequest("GET", server.url), receiver=receiver)
            assert receiver.buffer == b"abcdefg"


async def test_an_error_answer_is_handed_back_with_its_body(transport: Transport) -> None:
    with ScriptedServer(answering(b"<Code>X</Code>", status="404 Not Found")) as server:
        receiver = Into(3)
        answer = await transport.exchange(HttpRequest("GET", server.url), receiver=receiver)
    assert (answer.status, answer.body, receiver.full) == (404, b"<Code>X</Code>", False)


async def test_a_refusal_in_the_middle_of_the_body_is_heard(transport: Transport) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope")
        # Closed for writing only: a reset would take the answer away from the client.
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with ScriptedServer(refuse) as server:
        answer = await transport.exchange(HttpRequest("PUT", server.url), body=[bytes(8 << 20)])
    assert (answer.status, answer.body) == (403, b"nope")


async def test_a_connection_closed_early_is_unavailable(transport: Transport) -> None:
    def cut(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")

    with ScriptedServer(cut) as server:
        with pytest.raises(UnavailableError, match="closed the connection 91 bytes too early"):
            await transport.exchange(HttpRequest("GET", server.url), receiver=Into(100))
    with ScriptedServer(lambda _: None) as server:
        with pytest.raises(UnavailableError, match="closed the connection"):
            await transport.exchange(HttpRequest("GET", server.url), receiver=Into(1))


async def test_an_idle_connection_that_the_server_closed_is_replaced(transport: Transport) -> None:
    closed = threading.Event()

    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
        connection.close()
        closed.set()

    with ScriptedServer(once) as server:
        for _ in range(3):
            closed.clear()
            receiver = Into(1)
            await transport.exchange(HttpRequest("GET", server.url), receiver=receiver)
            await asyncio.to_thread(closed.wait)
    assert server.connections == 3


@pytest.mark.parametrize("stop", ["before the head", "in the body", "while sending"])
async def test_a_silent_server_times_out(stop: str) -> None:
    over = threading.Event()

    def silent(connection: socket.socket) -> None:
        if stop == "in the body":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
        over.wait()

    transport = Transport(ConnectionSettings(connect_timeout=5, read_timeout=0.2), threads=1)
    body = [bytes(64 << 20)] if stop == "while sending" else []
    try:
        with ScriptedServer(silent) as server:
            with pytest.raises(StorageTimeoutError, match=r"was silent for 0\.2 s"):
                await transport.exchange(HttpRequest("PUT", server.url), body=body, receiver=Into(100_000))
            over.set()
    finally:
        over.set()
        await transport.aclose()


@pytest.mark.parametrize("stop", ["before the head", "in the body", "while sending"])
async def test_a_cancel_ends_the_exchange_and_its_thread_at_once(transport: Transport, stop: str) -> None:
    loop = asyncio.get_running_loop()
    reached = asyncio.Event()
    gone = threading.Event()

    def silent(connection: socket.socket) -> None:
        if stop == "in the body":
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
        loop.call_soon_threadsafe(reached.set)
        while connection.recv(1 << 20):
            pass
        gone.set()

    body = [bytes(256 << 20)] if stop == "while sending" else []
    method = "PUT" if body else "GET"
    with ScriptedServer(silent) as server:
        task = asyncio.create_task(
            transport.exchange(HttpRequest(method, server.url), body=body, receiver=Into(100_000))
        )
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(gone.wait)


async def test_a_cancel_reaches_a_connection_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, connecting = asyncio.get_running_loop(), asyncio.Event()
    watch = connections._Abortable._watch

    def watch_and_tell(self: connections._Abortable, sock: socket.socket) -> None:
        watch(self, sock)
        loop.call_soon_threadsafe(connecting.set)

    monkeypatch.setattr(connections._Abortable, "_watch", watch_and_tell)
    # With this timeout a cancel that did not reach the socket would never end.
    transport = Transport(ConnectionSettings(connect_timeout=3600), threads=1)
    with never_accepting() as url:
        task = asyncio.create_task(transport.exchange(HttpRequest("GET", url), receiver=Into(1)))
        await connecting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await transport.aclose()


@contextmanager
def never_accepting() -> Iterator[str]:
    """A full backlog: the kernel answers no further connect, as with a firewall that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_no_connection_is_an_error_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free_port = listener.getsockname()[1]
    transport = Transport(ConnectionSettings(connect_timeout=0.2, read_timeout=5), threads=1)
    try:
        with pytest.raises(UnreachableError, match="can't be reached"):
            await transport.exchange(HttpRequest("GET", f"http://127.0.0.1:{free_port}{SECRET_PATH}"))
        with pytest.raises(UnreachableError, match="can't be found"):
            await transport.exchange(HttpRequest("GET", f"http://no-such-host.invalid{SECRET_PATH}"))
        with never_accepting() as url, pytest.raises(ConnectTimeoutError):
            await transport.exchange(HttpRequest("GET", url))
    finally:
        await transport.aclose()


def test_silence_is_noticed_in_time_although_calls_return_early() -> None:
    now = 0.0

    def silent() -> int:
        nonlocal now
        now += patience.look_seconds
        raise BlockingIOError

    def half() -> int:
        nonlocal now
        now += patience.look_seconds
        return 5

    patience = Patience(8, clock=lambda: now)
    assert patience.look_seconds == 2
    assert patience.move(half) == 5
    assert patience.move(half) == 5
    with pytest.raises(BlockingIOError):
        patience.move(silent)
    assert now == 4 + 8


def test_an_abort_just_before_the_connection_is_made_is_not_lost() -> None:
    class Early(Abort):
        """Called when the socket is known and not connected yet: there is nothing to shut down at that moment."""

        def attach(self, handle: socket.socket | None) -> None:
            super().attach(handle)
            if handle is not None:
                self()

    heads: list[list[str]] = []

    def note(connection: socket.socket) -> None:
        heads.append(read_request(connection)[0])

    pool = Connections(ConnectionSettings(read_timeout=5))
    with ScriptedServer(note) as server:
        with pytest.raises(UnavailableError):
            exchange(pool, HttpRequest("GET", server.url), Early())
    pool.close()
    assert [head for head in heads if head] == []


async def test_a_receiver_that_raises_passes_and_costs_the_connection(transport: Transport) -> None:
    class Refusing:
        def views(self, _: HttpAnswer) -> Iterator[memoryview]:
            yield memoryview(bytearray(2))
            raise ValueError("not these bytes")

    with ScriptedServer(answering(b"abcdef")) as server:
        with pytest.raises(ValueError, match="not these bytes"):
            await transport.exchange(HttpRequest("GET", server.url), receiver=Refusing())
        receiver = Into(6)
        await transport.exchange(HttpRequest("GET", server.url), receiver=receiver)
    assert receiver.buffer == b"abcdef"
    assert server.connections == 2


async def test_a_plain_proxy_gets_the_whole_url_and_its_password() -> None:
    heads: list[list[str]] = []

    def proxy(connection: socket.socket) -> None:
        heads.append(read_request(connection)[0])
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with ScriptedServer(proxy) as server:
        settings = ConnectionSettings(proxies={"http": f"http://user:pass@127.0.0.1:{server.port}"})
        transport = Transport(settings, threads=1)
        receiver = Into(2)
        await transport.exchange(HttpRequest("GET", f"http://bucket.example{SECRET_PATH}"), receiver=receiver)
        await transport.aclose()
    assert receiver.buffer == b"ok"
    assert heads[0][0] == f"GET http://bucket.example{SECRET_PATH} HTTP/1.1"
    assert "Host: bucket.example" in heads[0]
    password = base64.b64encode(b"user:pass").decode()
    assert any(line.lower() == f"proxy-authorization: basic {password}".lower() for line in heads[0])
    assert "pass" not in repr(settings)


async def test_a_tls_endpoint_is_reached_through_a_tunnel() -> None:
    heads: list[list[str]] = []

    def proxy(connection: socket.socket) -> None:
        heads.append(read_request(connection)[0])
        connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")

    with ScriptedServer(proxy) as server:
        transport = Transport(ConnectionSettings(proxies={"https": server.url}), threads=1)
        with pytest.raises(UnreachableError):
            await transport.exchange(HttpRequest("GET", f"https://bucket.example{SECRET_PATH}"))
        await transport.aclose()
    assert heads[0][0].startswith("CONNECT bucket.example:443 ")
    assert not any("Signature" in line for line in heads[0])


async def test_the_url_is_in_no_log_repr_or_error(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedServer(answering(b"no", status="500 No", extra="Bad header line\r\n")) as server:
        request = HttpRequest("GET", server.url + SECRET_PATH, {"x-secret": "0123456789abcdef"})
        await transport.exchange(request)
    with pytest.raises(UnavailableError) as caught:
        await transport.exchange(request)
    assert "0123456789abcdef" not in caplog.text
    assert "0123456789abcdef" not in repr(request)
    assert (
        "0123456789abcdef" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    )


async def test_closing_twice_is_fine_and_ends_the_threads() -> None:
    transport = Transport(ConnectionSettings(), threads=2)
    with ScriptedServer(answering(b"")) as server:
        await transport.exchange(HttpRequest("PUT", server.url), body=[b"x"])
    await transport.aclose()
    await transport.aclose()
    assert not [t for t in threading.enumerate() if t.name.startswith("asyncckpt-transfer")]
