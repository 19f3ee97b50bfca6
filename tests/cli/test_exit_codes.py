"""Exit codes and error lines: 0 fine, 1 a problem, 2 usage, 3 storage, 4 bad file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import asyncckpt
from asyncckpt.cli import main
from tests.cli.conftest import Run, state


def one_line(err: str) -> str:
    assert err.startswith("asyncckpt: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_file_that_is_no_checkpoint(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    result = run(command, path)
    assert (result.code, result.out) == (4, "")
    assert "not a checkpoint of a known format" in one_line(result.err)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_nothing_there(run: Run, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "none.checkpoint")
    assert (result.code, result.out) == (3, "")
    assert "there is no checkpoint at" in one_line(result.err)


def test_a_local_folder_that_is_not_there_is_an_empty_one(run: Run, tmp_path: Path) -> None:
    """Because the first save makes it; a bucket that is not there is an error."""
    result = run("ls", tmp_path / "none")
    assert (result.code, result.out) == (0, "KEY  SIZE  MODIFIED  FORMAT\n")


def test_a_truncated_file(run: Run, checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:-5])
    result = run("inspect", checkpoint)
    assert result.code == 4
    assert "cut short" in one_line(result.err)
    # verify reports damage, and a cut file is that.
    assert run("verify", checkpoint).code == 1


def test_a_newer_version(run: Run, checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"\x051.1.0", b"\x052.1.0", 1))
    result = run("inspect", checkpoint)
    assert result.code == 4
    assert "upgrade asyncckpt" in one_line(result.err)


@pytest.mark.parametrize("url", ["s3://bucket/a.checkpoint", "s3://bucket/run"])
def test_a_server_that_refuses(run: Run, url: str) -> None:
    command = "ls" if url.endswith("run") else "inspect"
    result = run(
        *(
            command,
            url,
            "--endpoint-url",
            "http://127.0.0.1:9",
            "--option",
            "key=a",
            "--option",
            "secret=hush",
        )
    )
    assert result.code == 3
    assert "check the endpoint" in one_line(result.err)
    assert "hush" not in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "invalid choice"),
        (["verify"], "location"),
        (["verify", "x", "--level", "half"], "invalid choice: 'half'"),
        (["verify", "x", "--format", "nope"], "invalid choice: 'nope'"),
        (["convert", "x", "y", "--to", "nope"], "invalid choice: 'nope'"),
        (["bench", "x", "--format", "nope"], "invalid choice: 'nope'"),
        (["ls", "s3://x", "--option", "key"], "key needs a value: NAME=VALUE"),
        (["bench", "x", "--size", "many"], "invalid int value"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def test_help(run: Run) -> None:
    for arguments in (["--help"], ["convert", "--help"]):
        result = run(*arguments)
        assert result.code == 0
        assert "usage: asyncckpt" in result.out


def test_a_missing_driver_is_said_with_the_line_that_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    result = run("inspect", "s3://bucket/a.checkpoint")
    assert result.code == 2
    assert "pip install 'asyncckpt[s3]'" in one_line(result.err)


def test_as_a_module_in_a_process_of_its_own(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "asyncckpt.cli", "verify", str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: 2 tensors")


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`asyncckpt ls | head -1`: no traceback, whatever the size of the output."""
    for number in range(300):
        (tmp_path / f"{number:04}-{'x' * 200}.checkpoint").touch()
    child = subprocess.Popen(
        [sys.executable, "-m", "asyncckpt.cli", "ls", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert (child.wait(), err) == (0, b"")


def test_main_takes_its_arguments_from_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncckpt.blocking.save(state(), tmp_path / "a.checkpoint")
    monkeypatch.setattr(sys, "argv", ["asyncckpt", "inspect", str(tmp_path / "a.checkpoint")])
    assert main() == 0
    assert "model.weight" in capsys.readouterr().out
