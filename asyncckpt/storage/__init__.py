"""Storages: where the bytes of checkpoints live, and all that the author of another one needs.

S3, GCS and fsspec are imported when they are first asked for. The errors that hooks raise are in `asyncckpt`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncckpt._aio import run_in_thread
from asyncckpt._lazy import lazy_names
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.ranges import ByteRange, MergedRange, MergePolicy
from asyncckpt.storage.base import ICheckpointStorage, new_write_id
from asyncckpt.storage.factory import open_storage, split_location
from asyncckpt.storage.listing import Page
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.objects import Capabilities, NotAtomicWarning, ObjectInfo, ObjectReader, ObjectWriter
from asyncckpt.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from asyncckpt.storage.fsspec.storage import FsspecStorage
    from asyncckpt.storage.gcs.storage import GcsStorage
    from asyncckpt.storage.s3.storage import S3Storage

_HOMES = {"FsspecStorage": "fsspec.storage", "GcsStorage": "gcs.storage", "S3Storage": "s3.storage"}

__all__ = [
    "Buffer",
    "ByteRange",
    "Capabilities",
    "FsspecStorage",
    "GcsStorage",
    "ICheckpointStorage",
    "LocalStorage",
    "MemoryStorage",
    "MergePolicy",
    "MergedRange",
    "NotAtomicWarning",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "Page",
    "RetryPolicy",
    "S3Storage",
    "new_write_id",
    "open_storage",
    "run_in_thread",
    "split_location",
]

__getattr__ = lazy_names(__name__, _HOMES)
