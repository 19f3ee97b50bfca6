"""The guards do catch what they are for: a suite that can't fail proves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import guards

pytestmark = pytest.mark.thorough

PROJECT = Path(__file__).resolve().parents[1]

# Compiled under a name inside the package, because only asyncckpt's own calls count.
_AS_PACKAGE = """
import os
from pathlib import Path
FILE = Path({package!r}) / "probe.py"
def as_package(source):
    names = {{}}
    exec(compile(source, str(FILE), "exec"), names)
    return names["probe"]
"""


def run(tmp_path: Path, tests: str, *options: str) -> str:
    """Run tests in a process of their own under the suite's conftest, and return what pytest says."""
    file = tmp_path / "test_probe.py"
    file.write_text(_AS_PACKAGE.format(package=str(PROJECT / "asyncckpt")) + tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest", "-q"]
    configuration = ["-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(PROJECT), str(file)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    answer = subprocess.run(
        [*command, *configuration, *options],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    return answer.stdout + answer.stderr


PROBES = """
import asyncio, threading, time, warnings
import pytest

SLEEP = "import time\\ndef probe():\\n    time.sleep(0)"
OPEN = "import os\\ndef probe():\\n    os.close(os.open(os.devnull, os.O_RDONLY))"
BUILTIN_OPEN = "import os\\ndef probe():\\n    open(os.devnull).close()"
FSYNC = "import os\\ndef probe():\\n    os.fsync(0)"

@pytest.mark.parametrize("source", [SLEEP, OPEN, BUILTIN_OPEN, FSYNC], ids=["sleep", "open", "builtin", "fsync"])
async def test_FAILS_blocking_package(source):
    as_package(source)()

async def test_passes_blocking_test():
    time.sleep(0)
    open(__file__).close()

async def test_passes_in_a_thread():
    await asyncio.to_thread(as_package(SLEEP))

def test_passes_without_a_loop():
    as_package(OPEN)()

@pytest.mark.blocking_allowed("on purpose")
async def test_passes_when_allowed():
    as_package(SLEEP)()

async def test_ERRORS_task_left():
    global kept
    kept = asyncio.create_task(asyncio.Event().wait())

async def test_passes_task_that_ends_soon():
    global kept
    kept = asyncio.create_task(asyncio.sleep(0.01))

def test_ERRORS_thread_left():
    threading.Thread(target=threading.Event().wait, daemon=True, name="forgotten").start()

async def test_passes_thread_that_ends_soon():
    threading.Thread(target=time.sleep, args=(0.05,)).start()

def test_FAILS_warning():
    warnings.warn("anything")

async def test_passes_on_the_chosen_loop(request):
    chosen = request.config.getoption("--loop")
    assert type(asyncio.get_running_loop()).__module__.startswith(chosen)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_guard_catches_its_fault_and_nothing_else(tmp_path: Path, loop: str) -> None:
    said = run(tmp_path, PROBES, "-rA", f"--loop={loop}")
    words = [line.replace("::", " ").split() for line in said.splitlines() if "::test_" in line]
    verdicts = {
        verdict: {line[1] for line in words if line[0] == verdict}
        for verdict in ("PASSED", "FAILED", "ERROR")
    }
    kinds = {f"test_FAILS_blocking_package[{kind}]" for kind in ("sleep", "open", "builtin", "fsync")}
    assert verdicts["FAILED"] == kinds | {"test_FAILS_warning"}, said
    assert verdicts["ERROR"] == {"test_ERRORS_task_left", "test_ERRORS_thread_left"}, said
    assert len([name for name in verdicts["PASSED"] if name.startswith("test_passes")]) == 7, said
    for call in ("time.sleep", "os.open", "builtins.open", "os.fsync"):
        assert f"BlockingError: Blocking call to {call}" in said


def test_a_missing_server_is_one_loud_line_and_with_ci_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = "def test_one(fake_gcs): pass\ndef test_two(fake_gcs): pass\n"
    program = tmp_path / "fake-gcs-server"
    program.write_text("#!/bin/sh\necho broken\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("ASYNCCKPT_TEST_GCS_ENDPOINT", raising=False)
    monkeypatch.delenv("CI", raising=False)
    said = run(tmp_path, tests)
    assert "2 skipped" in said
    assert said.count("2 tests NOT TESTED, no server: fake_gcs: the server ended with 1: broken") == 1
    monkeypatch.setenv("CI", "1")
    said = run(tmp_path, tests)
    assert "no fake_gcs server, and CI is set" in said
    assert "2 errors" in said


def test_quick_runs_leave_out_what_needs_a_server(tmp_path: Path) -> None:
    tests = "def test_one(fake_gcs): pass\ndef test_two(minio_bucket): pass\ndef test_three(): pass\n"
    said = run(tmp_path, tests, "-m", "not server")
    assert "1 passed, 2 deselected" in said


def test_a_call_that_may_block_is_passed_through() -> None:
    assert guards.call_blocking(divmod, 7, 2) == (3, 1)
