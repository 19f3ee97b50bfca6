"""On a terminal: a progress bar, and a Ctrl-C that cleans up. Real processes on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import asyncckpt
from asyncckpt.cli.output import Bar, progress_bar
from asyncckpt.progress import Phase, ProgressEvent
from tests.cli.test_commands import s3_arguments
from tests.servers import S3Bucket, Toxiproxy

# A run in the background, as some CI systems start theirs, hands an ignored SIGINT down to its children.
_INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from asyncckpt.cli import main
sys.exit(main())
"""


class Terminal:
    """A command with its standard error on a pseudo-terminal."""

    def __init__(self, *arguments: str | Path) -> None:
        self._master, slave = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTIBLE, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
            start_new_session=True,  # a Ctrl-C of ours reaches it alone
        )
        os.close(slave)

    def read_until(self, text: str) -> None:
        """Raises AssertionError when the command ends without it."""
        while text not in self.seen:
            assert self._read_more(), f"{text!r} never came: {self.seen!r}"

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read all there is; returns the exit code."""
        while self._read_more():
            pass
        os.close(self._master)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    def _read_more(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "a.checkpoint"
    asyncckpt.blocking.save({"w": np.zeros(8_000_000, np.float32)}, path)
    return path


def test_a_progress_bar_is_drawn_over_itself(large: Path, tmp_path: Path) -> None:
    terminal = Terminal("convert", large, tmp_path / "b.safetensors")
    assert terminal.end() == 0
    assert "\r\x1b[2K" in terminal.seen
    assert "write █" in terminal.seen or "write ░" in terminal.seen
    assert "of 30.5 MiB" in terminal.seen
    assert terminal.seen.endswith("\n")


def test_verify_shows_how_far_it_is(large: Path) -> None:
    terminal = Terminal("verify", large)
    assert terminal.end() == 0
    assert " verify " in terminal.seen
    assert "of 30.5 MiB" in terminal.seen


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_no_bar_where_none_is_wanted(large: Path, option: str) -> None:
    terminal = Terminal("verify", large, option)
    assert terminal.end() == 0
    assert terminal.seen == ""


def test_ctrl_c_during_a_local_save_leaves_nothing(tmp_path: Path) -> None:
    """The benchmark saves for ever; it is interrupted while it writes."""
    terminal = Terminal("bench", tmp_path, "--size", "64", "--rounds", "1000000")
    terminal.read_until("write")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "asyncckpt: interrupted; nothing unfinished was left behind" in terminal.seen
    assert "Traceback" not in terminal.seen
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def slow_line(toxiproxy: Toxiproxy, minio_bucket: S3Bucket) -> Iterator[list[str]]:
    """Arguments for MinIO behind a proxy that takes half a minute for the upload."""
    with toxiproxy.proxy(minio_bucket.server.endpoint_url) as proxy:
        proxy.add_toxic("bandwidth", stream="upstream", rate=1_000)
        arguments = s3_arguments(minio_bucket)
        arguments[1] = proxy.endpoint_url
        yield arguments


def test_ctrl_c_during_an_upload_leaves_no_upload(
    large: Path, minio_bucket: S3Bucket, slow_line: list[str]
) -> None:
    terminal = Terminal("convert", large, f"{minio_bucket.url}/b.safetensors", *slow_line)
    terminal.read_until("write")
    while not minio_bucket.uploads():
        assert terminal.process.poll() is None, terminal.seen
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.seen
    assert (minio_bucket.keys(), minio_bucket.uploads()) == ([], [])


# --- the bar itself ---------------------------------------------------------------------------------------------


class Screen:
    """A terminal that keeps what is written to it."""

    def __init__(self, *, tty: bool = True) -> None:
        self.text = ""
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        return None


def test_the_bar_shows_share_bytes_and_retries() -> None:
    screen = Screen()
    bar = Bar(screen)  # type: ignore[arg-type]
    bar(ProgressEvent(Phase.WRITE, 0, 2048))
    bar(ProgressEvent(Phase.WRITE, 1024, 2048, retries=2))
    bar(ProgressEvent(Phase.DONE, 2048, 2048))
    bar.end()
    lines = screen.text.split("\r\x1b[2K")
    assert "   0%" in lines[1]
    assert "  50%  1.0 KiB of 2.0 KiB" in lines[2]
    assert lines[2].rstrip().endswith("2 retries")
    assert lines[2].count("█") == lines[2].count("░") == 14


def test_no_bar_without_a_terminal() -> None:
    screen = Screen(tty=False)
    with progress_bar(stream=screen) as bar:  # type: ignore[arg-type]
        assert bar is None
    with progress_bar(stream=Screen(), wanted=False) as bar:  # type: ignore[arg-type]
        assert bar is None
    assert screen.text == ""
