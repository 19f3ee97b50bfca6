"""The sink as the benchmarks see it: started in a process of its own, asked for its counters."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.servers import S3Server

_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class SinkServer:
    """A running sink. Its counters are what arrived, whoever sent it."""

    s3: S3Server
    port: int

    def reset(self) -> None:
        """Set all counters to zero."""
        self._ask("POST", "/-/reset")

    def counters(self) -> dict[str, int]:
        """`requests`, `requests PUT …` by operation, `bytes received`, `bytes sent`."""
        counters: dict[str, int] = json.loads(self._ask("GET", "/-/stats"))
        return counters

    def _ask(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path)
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def start_sink() -> Iterator[SinkServer]:
    """Start a sink; it ends with the block, or with this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        endpoint = f"http://127.0.0.1:{port}"
        yield SinkServer(S3Server(endpoint, "sink", "sink-secret", "us-east-1", "sink"), port)
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
