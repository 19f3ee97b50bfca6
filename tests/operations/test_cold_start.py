"""The first checkpoint of a process: nothing is imported on the thread of the event loop, whatever the scheme.

By what is imported where, not by the clock: a warm process hides such imports, so each test starts a fresh one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "asyncckpt"
SERVERS = [
    pytest.param("minio_bucket", "s3", marks=pytest.mark.server),
    pytest.param("minio_tls_bucket", "s3", marks=pytest.mark.server),
    pytest.param("gcs_bucket", "gs", marks=pytest.mark.server),
]


def cold_start(
    url: str, options: dict[str, Any] | None = None, *, opened: bool = False
) -> dict[str, list[str]]:
    """What a fresh process imports for every operation on a URL, on the loop's thread and in others."""
    asked = {"url": url, "options": options, "opened": opened}
    done = subprocess.run(
        [sys.executable, "-m", "tests.operations.cold_start"],
        cwd=ROOT,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imports: dict[str, list[str]] = json.loads(done.stdout)
    return imports


def formats_among(files: list[str]) -> set[str]:
    folder = PACKAGE / "formats"
    inside = [Path(file).relative_to(folder) for file in files if Path(file).is_relative_to(folder)]
    return {".".join(path.with_suffix("").parts) for path in inside}


def test_a_local_path_imports_only_the_formats_that_it_meets(tmp_path: Path) -> None:
    imports = cold_start(str(tmp_path / "x.checkpoint"))
    assert imports["on_loop"] == []
    # Converted to safetensors, and once asked for as SDZ; of the others nothing.
    assert formats_among(imports["in_threads"]) >= {"safetensors.file", "sdz.format"}
    others = {"safetensors.set", "gptrs.format", "mldf.format", "metagraph.format", "mlcp.set"}
    assert not formats_among(imports["in_threads"]) & others


@pytest.mark.parametrize("url", ["memory://run/x.checkpoint", "simplecache::memory://run/x.checkpoint"])
def test_a_scheme_of_fsspec(url: str) -> None:
    imports = cold_start(url)
    assert imports["on_loop"] == []
    assert any("/fsspec/" in file for file in imports["in_threads"])


@pytest.mark.parametrize(("fixture", "scheme"), SERVERS)
def test_a_bucket(fixture: str, scheme: str, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(fixture)
    imports = cold_start(f"{scheme}://{bucket.name}/run/x.checkpoint", bucket.storage_options)
    assert imports["on_loop"] == []
    driver = {"s3": "/s3fs/", "gs": "/gcsfs/"}[scheme]
    assert any(driver in file for file in imports["in_threads"])


@pytest.mark.parametrize(("fixture", "scheme"), SERVERS)
def test_a_bucket_that_is_opened_first_imports_its_driver_in_a_thread(
    fixture: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    """`open_storage` is no coroutine, so it imports asyncckpt's own modules where it is called; they are small."""
    bucket = request.getfixturevalue(fixture)
    url = f"{scheme}://{bucket.name}/run/x.checkpoint"
    imports = cold_start(url, bucket.storage_options, opened=True)
    assert [file for file in imports["on_loop"] if "site-packages" in file] == []
    assert len(imports["on_loop"]) <= 20
