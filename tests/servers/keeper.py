"""One set of servers for one test run, however many processes share it.

The keeper is a process of its own: the run that started it holds its standard input, and when that closes, however
the run ended, the keeper ends every server and itself. The servers in turn die with the keeper (`tether`). Test
processes ask it through a socket for a server by name; the first to ask has it started.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.servers.gcs import GcsServer
from tests.servers.launch import STARTERS, Started
from tests.servers.process import ServerUnavailableError
from tests.servers.s3 import S3Server
from tests.servers.toxiproxy import Toxiproxy

SOCKET_VARIABLE = "ASYNCCKPT_TEST_KEEPER"
_STOP_TIMEOUT_SECONDS = 15.0
_PROJECT = Path(__file__).resolve().parents[2]

AnyServer = S3Server | GcsServer | Toxiproxy
_TYPES: dict[str, type[AnyServer]] = {"S3Server": S3Server, "GcsServer": GcsServer, "Toxiproxy": Toxiproxy}


class Keeper:
    """The starting side: starts the keeper process, ends it with `stop`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="asyncckpt-run-"))
        self.address = str(self._folder / "keeper.sock")
        with (self._folder / "keeper.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.keeper", self.address],
                cwd=_PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            complaint = (self._folder / "keeper.log").read_text()
            self.stop()
            raise RuntimeError(f"the server keeper did not start: {complaint}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End every server, the keeper and their data; harmless the second time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and its servers with it, by their tether
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def ask_for(name: str, address: str | None = None) -> AnyServer:
    """Return the server called `name` (a key of STARTERS), started if it is not running yet.

    Raises ServerUnavailableError with the reason when it can't be had.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address or os.environ[SOCKET_VARIABLE])
        connection.sendall(json.dumps({"name": name}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise ServerUnavailableError(f"the server keeper ended while it was asked for {name}")
    answer: dict[str, Any] = json.loads(line)
    if "unavailable" in answer:
        raise ServerUnavailableError(answer["unavailable"])
    return _TYPES[answer["type"]](**answer["fields"])


class _Rack:
    """The keeping side: what runs, and why the rest does not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[str, Started[Any]] = {}
        self._answers: dict[str, dict[str, Any]] = {}

    def answer(self, name: str) -> dict[str, Any]:
        if name not in self._answers:
            self._answers[name] = self._start(name)
        return self._answers[name]

    def _start(self, name: str) -> dict[str, Any]:
        try:
            started: Started[Any] = STARTERS[name](under=self._folder, should_stop=_run_is_over)
        except ServerUnavailableError as error:
            return {"unavailable": str(error)}
        self._started[name] = started
        server = started.server
        return {"type": type(server).__name__, "fields": dataclasses.asdict(server)}

    def stop(self) -> None:
        for started in self._started.values():
            started.stop()


def _run_is_over() -> bool:
    """Nothing is ever sent on standard input, so readable means closed."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _serve(address: str) -> None:
    rack = _Rack(Path(address).parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        try:
            while True:
                readable, _, _ = select.select([sys.stdin, listener], [], [])
                if sys.stdin in readable:
                    return
                _serve_one(listener, rack)
        finally:
            rack.stop()
            shutil.rmtree(Path(address).parent, ignore_errors=True)


def _serve_one(listener: socket.socket, rack: _Rack) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as stream:
        line = stream.readline()
        if not line:
            return
        stream.write(json.dumps(rack.answer(json.loads(line)["name"])).encode() + b"\n")
        try:
            stream.flush()
        except (BrokenPipeError, ConnectionResetError):  # who asked is gone; the server stays for the others
            return


if __name__ == "__main__":
    _serve(sys.argv[1])
