"""Every code block of the README and the docs runs, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import asyncckpt
from tests.docs.pages import PAGES, ROOT, blocks_of, links_of, run_page
from tests.servers import GcsBucket, S3Bucket

pytestmark = pytest.mark.thorough

SERVERS = frozenset({"minio", "gcs"})
WITH_CODE = [page for page in PAGES if blocks_of(page)]
ON_SERVERS = [page for page in WITH_CODE if any(block.needs & SERVERS for block in blocks_of(page))]
# What a block can need besides a server: a format whose packages may not be installed.
FORMATS = frozenset(asyncckpt.format_names())


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(MemoryFileSystem, "store", {})  # fsspec's memory belongs to the process
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])


@pytest.mark.parametrize("page", WITH_CODE, ids=_named)
async def test_code_runs(page: Path) -> None:
    assert await run_page(page, at_hand=FORMATS, replaced={}) > 0 or page in ON_SERVERS


@pytest.mark.parametrize("page", ON_SERVERS, ids=_named)
async def test_code_runs_on_servers(
    page: Path, minio_bucket: S3Bucket, gcs_bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = minio_bucket.server
    # Blocks without options rely on what the environment says, as they would on AWS.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", server.region)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint_url)
    replaced = {
        "s3://bucket": minio_bucket.url,
        '"my-bucket"': repr(minio_bucket.name),
        "http://127.0.0.1:9000": server.endpoint_url,
        "minio-user": server.access_key,
        "minio-password": server.secret_key,
        "gs://bucket": gcs_bucket.url,
        "http://127.0.0.1:4443": gcs_bucket.server.endpoint_url,
    }
    count = await run_page(page, at_hand=SERVERS | FORMATS, replaced=replaced)
    assert count > 0
    assert minio_bucket.uploads() == []


def test_every_need_is_one_that_is_known() -> None:
    unknown = {need for page in WITH_CODE for block in blocks_of(page) for need in block.needs}
    assert unknown <= SERVERS | FORMATS


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [target for target in links_of(page) if not (page.parent / target).exists()]
    assert missing == []


def test_readme_and_ci_run_the_same_command() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^make test$", readme, re.M)
    assert re.search(r"^step make test$", ci, re.M)
    assert re.search(r"^make demo$", readme, re.M)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [page.name for page in PAGES if page.parent == ROOT / "docs" and page.name != "index.md"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_every_module_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(
        r"`((?:formats|storage|operations|model|_aio|cli|testing)(?:/\w+)*|tests/[\w/]+\.py)`", text
    )
    assert len(named) > 12
    for name in named:
        path = ROOT / name if name.startswith("tests/") else ROOT / "asyncckpt" / name
        assert path.exists() or path.with_suffix(".py").exists(), f"docs/architecture.md names {name}"


def test_every_error_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    errors = [name for name in asyncckpt.__all__ if name.endswith("Error")]
    assert [name for name in errors if f"`{name}`" not in text] == []
