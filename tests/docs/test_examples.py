"""Every example runs, in a process of its own, and does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import asyncckpt
from tests.docs.pages import ROOT
from tests.servers import S3Bucket

pytestmark = pytest.mark.thorough

EXAMPLES = ROOT / "examples"
PACKAGE = EXAMPLES / "custom_format"
# What each prints when it did its work.
SAID = {
    "cancel_and_timeout.py": ("TimeoutError", "drained", "committed=False", "files left: none"),
    "convert_to_safetensors.py": ("-> safetensors", "the same"),
    "custom_storage.py": ("run/step-7.checkpoint", "verified: True"),
    "demo.py": ("100 %", "ok: 32 tensors", "(at ", "the old one still loads", "the error names the tensor"),
    "lazy_slice_s3.py": ("131,072 bytes wanted, 1,048,576 fetched", "layers.0.weight, layers.1.weight"),
    "orchestrator.py": ("step 300", "3 checkpoints in", "heartbeats"),
    "quickstart.py": ("saved 2 tensors", "still one array", ": ok", "is refused"),
    "sync_code.py": ("resumed from step 2", "verified: True"),
}
NEEDS_FORMAT = {"convert_to_safetensors.py": "safetensors"}
ON_S3 = ("lazy_slice_s3.py", "orchestrator.py")
RUNNABLE = [name for name in SAID if NEEDS_FORMAT.get(name, "mlcp") in asyncckpt.format_names()]


def run(*arguments: str, folder: Path, **environment: str) -> str:
    """Run Python in a folder that is also its place for temporary files; returns what it printed."""
    process = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
    return process.stdout


@pytest.mark.parametrize("name", RUNNABLE)
def test_example(name: str, tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / name), folder=tmp_path)
    assert [text for text in SAID[name] if text not in printed] == []
    assert list(tmp_path.iterdir()) == [], "the example left files behind"


@pytest.mark.parametrize("name", ON_S3)
def test_example_on_s3(name: str, tmp_path: Path, minio_bucket: S3Bucket) -> None:
    printed = run(
        str(EXAMPLES / name),
        folder=tmp_path,
        ASYNCCKPT_EXAMPLE_S3_URL=f"{minio_bucket.url}/examples",
        ASYNCCKPT_EXAMPLE_S3_OPTIONS=json.dumps(minio_bucket.storage_options),
    )
    assert [text for text in SAID[name] if text not in printed] == []
    assert minio_bucket.keys() == []
    assert minio_bucket.uploads() == []


def test_every_example_is_run() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")}
    assert found == set(SAID)
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {PACKAGE.name}


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """The example package as pip would install it, made from its own pyproject; the value is a PYTHONPATH."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return os.pathsep.join((str(info.parent), str(PACKAGE), str(ROOT)))


def test_an_installed_format_is_listed(installed: str, tmp_path: Path) -> None:
    listing = "import asyncckpt; print(asyncckpt.format_names())"
    assert "'tiny'" in run("-c", listing, folder=tmp_path, PYTHONPATH=installed)
    assert "'tiny'" not in run("-c", listing, folder=tmp_path, PYTHONPATH=str(ROOT))


def test_the_custom_format_passes_the_contract(installed: str, tmp_path: Path) -> None:
    test = tmp_path / "test_tiny.py"
    test.write_text((PACKAGE / "test_tiny.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    printed = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(test)),
        folder=tmp_path,
        PYTHONPATH=installed,
        PYTEST_ADDOPTS="",
    )
    assert "passed" in printed
    assert "failed" not in printed
    assert "skipped" not in printed
