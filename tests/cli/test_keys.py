"""`--key-file` and `--allow-plain`: who gives a key is told when a file is not encrypted."""

from __future__ import annotations

from pathlib import Path

import pytest

import asyncckpt
from asyncckpt.formats.metagraph.format import MetagraphFormat
from tests.cli.conftest import Run, state

KEY = bytes(range(32))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    path = tmp_path / "a.mgb"
    asyncckpt.blocking.save(state(), path, format=MetagraphFormat(key=KEY))
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.mgb"
    asyncckpt.blocking.save(state(), path)
    return path


def test_an_encrypted_bundle_is_read_with_its_key_under_any_name(
    run: Run, encrypted: Path, key_file: Path
) -> None:
    renamed = encrypted.rename(encrypted.with_name("a.backup"))
    for command in ("inspect", "verify"):
        assert run(command, renamed, "--key-file", key_file).code == 0
    assert run("diff", renamed, renamed, "--key-file", key_file).code == 0
    assert run("inspect", renamed).code == 4


@pytest.mark.parametrize(("command", "code"), [("inspect", 4), ("verify", 1)])
def test_with_a_key_a_plain_bundle_is_refused(
    run: Run, plain: Path, key_file: Path, command: str, code: int
) -> None:
    refused = run(command, plain, "--key-file", key_file)
    assert refused.code == code
    assert "is not encrypted, though a key was given" in refused.out + refused.err
    assert "--allow-plain" in refused.out + refused.err
    assert run(command, plain, "--key-file", key_file, "--allow-plain").code == 0


def test_with_a_key_other_formats_are_refused(run: Run, checkpoint: Path, key_file: Path) -> None:
    refused = run("inspect", checkpoint, "--key-file", key_file)
    assert refused.code == 4
    assert "not a METAGRAPH bundle" in refused.err
    refused = run("inspect", checkpoint, "--key-file", key_file, "--format", "mlcp")
    assert refused.code == 4
    assert "mlcp is never encrypted: --allow-plain reads it all the same" in refused.err
    assert run("inspect", checkpoint, "--key-file", key_file, "--allow-plain").code == 0


def test_diff_of_an_encrypted_bundle_with_a_plain_file(
    run: Run, encrypted: Path, checkpoint: Path, key_file: Path
) -> None:
    assert run("diff", encrypted, checkpoint, "--key-file", key_file).code == 4
    allowed = run("diff", encrypted, checkpoint, "--key-file", key_file, "--allow-plain")
    assert "format: metagraph -> mlcp" in allowed.out


def test_convert_to_a_plain_file_is_a_loss(run: Run, encrypted: Path, key_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.checkpoint"
    refused = run("convert", encrypted, target, "--key-file", key_file)
    assert refused.code == 4
    assert "the source is encrypted, the mlcp file would not be" in refused.err
    assert not target.exists()
    allowed = run("convert", encrypted, target, "--key-file", key_file, "--allow-loss")
    assert allowed.code == 0
    assert "note  the source is encrypted" in allowed.out
    keys = ("--key-file", key_file, "--target-key-file", key_file)
    assert run("convert", encrypted, tmp_path / "c.mgb", *keys).code == 0
