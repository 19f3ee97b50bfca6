"""Storages: where the bytes of checkpoints live. S3 and GCS are imported when they are first opened."""

from asyncckpt._aio import run_in_thread
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

__all__ = [
    "Capabilities",
    "ICheckpointStorage",
    "LocalStorage",
    "MemoryStorage",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "new_write_id",
    "open_storage",
    "run_in_thread",
    "split_location",
]
