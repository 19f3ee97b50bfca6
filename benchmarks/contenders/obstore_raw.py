"""obstore, as raw as it gets: no format, no checksums, no payload signing, views in, ranges copied into arrays."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from benchmarks.contenders.base import INTO, LOAD, SAVE, Contender, Operation
from benchmarks.states import MIB, State
from tests.servers import S3Bucket

KEY = "obstore/model.bin"
_PART_BYTES = 16 * MIB
_IN_FLIGHT = 8
_SMALL_TENSOR_BYTES = MIB


class RawObstore(Contender):
    """Offsets are kept in memory: it has no index to write or to read."""

    name = "obstore"

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket

    async def open(self, state: State) -> None:
        from obstore.store import S3Store

        await super().open(state)
        server = self._bucket.server
        self._store = S3Store(
            self._bucket.name,
            endpoint=server.endpoint_url,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
            region=server.region,
            virtual_hosted_style_request=False,
            unsigned_payload=True,
            client_options={"allow_http": True},
        )
        self._views = [array.reshape(-1).view(np.uint8).data for array in state.arrays.values()]
        ends = np.cumsum([len(view) for view in self._views]).tolist()
        self._ranges = list(zip([0, *ends[:-1]], ends, strict=True))

    def operations(self) -> list[Operation]:
        return [
            Operation(SAVE, self._save),
            Operation(LOAD, self._load, fresh=True),
            Operation(INTO, lambda: self._fill(self.state.targets)),
        ]

    async def _save(self) -> None:
        import obstore

        await obstore.put_async(
            self._store,
            KEY,
            self._views,
            chunk_size=_PART_BYTES,
            max_concurrency=_IN_FLIGHT,
            use_multipart=True,
        )

    async def _load(self) -> dict[str, np.ndarray]:
        arrays = {name: np.empty_like(array) for name, array in self.state.arrays.items()}
        await self._fill(arrays)
        return arrays

    async def _fill(self, arrays: dict[str, np.ndarray]) -> None:
        import obstore

        flat = [array.reshape(-1).view(np.uint8) for array in arrays.values()]
        if len(flat[0]) < _SMALL_TENSOR_BYTES:
            starts, ends = [r[0] for r in self._ranges], [r[1] for r in self._ranges]
            found = await obstore.get_ranges_async(self._store, KEY, starts=starts, ends=ends)
            await asyncio.to_thread(_copy_all, flat, found)
            return
        slots = asyncio.Semaphore(_IN_FLIGHT)

        async def fill(number: int) -> None:
            start, end = self._ranges[number]
            async with slots:
                data = await obstore.get_range_async(self._store, KEY, start=start, end=end)
                await asyncio.to_thread(_copy, flat[number], data)

        async with asyncio.TaskGroup() as group:
            for number in range(len(flat)):
                group.create_task(fill(number))

    async def forget(self) -> None:
        import obstore

        await obstore.delete_async(self._store, KEY)


def _copy(target: np.ndarray, data: Any) -> None:
    np.copyto(target, np.frombuffer(data, np.uint8))


def _copy_all(targets: list[np.ndarray], found: list[Any]) -> None:
    for target, data in zip(targets, found, strict=True):
        _copy(target, data)
