"""Storages: where the bytes of checkpoints live. S3, GCS and fsspec are imported when they are first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncckpt._aio import run_in_thread
from asyncckpt._lazy import lazy_names
from asyncckpt.storage.base import (
    Capabilities,
    ICheckpointStorage,
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
    new_write_id,
)
from asyncckpt.storage.factory import open_storage, split_location
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from asyncckpt.storage.fsspec.storage import FsspecStorage
    from asyncckpt.storage.gcs.storage import GcsStorage
    from asyncckpt.storage.s3.storage import S3Storage

_HOMES = {"FsspecStorage": "fsspec.storage", "GcsStorage": "gcs.storage", "S3Storage": "s3.storage"}

__all__ = [
    "Capabilities",
    "FsspecStorage",
    "GcsStorage",
    "ICheckpointStorage",
    "LocalStorage",
    "MemoryStorage",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "S3Storage",
    "new_write_id",
    "open_storage",
    "run_in_thread",
    "split_location",
]

__getattr__ = lazy_names(__name__, _HOMES)
