"""Where a server comes from: decided in one pure function, in a fixed order.

1. an endpoint given in the environment;
2. the program on the PATH;
3. the running docker compose service (its fixed loopback port answers);
4. a build with `go install` into a per-user cache folder.
"""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMPOSE_S3_ENDPOINT = "http://127.0.0.1:19000"
COMPOSE_GCS_ENDPOINT = "http://127.0.0.1:14443"
# Throw-away credentials, the same as in docker-compose.yml; they protect nothing.
ACCESS_KEY = "asyncckpt-test"
SECRET_KEY = "asyncckpt-test-secret"


@dataclass(frozen=True)
class ServerKind:
    """What is known about a server before it is looked for."""

    name: str
    program: str
    module: str
    version: str
    endpoint_variable: str
    health_path: str
    compose_endpoint: str | None = None

    @property
    def package(self) -> str:
        """The argument of `go install`."""
        return f"{self.module}@{self.version}"

    @property
    def cache_name(self) -> str:
        return f"{self.name}-{self.version}"


MINIO = ServerKind(
    name="minio",
    program="minio",
    module="github.com/minio/minio",
    version="v0.0.0-20250907161309-07c3a429bfed",
    endpoint_variable="ASYNCCKPT_TEST_S3_ENDPOINT",
    health_path="/minio/health/ready",
    compose_endpoint=COMPOSE_S3_ENDPOINT,
)
FAKE_GCS = ServerKind(
    name="fake-gcs-server",
    program="fake-gcs-server",
    module="github.com/fsouza/fake-gcs-server",
    version="v1.56.1",
    endpoint_variable="ASYNCCKPT_TEST_GCS_ENDPOINT",
    health_path="/_internal/healthcheck",
    compose_endpoint=COMPOSE_GCS_ENDPOINT,
)
TOXIPROXY = ServerKind(
    name="toxiproxy",
    program="server",  # the name of the folder in its module; on a PATH it is called toxiproxy-server
    module="github.com/Shopify/toxiproxy/v2/cmd/server",
    version="v2.5.0",
    endpoint_variable="ASYNCCKPT_TEST_TOXIPROXY_ENDPOINT",
    health_path="/version",
)
KINDS = (MINIO, FAKE_GCS, TOXIPROXY)


@dataclass(frozen=True)
class Running:
    """Somebody else's server, to be used and left alone."""

    endpoint_url: str
    origin: str


@dataclass(frozen=True)
class Program:
    """A program to start."""

    path: str


@dataclass(frozen=True)
class Build:
    """A program to build (or to find already built) in the cache."""

    kind: ServerKind


Source = Running | Program | Build


def answers(url: str, *, timeout: float = 1.0) -> bool:
    """Return whether a GET of `url` succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return bool(response.status < 400)
    except (OSError, urllib.error.URLError, ValueError):
        return False


@dataclass(frozen=True)
class Surroundings:
    """What the decision looks at; tests replace each part."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    which: Callable[[str], str | None] = shutil.which
    answers: Callable[[str], bool] = answers


def choose_source(
    kind: ServerKind, surroundings: Surroundings | None = None, *, own_process: bool = False
) -> Source:
    """Return where `kind` comes from. With `own_process` only what can be started here counts (for TLS)."""
    around = surroundings or Surroundings()
    if not own_process and (endpoint := around.environ.get(kind.endpoint_variable)):
        return Running(endpoint.rstrip("/"), origin=kind.endpoint_variable)
    program = "toxiproxy-server" if kind is TOXIPROXY else kind.program
    if path := around.which(program):
        return Program(path)
    if not own_process and kind.compose_endpoint and around.answers(kind.compose_endpoint + kind.health_path):
        return Running(kind.compose_endpoint, origin="docker compose")
    return Build(kind)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the per-user folder for built servers."""
    around = os.environ if environ is None else environ
    base = around.get("XDG_CACHE_HOME") or str(Path(around.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "asyncckpt" / "servers"
