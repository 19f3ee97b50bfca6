"""Server processes on free loopback ports, with throw-away data, that never outlive the process that started them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
READY_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_TETHER = Path(__file__).with_name("tether.py")


class ServerUnavailableError(Exception):
    """A server can't be had on this machine; the message says why and how to get it."""


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports that nobody listens on right now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def tethered(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` so that it dies with the calling process."""
    return [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command]


class ServerProcess:
    """One running server and its data folder; `stop` ends both. Use it as a context manager or call `stop`."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                tethered(command),
                cwd=folder,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C belongs to the test run, which ends its servers last
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], *, timeout: float = READY_TIMEOUT_SECONDS) -> None:
        """Return once `ready` says so. Raises ServerUnavailableError when the server ends or stays silent."""
        deadline = time.monotonic() + timeout
        while not ready():
            if self._process.poll() is not None:
                raise ServerUnavailableError(
                    f"the server ended with {self._process.returncode}: {self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerUnavailableError(f"no answer within {timeout:.0f} s: {self.log_tail()}")
            time.sleep(_POLL_SECONDS)

    def log_tail(self, *, characters: int = 1500) -> str:
        """Return the end of what the server has said."""
        return self.log.read_text(errors="replace")[-characters:].strip()

    def stop(self) -> None:
        """End the server and delete its data; harmless when it is already over."""
        if self._process.poll() is None:
            self._process.kill()  # nothing is worth flushing: the data goes with it
        self._process.wait(timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def data_folder(name: str, *, under: Path | None = None) -> Path:
    """Return a new empty folder for one server's data."""
    return Path(tempfile.mkdtemp(prefix=f"asyncckpt-{name}-", dir=under))


def start_ready(
    name: str,
    command: Callable[[Path, list[int]], Sequence[str]],
    ready: Callable[[list[int]], bool],
    *,
    ports: int = 1,
    environ: Mapping[str, str] | None = None,
    under: Path | None = None,
    attempts: int = 3,
) -> tuple[ServerProcess, list[int]]:
    """Start a server on fresh ports and wait until it answers; another process may take a port first, so retry.

    Raises ServerUnavailableError when the last attempt fails.
    """
    for attempt in range(1, attempts + 1):
        folder = data_folder(name, under=under)
        chosen = free_ports(ports)
        server = ServerProcess(command(folder, chosen), folder, environ=environ)
        try:
            server.wait_until(lambda chosen=chosen: ready(chosen))  # type: ignore[misc]
        except BaseException as error:
            server.stop()
            if attempt == attempts or not isinstance(error, ServerUnavailableError):
                raise
        else:
            return server, chosen
    raise AssertionError("unreachable: the last attempt returns or raises")
