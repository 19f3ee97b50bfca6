"""Real processes on a pseudo-terminal: bars and tables, with rich and without, and a Ctrl-C that cleans up."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import asyncckpt
from asyncckpt.cli import plain, pretty
from asyncckpt.cli.output import progress_bar
from asyncckpt.progress import Phase, ProgressEvent
from tests.cli.test_commands import s3_arguments
from tests.servers import S3Bucket, Toxiproxy

pytestmark = pytest.mark.thorough

# A run in the background, as some CI systems start theirs, hands an ignored SIGINT down to its children.
_INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{}
from asyncckpt.cli import main
sys.exit(main())
"""
_WITHOUT_RICH = "sys.modules['rich'] = None"
WITH_AND_WITHOUT_RICH = pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
COLOUR = re.compile(r"\x1b\[[\d;]*?(?:3|4|9|10)[0-7][\d;]*m")
ESCAPE = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")


class Terminal:
    """A command with its standard error on a pseudo-terminal, and its standard output too where that is asked for."""

    def __init__(
        self, *arguments: str | Path, rich: bool = True, output: bool = False, **environment: str
    ) -> None:
        self._master, slave = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _INTERRUPTIBLE.format("" if rich else _WITHOUT_RICH),
                *map(str, arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=slave if output else subprocess.PIPE,
            stderr=slave,
            text=True,
            env={**_environment(), **environment},
            start_new_session=True,  # a Ctrl-C of ours reaches it alone
        )
        os.close(slave)

    @property
    def text(self) -> str:
        """What was seen, without escape codes."""
        return ESCAPE.sub("", self.seen)

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
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait()

    def _read_more(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


def _environment() -> dict[str, str]:
    """Ours, without what would change how a terminal is drawn on."""
    drawn_by = (
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "TERM",
        "COLORTERM",
        "COLUMNS",
    )
    kept = {name: value for name, value in os.environ.items() if name not in drawn_by}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "100"}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "a.checkpoint"
    asyncckpt.blocking.save({"w": np.zeros(8_000_000, np.float32)}, path)
    return path


def test_without_rich_the_bar_is_one_line_drawn_over_itself(large: Path, tmp_path: Path) -> None:
    terminal = Terminal("convert", large, tmp_path / "b.safetensors", rich=False)
    assert terminal.end() == 0
    assert "\r\x1b[2K" in terminal.seen
    assert "write █" in terminal.seen or "write ░" in terminal.seen
    assert "of 30.5 MiB" in terminal.seen
    assert terminal.seen.endswith("\n")


def test_rich_draws_the_bar_and_gives_the_cursor_back(large: Path, tmp_path: Path) -> None:
    terminal = Terminal("convert", large, tmp_path / "b.safetensors")
    assert terminal.end() == 0
    assert "━" in terminal.seen
    assert re.search(r"\r  write ━+ ", terminal.text)
    assert re.search(r"━ 100% 30\.5 MiB of 30\.5 MiB", terminal.text)
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")
    assert terminal.text.endswith("\n")


@WITH_AND_WITHOUT_RICH
def test_verify_shows_how_far_it_is(large: Path, rich: bool) -> None:
    terminal = Terminal("verify", large, rich=rich)
    assert terminal.end() == 0
    assert " verify " in terminal.text
    assert "of 30.5 MiB" in terminal.text


@WITH_AND_WITHOUT_RICH
@pytest.mark.parametrize("command", ["ls", "inspect", "verify"])
def test_no_color_is_respected(large: Path, command: str, rich: bool) -> None:
    location = large.parent if command == "ls" else large
    terminal = Terminal(command, location, rich=rich, output=True, NO_COLOR="1")
    assert terminal.end() == 0
    assert not COLOUR.search(terminal.seen)


def test_rich_colours_what_matters(large: Path) -> None:
    terminal = Terminal("verify", large, output=True)
    assert terminal.end() == 0
    assert re.search(r"\x1b\[32mok: 1 tensors", terminal.seen)


def test_a_dumb_terminal_gets_plain_text(large: Path) -> None:
    for command in ("verify", "inspect"):
        terminal = Terminal(command, large, output=True, TERM="dumb")
        assert terminal.end() == 0
        assert "\x1b" not in terminal.seen
        assert "━" not in terminal.seen


@WITH_AND_WITHOUT_RICH
def test_a_table_shows_names_whole_and_harmless(tmp_path: Path, rich: bool) -> None:
    """A name is not rich's markup, its escape codes do not reach the terminal, and a long one is folded, not cut."""
    names = {"[red]not markup[/red]": 1, "clear\x1b[2Jscreen": 2, "very.long." * 20: 3}
    path = tmp_path / "a.checkpoint"
    asyncckpt.blocking.save({name: np.zeros(number) for name, number in names.items()}, path)
    terminal = Terminal("inspect", path, rich=rich, output=True)
    assert terminal.end() == 0
    assert "[red]not markup[/red]" in terminal.text
    assert r"clear\x1b[2Jscreen" in terminal.text
    assert "\x1b[2J" not in terminal.seen
    assert terminal.text.count("very.long.") >= 19


@pytest.mark.parametrize("command", ["ls", "inspect", "verify"])
def test_a_pipe_gets_the_same_plain_text_with_rich_and_without(large: Path, command: str) -> None:
    location = large.parent if command == "ls" else large
    outputs = set()
    for rich in ("", _WITHOUT_RICH):
        done = subprocess.run(
            [sys.executable, "-c", _INTERRUPTIBLE.format(rich), command, str(location)],
            env={**_environment(), "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "\x1b" not in done.stdout + done.stderr
        assert done.stderr == ""
        outputs.add(done.stdout)
    assert len(outputs) == 1


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


EVENTS = (
    ProgressEvent(Phase.WRITE, 0, 2048),
    ProgressEvent(Phase.WRITE, 1024, 2048, retries=2),
    ProgressEvent(Phase.DONE, 2048, 2048),
)


def test_the_bar_shows_share_bytes_and_retries() -> None:
    screen = Screen()
    with plain.Bar(screen) as bar:  # type: ignore[arg-type]
        for event in EVENTS:
            bar(event)
    lines = screen.text.split("\r\x1b[2K")
    assert "   0%" in lines[1]
    assert "  50%  1.0 KiB of 2.0 KiB" in lines[2]
    assert lines[2].rstrip().endswith("2 retries")
    assert lines[2].count("█") == lines[2].count("░") == 14


def test_richs_bar_shows_the_same() -> None:
    screen = Screen()
    with pretty.RichBar(screen) as bar:  # type: ignore[arg-type]
        for event in EVENTS:
            bar(event)
    last = ESCAPE.sub("", screen.text).splitlines()[-1]
    assert re.search(r"^  write .* 50% 1\.0 KiB of 2\.0 KiB  .*  2 retries", last)


def test_a_bar_that_never_was_drawn_leaves_nothing() -> None:
    for kind in (plain.Bar, pretty.RichBar):
        screen = Screen()
        with kind(screen):  # type: ignore[arg-type]
            pass
        assert screen.text == ""


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(tty=False)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar() as bar:
        assert bar is None
    monkeypatch.setattr(sys, "stderr", Screen())
    with progress_bar(wanted=False) as bar:
        assert bar is None
    assert screen.text == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [("größe × 3", "größe × 3"), ("a\nb", r"a\nb"), ("\x1b]0;x\x07", r"\x1b]0;x\x07"), ("\ud800", r"\ud800")],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert plain.printable(text) == shown
