"""torch.distributed.checkpoint in one process: its file system writer locally, its fsspec writer for S3."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders.base import SynchronousContender
from benchmarks.states import State
from tests.servers import S3Bucket


class _TorchDcp(SynchronousContender):
    name = "torch DCP"

    async def open(self, state: State) -> None:
        import torch

        await super().open(state)
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
        self._tensors = {name: torch.from_numpy(array) for name, array in state.arrays.items()}

    def _writer(self) -> Any: ...

    def _reader(self) -> Any: ...

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(self._tensors, storage_writer=self._writer(), no_dist=True)

    def load(self) -> dict[str, np.ndarray]:
        import torch
        import torch.distributed.checkpoint as dcp

        tensors = {name: torch.empty_like(tensor) for name, tensor in self._tensors.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(tensors, storage_reader=self._reader(), no_dist=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}


class LocalDcp(_TorchDcp):
    """With fsync, which is its default."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "dcp"

    def _writer(self) -> Any:
        from torch.distributed.checkpoint import FileSystemWriter

        return FileSystemWriter(self._folder, sync_files=True)

    def _reader(self) -> Any:
        from torch.distributed.checkpoint import FileSystemReader

        return FileSystemReader(self._folder)

    async def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class S3Dcp(_TorchDcp):
    """Through fsspec and s3fs."""

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._url = f"{bucket.url}/dcp"

    def _writer(self) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(self._url, **self._bucket.storage_options)

    def _reader(self) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(self._url, **self._bucket.storage_options)

    async def forget(self) -> None:
        self._bucket.delete(*self._bucket.keys("dcp/"))
