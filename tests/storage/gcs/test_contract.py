"""The storage contract on fake-gcs-server, resumable sessions kept as Google documents them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import pytest_asyncio

from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.testing import StorageContract
from tests.guards import call_blocking
from tests.servers import GcsBucket
from tests.storage.gcs.front import QUANTUM, GcsFront


class TestGcsContract(StorageContract):
    part_bytes = QUANTUM
    exhaustive = False
    skips: ClassVar = {
        "any_order": "a resumable session takes its chunks in order",
        "server_copy": "nor does it take ranges of other objects",
        "map": "the bytes are elsewhere",
    }
    front: GcsFront

    @pytest_asyncio.fixture(autouse=True)
    async def _medium(self, gcs_bucket: GcsBucket, sweep_seed: int) -> AsyncIterator[None]:
        self.sweep_seed = sweep_seed
        async with GcsFront(gcs_bucket).running() as self.front:
            yield

    async def make_storage(self) -> ICheckpointStorage:
        return GcsStorage(self.front.bucket.name, "run/1", storage_options=self.front.storage_options)

    async def raw_objects(self) -> dict[str, bytes]:
        bucket = self.front.bucket
        keys = call_blocking(bucket.keys)
        return {key.removeprefix("run/1/"): call_blocking(bucket.get, key) for key in keys}

    async def raw_leftovers(self) -> Sequence[str]:
        return self.front.open_sessions

    async def raw_put(self, key: str, data: bytes) -> None:
        call_blocking(self.front.bucket.put, f"run/1/{key}", data)
