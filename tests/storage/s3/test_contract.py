"""The storage contract on MinIO, on MinIO with TLS, and on SeaweedFS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.s3.storage import S3Storage
from asyncckpt.testing.storage.contract import StorageContract
from tests.guards import call_blocking
from tests.servers import S3Bucket

PREFIX = "root/of it"


class _S3Contract(StorageContract):
    part_bytes = 5 * 1024 * 1024
    exhaustive = False
    skips: ClassVar = {"map": "the bytes are elsewhere"}
    bucket: S3Bucket

    @pytest.fixture(autouse=True)
    def _use_sweep_seed(self, sweep_seed: int) -> None:
        self.sweep_seed = sweep_seed

    async def make_storage(self) -> ICheckpointStorage:
        return S3Storage(self.bucket.name, PREFIX, storage_options=self.bucket.storage_options)

    async def raw_objects(self) -> dict[str, bytes]:
        keys = call_blocking(self.bucket.keys)
        return {key.removeprefix(f"{PREFIX}/"): call_blocking(self.bucket.get, key) for key in keys}

    async def raw_leftovers(self) -> Sequence[str]:
        return [f"{key} {upload}" for key, upload in call_blocking(self.bucket.uploads)]

    async def raw_put(self, key: str, data: bytes) -> None:
        call_blocking(self.bucket.put, f"{PREFIX}/{key}", data)


class TestMinio(_S3Contract):
    @pytest.fixture(autouse=True)
    def _use_bucket(self, minio_bucket: S3Bucket) -> None:
        self.bucket = minio_bucket


class TestSeaweedFS(_S3Contract):
    @pytest.fixture(autouse=True)
    def _use_bucket(self, seaweedfs_bucket: S3Bucket) -> None:
        self.bucket = seaweedfs_bucket
