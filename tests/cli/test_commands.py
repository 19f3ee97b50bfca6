"""Every command: what it prints, as text and as JSON, and its exit code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.testing.strategies import assert_identical
from tests.cli.conftest import Run, state
from tests.servers import GcsBucket, S3Bucket

# --- ls ---------------------------------------------------------------------------------------------------------


def test_ls(run: Run, checkpoint: Path) -> None:
    folder = checkpoint.parent
    (folder / "notes.txt").write_text("not one")
    asyncckpt.blocking.save(state(), folder / "deep" / "b.safetensors")
    result = run("ls", folder)
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["KEY", "SIZE", "MODIFIED", "FORMAT"]
    assert [(line[0], line[-1]) for line in lines[1:]] == [
        ("a.checkpoint", "mlcp"),
        ("deep/b.safetensors", "safetensors"),
    ]


def test_ls_json_and_all(run: Run, checkpoint: Path) -> None:
    (checkpoint.parent / "notes.txt").write_text("not one")
    found = run("ls", checkpoint.parent, "--json").json
    assert [(entry["key"], entry["format"]) for entry in found] == [("a.checkpoint", "mlcp")]
    assert found[0]["size"] == checkpoint.stat().st_size
    every = run("ls", checkpoint.parent, "--json", "--all").json
    assert [entry["key"] for entry in every] == ["a.checkpoint", "notes.txt"]


# --- inspect ----------------------------------------------------------------------------------------------------


def test_inspect(run: Run, checkpoint: Path) -> None:
    result = run("inspect", checkpoint, "--hex")
    assert result.code == 0
    assert "format    mlcp 1.1.0" in result.out
    assert "state     a tree" in result.out
    assert "model.weight  float32  2×3    24 B" in result.out
    assert "00000000  50 43 4c 4d 05" in result.out
    assert "|PCLM.1.1.0" in result.out


def test_inspect_json(run: Run, checkpoint: Path) -> None:
    result = run("inspect", checkpoint, "--json", "--hex")
    assert result.code == 0
    assert {key: result.json[key] for key in ("format", "version", "files")} == {
        "format": "mlcp",
        "version": "1.1.0",
        "files": ["a.checkpoint"],
    }
    assert result.json["size"] == checkpoint.stat().st_size
    tensors = {tensor["name"]: tensor for tensor in result.json["tensors"]}
    assert tensors["model.weight"] == {
        "name": "model.weight",
        "dtype": "float32",
        "shape": [2, 3],
        "size": 24,
        "pieces": 0,
    }
    assert bytes.fromhex(result.json["hex"]) == checkpoint.read_bytes()[:256]


@pytest.mark.parametrize("name", asyncckpt.format_names())
def test_inspect_and_verify_every_format(run: Run, tmp_path: Path, name: str) -> None:
    saved = asyncckpt.blocking.save(
        state(), tmp_path / f"x{asyncckpt.get_format(name).extension}", format=name
    )
    path = tmp_path / saved.key
    shown = run("inspect", path, "--json")
    assert (shown.code, shown.json["format"]) == (0, name)
    assert {t["name"] for t in shown.json["tensors"]} == {"model.weight", "model.bias"}
    text = run("inspect", path, "--hex")
    assert text.code == 0
    assert f"format    {name}" in text.out
    for level in ("header", "full"):
        assert run("verify", path, "--level", level).code == 0


# --- verify -----------------------------------------------------------------------------------------------------


def test_verify(run: Run, checkpoint: Path) -> None:
    result = run("verify", checkpoint)
    assert result.code == 0
    assert result.out.startswith("ok: 2 tensors, ")
    assert result.err == ""


def test_verify_finds_damage(run: Run, damaged: Path) -> None:
    result = run("verify", damaged)
    assert result.code == 1
    assert "PROBLEM  tensor 'model.weight' is damaged" in result.out
    assert "1 problem(s)" in result.out
    as_json = run("verify", damaged, "--json")
    assert as_json.code == 1
    assert as_json.json["ok"] is False
    assert [problem["tensor"] for problem in as_json.json["problems"]] == ["model.weight"]


def test_verify_of_the_header_reads_no_tensor(run: Run, damaged: Path) -> None:
    result = run("verify", damaged, "--level", "header", "--json")
    assert (result.code, result.json["ok"], result.json["bytes_checked"]) == (0, True, 0)


def test_verify_does_not_call_ok_what_has_no_checksums(run: Run) -> None:
    foreign = Path(__file__).parents[1] / "golden" / "gptrsten" / "basic.gptrsten"
    result = run("verify", foreign)
    assert result.code == 0
    assert "note     tensor 'input' has no checksum" in result.out
    assert "nothing wrong was found, but 4 thing(s) could not be checked: 4 tensors, " in result.out


# --- diff -------------------------------------------------------------------------------------------------------


def test_diff(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    other = state()
    other["model"]["weight"][0, 0] = 4
    other["model"]["new"] = other["model"].pop("bias")
    other["step"] = 8
    asyncckpt.blocking.save(other, tmp_path / "b.safetensors", metadata={"epoch": 4})
    result = run("diff", checkpoint, tmp_path / "b.safetensors", "--values")
    assert result.code == 1
    lines = result.out.splitlines()
    assert "  format: mlcp -> safetensors" in lines
    assert "  custom_fields.epoch: 3 -> 4" in lines
    assert "  state['step']: 7 -> 8" in lines
    assert "- model.bias" in lines
    assert "+ model.new" in lines
    assert any(line.startswith("~ model.weight  bytes: ") and "(largest 4," in line for line in lines)
    assert lines[-1] == "1 added, 1 removed, 1 changed, 0 the same"


def test_diff_json(run: Run, checkpoint: Path) -> None:
    result = run("diff", checkpoint, checkpoint, "--json")
    assert (result.code, result.json["same"], result.json["unchanged"]) == (0, True, 2)


def test_json_is_strict_whatever_the_numbers(run: Run, tmp_path: Path) -> None:
    """`run(...).json` refuses NaN and infinities as literals."""
    metadata = {"loss": math.nan, "limit": -math.inf, "scalar": np.float32(0.5), "pair": (1, np.inf)}
    for name, number in (("a", math.nan), ("b", 1.0), ("c", math.inf)):
        asyncckpt.blocking.save({"w": np.array([number]), "x": number}, tmp_path / name, metadata=metadata)
    shown = run("inspect", tmp_path / "a", "--json").json["metadata"]["customFields"]
    assert shown == {"loss": "NaN", "limit": "-Infinity", "scalar": 0.5, "pair": [1, "Infinity"]}
    [change] = run("diff", tmp_path / "a", tmp_path / "b", "--values", "--json").json["changed"]
    assert (change["largest"], change["mean"]) == ("NaN", "NaN")
    [change] = run("diff", tmp_path / "b", tmp_path / "c", "--values", "--json").json["changed"]
    assert change["largest"] == "Infinity"
    assert run("verify", tmp_path / "c", "--json").json["ok"]
    assert run("convert", tmp_path / "c", tmp_path / "d.safetensors", "--json").json["tensors"] == 1
    assert run("inspect", tmp_path / "d.safetensors", "--json").json["metadata"]["customFields"] == shown


# --- convert ----------------------------------------------------------------------------------------------------


def test_convert(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("convert", checkpoint, tmp_path / "b.safetensors")
    assert result.code == 0
    assert result.out.startswith("mlcp 1.1.0 -> safetensors: 2 tensors, ")
    assert_identical(asyncckpt.blocking.load(tmp_path / "b.safetensors"), state())
    again = run("convert", checkpoint, tmp_path / "b.safetensors")
    assert again.code == 3
    assert "exists already" in again.err
    assert run("convert", checkpoint, tmp_path / "b.safetensors", "--overwrite").code == 0


def test_convert_json_to_a_named_format(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("convert", checkpoint, tmp_path / "b.bin", "--to", "safetensors", "--json")
    assert (result.code, result.json["format"], result.json["tensors"]) == (0, "safetensors", 2)
    assert (tmp_path / "b.bin").exists()


def test_convert_with_a_loss(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "a.checkpoint"
    asyncckpt.blocking.save({"w": np.ones(2, np.float32), "long": np.arange(3), "byte": np.uint8(1)}, source)
    refused = run("convert", source, tmp_path / "b.gptrschk")
    assert refused.code == 4
    assert "int64" in refused.err or "uint8" in refused.err
    assert "(and 1 more)" in refused.err
    assert not (tmp_path / "b.gptrschk").exists()
    allowed = run("convert", source, tmp_path / "b.gptrschk", "--allow-loss")
    assert allowed.code == 0
    assert allowed.out.count("note  tensor ") == 2


# --- bench ------------------------------------------------------------------------------------------------------


def test_bench(run: Run, tmp_path: Path) -> None:
    result = run("bench", tmp_path, "--size", "2", "--rounds", "1")
    assert result.code == 0
    assert [line.split("  ")[0] for line in result.out.splitlines()] == [
        "OPERATION",
        "save",
        "load, verified",
    ]
    as_json = run("bench", tmp_path, "--size", "2", "--rounds", "2", "--json").json
    assert set(as_json) == {"save", "load, verified"}
    assert all(row["mb_per_s"] > 0 for row in as_json.values())
    assert list(tmp_path.iterdir()) == []


# --- on servers -------------------------------------------------------------------------------------------------


def s3_arguments(bucket: S3Bucket) -> list[str]:
    options = bucket.storage_options
    return [
        *("--endpoint-url", options["client_kwargs"]["endpoint_url"]),
        *("--option", f"key={options['key']}"),
        *("--option", f"secret={options['secret']}"),
        *("--option", 'config_kwargs={"s3": {"addressing_style": "path"}}'),
    ]


def test_every_command_on_s3(run: Run, checkpoint: Path, minio_bucket: S3Bucket) -> None:
    more = s3_arguments(minio_bucket)
    target = f"{minio_bucket.url}/run/b.safetensors"
    assert run("convert", checkpoint, target, *more).code == 0
    assert [entry["key"] for entry in run("ls", f"{minio_bucket.url}/run", "--json", *more).json] == [
        "b.safetensors"
    ]
    assert run("inspect", target, "--json", *more).json["format"] == "safetensors"
    assert run("verify", target, *more).code == 0
    # A local path on one side and a server on the other: the options are the server's.
    assert run("diff", checkpoint, target, *more).code == 0
    assert run("diff", target, checkpoint, *more).code == 0
    assert run("convert", target, checkpoint.with_name("c.checkpoint"), *more).code == 0
    assert_identical(asyncckpt.blocking.load(checkpoint.with_name("c.checkpoint")), state())
    assert run("bench", f"{minio_bucket.url}/bench", "--size", "1", "--rounds", "1", *more).code == 0
    assert (minio_bucket.keys(), minio_bucket.uploads()) == (["run/b.safetensors"], [])


def test_a_few_commands_on_gcs(run: Run, checkpoint: Path, gcs_bucket: GcsBucket) -> None:
    options: dict[str, Any] = gcs_bucket.storage_options
    more = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    target = f"{gcs_bucket.url}/run/b.checkpoint"
    assert run("convert", checkpoint, target, *more).code == 0
    assert run("verify", target, *more).code == 0
    listed = run("ls", f"{gcs_bucket.url}/run", "--json", *more).json
    assert [entry["key"] for entry in listed] == ["b.checkpoint"]
