"""s3fs as its documentation shows it: `open`, write, read, with the defaults."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.contenders.base import SynchronousContender
from benchmarks.states import State
from tests.servers import S3Bucket


class PlainS3fs(SynchronousContender):
    """The tensors' bytes one after another; it has no index to write or to read."""

    name = "s3fs"

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._path = f"{bucket.name}/s3fs/model.bin"

    async def open(self, state: State) -> None:
        import s3fs

        await super().open(state)
        # From fsspec's cache of instances: one that is collected while our loop runs would close itself on it.
        self._filesystem: Any = s3fs.S3FileSystem(**self._bucket.storage_options, use_listings_cache=False)

    def save(self) -> None:
        with self._filesystem.open(self._path, "wb") as file:
            for array in self.state.arrays.values():
                file.write(array.reshape(-1).view(np.uint8).data)

    def load(self) -> dict[str, np.ndarray]:
        arrays = {name: np.empty_like(array) for name, array in self.state.arrays.items()}
        with self._filesystem.open(self._path, "rb") as file:
            for array in arrays.values():
                file.readinto(array.reshape(-1).view(np.uint8).data)
        return arrays

    async def forget(self) -> None:
        self._bucket.delete(*self._bucket.keys("s3fs/"))
