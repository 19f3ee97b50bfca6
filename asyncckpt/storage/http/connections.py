"""HTTP connections that another thread can cut: urllib3's, with a handle on the socket from before it connects.

Only urllib3's connections and pools are used, never its request methods: those log the path, and a presigned path
is a secret.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_GATHER_BYTES = 256 * 1024
_CONNECT_LOOK_SECONDS = 0.1
"""How often a connection that is being made looks whether it is still wanted."""


class Abort:
    """Ends an exchange from another thread, at once, wherever it is. Calling it is idempotent and never blocks.

    Free of locks: each side writes its own field first and looks at the other's afterwards, so that one of the
    two sees both.
    """

    def __init__(self) -> None:
        self._handle: socket.socket | None = None
        self.called = False

    def __call__(self) -> None:
        self.called = True
        _shut_down(self._handle)

    def attach(self, handle: socket.socket | None) -> None:
        """Name the socket that is to be shut down; called by the thread that uses it."""
        self._handle = handle
        if self.called:
            _shut_down(handle)


def _shut_down(handle: socket.socket | None) -> None:
    if handle is not None:
        # Not connected yet, or closed meanwhile: then there is nothing to wake up.
        with contextlib.suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)


class _Abortable:
    """What both kinds of connection add to urllib3's."""

    timeout: Any
    sock: Any
    host: str
    port: int
    abort: Abort | None = None
    handle: socket.socket | None = None
    gather: bytearray | None = None
    held = False
    """In use: http.client closes a connection as soon as it sees that the server will, before the body is read."""

    def _new_conn(self) -> socket.socket:
        """Connect to the first address that answers. Raises OSError."""
        failure: OSError | None = None
        host = self.host.strip("[]")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, self.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                self._watch(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(self.timeout)
                self._connect(sock, address)
                return sock
            except OSError as error:
                sock.close()
                self._forget_handle()
                failure = error
        raise failure or OSError(f"{host} has no address")

    def _connect(self, sock: socket.socket, address: Any) -> None:
        """Connect within the socket's timeout, or until aborted: a socket that has not begun can't be shut down.

        Raises OSError, TimeoutError among them.
        """
        timeout = sock.gettimeout()
        deadline = None if timeout is None else time.monotonic() + timeout
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        while not poller.poll(_CONNECT_LOOK_SECONDS * 1000):
            self._check_wanted()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        # An abort that came before the connection was made found nothing to shut down; a later one does.
        self._check_wanted()
        sock.settimeout(timeout)

    def _check_wanted(self) -> None:
        if self.abort is not None and self.abort.called:
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))

    def _watch(self, sock: socket.socket) -> None:
        # A duplicate: TLS takes the socket object over when it begins its handshake, and shutting down the TLS
        # object would drop its encryption first, so that a racing send would go out in clear.
        self.handle = sock.dup()
        if self.abort is not None:
            self.abort.attach(self.handle)

    def _forget_handle(self) -> None:
        handle, self.handle = self.handle, None
        if self.abort is not None:
            self.abort.attach(None)
        if handle is not None:
            handle.close()

    def gather_buffer(self) -> bytearray:
        """A buffer, kept as long as the connection, in which small views are joined."""
        if self.gather is None:
            self.gather = bytearray(_GATHER_BYTES)
        return self.gather

    def close(self) -> None:
        if self.held:
            return
        try:
            super().close()  # type: ignore[misc]  # the connection it is mixed into
        finally:
            self._forget_handle()


class PlainConnection(_Abortable, HTTPConnection):
    """A connection over plain TCP."""


class TlsConnection(_Abortable, HTTPSConnection):
    """A connection over TLS."""


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = TlsConnection


AnyConnection = PlainConnection | TlsConnection


@dataclass(frozen=True)
class ConnectionSettings:
    """How servers are reached; `proxies` maps a scheme to a proxy's URL, which may hold a password."""

    connect_timeout: float = 5.0
    read_timeout: float = 15.0
    idle_connections: int = 4
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy_tls: ssl.SSLContext | None = field(default=None, repr=False)


class Connections:
    """Idle connections of any number of hosts, kept alive and shared between threads."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._managers: dict[str | None, urllib3.PoolManager] = {}

    def take(self, url: str, abort: Abort) -> tuple[HTTPConnectionPool, AnyConnection]:
        """A connection for the URL, connected, and the pool to give it back to. Raises OSError."""
        pool = self._manager(urllib3.util.parse_url(url).scheme).connection_from_url(url)
        connection: Any = pool._get_conn()
        connection.abort, connection.held = abort, True
        try:
            abort.attach(connection.handle)
            if connection.sock is None:
                if pool.proxy is not None and pool.scheme == "https":
                    pool._prepare_proxy(connection)
                if connection.sock is None:
                    connection.connect()
        except BaseException:
            self.drop(connection)
            raise
        return pool, connection

    def give_back(self, pool: HTTPConnectionPool, connection: AnyConnection) -> None:
        """Keep a connection whose answer was read to its end for the next request."""
        _let_go(connection)
        pool._put_conn(connection)

    def drop(self, connection: AnyConnection) -> None:
        """Close a connection that is in an unknown state."""
        _let_go(connection)
        connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        managers, self._managers = self._managers, {}
        for manager in managers.values():
            manager.clear()

    def _manager(self, scheme: str | None) -> urllib3.PoolManager:
        manager = self._managers.get(scheme)
        if manager is None:
            # Two threads may both get here; the loser's manager has no connections yet.
            manager = self._managers.setdefault(scheme, self._make_manager(scheme))
        return manager

    def _make_manager(self, scheme: str | None) -> urllib3.PoolManager:
        settings = self.settings
        options: dict[str, Any] = {
            "timeout": urllib3.Timeout(connect=settings.connect_timeout, read=settings.read_timeout),
            "maxsize": settings.idle_connections,
            "block": False,
        }
        if settings.tls is not None:
            options["ssl_context"] = settings.tls
        proxy = settings.proxies.get(scheme or "http")
        manager: urllib3.PoolManager
        if proxy:
            address = urllib3.util.parse_url(proxy)
            headers = urllib3.make_headers(proxy_basic_auth=address.auth) if address.auth else None
            manager = urllib3.ProxyManager(
                address._replace(auth=None).url,
                proxy_headers=headers,
                proxy_ssl_context=settings.proxy_tls,
                **options,
            )
        else:
            manager = urllib3.PoolManager(**options)
        manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
        return manager


def _let_go(connection: AnyConnection) -> None:
    if connection.abort is not None:
        connection.abort.attach(None)
    connection.abort, connection.held = None, False


def set_kernel_timeouts(sock: socket.socket, seconds: float) -> None:
    """Let blocking calls on the socket fail after so many seconds: one system call then moves a whole slice."""
    packed = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, packed)


KERNEL_TIMEOUTS = sys.platform in ("linux", "darwin")
