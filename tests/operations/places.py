"""The storages that the operations are tested on: memory, local, MinIO and fake-gcs alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.s3.storage import S3Storage

SMALL_PART_BYTES = 256 * 1024
S3_PART_BYTES = 5 * 1024 * 1024

EVERYWHERE = [
    "memory",
    "local",
    pytest.param("minio", marks=pytest.mark.server),
    pytest.param("gcs", marks=pytest.mark.server),
]
HERE = ["memory", "local"]
SERVERS = [pytest.param("minio", marks=pytest.mark.server), pytest.param("gcs", marks=pytest.mark.server)]


@dataclass(frozen=True)
class Medium:
    """A storage, and a look at what is really there around it."""

    storage: ICheckpointStorage
    leftovers: Callable[[], list[str]]
    """Temporary files and unfinished uploads."""
    exhaustive: bool


@asynccontextmanager
async def open_medium(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Medium]:
    """One of the storages by name, with throw-away data and parts as small as it takes them."""
    if kind == "memory":
        memory = MemoryStorage(part_bytes=SMALL_PART_BYTES)
        yield Medium(memory, lambda: memory.unfinished, True)
    elif kind == "local":
        root = tmp_path / "store"
        root.mkdir()
        async with LocalStorage(root, part_bytes=SMALL_PART_BYTES) as local:
            yield Medium(local, lambda: _temporary_files(root), True)
    elif kind == "minio":
        bucket = request.getfixturevalue("minio_bucket")
        async with S3Storage(
            bucket.name, storage_options=bucket.storage_options, part_bytes=S3_PART_BYTES
        ) as storage:
            yield Medium(storage, lambda: [str(upload) for upload in bucket.uploads()], False)
    else:
        bucket = request.getfixturevalue("gcs_bucket")
        async with GcsStorage(
            bucket.name, storage_options=bucket.storage_options, part_bytes=SMALL_PART_BYTES
        ) as gcs:
            yield Medium(gcs, list, False)


def _temporary_files(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*") if path.is_file() and path.name.startswith(".")]
