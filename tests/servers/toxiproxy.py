"""A small client of toxiproxy: proxies in front of a server, and the toxics that spoil their connections."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.servers.process import LOOPBACK

Direction = Literal["upstream", "downstream"]


@dataclass(frozen=True)
class Toxiproxy:
    """A running toxiproxy, addressed by its control endpoint."""

    endpoint_url: str

    def request(self, method: str, path: str, *, body: dict[str, Any] | None = None) -> Any:
        """Send one control request and return the decoded answer. Raises urllib's HTTPError for a refusal."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.endpoint_url + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            answer = response.read()
        return json.loads(answer) if answer else None

    @contextmanager
    def proxy(self, upstream_url: str) -> Iterator[Proxy]:
        """Yield a proxy to `upstream_url` (only its host and port matter); it is removed at the end."""
        parts = urlsplit(upstream_url)
        body = {
            "name": uuid.uuid4().hex,
            "listen": f"{LOOPBACK}:0",
            "upstream": f"{parts.hostname}:{parts.port}",
            "enabled": True,
        }
        made = self.request("POST", "/proxies", body=body)
        try:
            yield Proxy(self, made["name"], f"{parts.scheme}://{made['listen']}")
        finally:
            self.request("DELETE", f"/proxies/{made['name']}")


@dataclass(frozen=True)
class Proxy:
    """One proxy; `endpoint_url` is what a client connects to."""

    toxiproxy: Toxiproxy
    name: str
    endpoint_url: str

    def add_toxic(
        self,
        kind: str,
        *,
        stream: Direction = "downstream",
        toxicity: float = 1.0,
        **attributes: int,
    ) -> str:
        """Add a toxic and return its name.

        Kinds: `latency` (latency, jitter), `bandwidth` (rate in KB/s), `timeout` (timeout in ms; 0 is silence for
        ever), `reset_peer` (timeout), `limit_data` (bytes, then the connection is closed), `slicer`, `slow_close`.
        For a silent server use `timeout` upstream: downstream, it still passes on that the server hung up.
        """
        name = f"{kind}-{uuid.uuid4().hex[:8]}"
        body = {"name": name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        self.toxiproxy.request("POST", f"/proxies/{self.name}/toxics", body=body)
        return name

    def remove_toxic(self, name: str) -> None:
        self.toxiproxy.request("DELETE", f"/proxies/{self.name}/toxics/{name}")

    @contextmanager
    def toxic(
        self, kind: str, *, stream: Direction = "downstream", toxicity: float = 1.0, **attributes: int
    ) -> Iterator[None]:
        """Have a toxic for the length of a `with` block."""
        name = self.add_toxic(kind, stream=stream, toxicity=toxicity, **attributes)
        try:
            yield
        finally:
            self.remove_toxic(name)

    def set_enabled(self, enabled: bool) -> None:
        """Cut every connection and refuse new ones (False), or serve again (True)."""
        self.toxiproxy.request("POST", f"/proxies/{self.name}", body={"enabled": enabled})
