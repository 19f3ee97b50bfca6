"""Locations: a URL, a path, a `(storage, key)` pair or, for reading, bytes. Every call takes any of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

from asyncckpt.arguments import Called
from asyncckpt.errors import InvalidArgumentError
from asyncckpt.model.checksums import Buffer
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.factory import open_location
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.urls import redacted

Location = Annotated[
    str | os.PathLike[str] | tuple[ICheckpointStorage, str] | Buffer,
    Called("a URL, a path, (storage, key) or bytes"),
]
StorageOptions = Mapping[str, Any]
_BYTES_KEY = "bytes"


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """An object: the storage that has it, and its key. `display` is how errors call it, without secrets."""

    storage: ICheckpointStorage
    key: str
    display: str

    @property
    def name(self) -> str:
        """The key without folders."""
        return PurePosixPath(self.key).name

    def sibling(self, name: str) -> ObjectLocation:
        """The object of that name in the same folder."""
        return ObjectLocation(self.storage, beside(self.key, name), beside(self.display, name))


def beside(path: str, name: str) -> str:
    """The path or URL of another file in the same folder."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"


@asynccontextmanager
async def resolve(
    location: Location, storage_options: StorageOptions | None = None, *, writing: bool = False
) -> AsyncIterator[ObjectLocation]:
    """The object that a location means; a storage that was opened for it is closed at the end.

    Raises InvalidKeyError, MissingExtraError, and InvalidArgumentError for what is no location: bytes can't be written
    to.
    """
    if isinstance(location, tuple):
        storage, key = location
        if not isinstance(storage, ICheckpointStorage):
            raise InvalidArgumentError(
                f"a location pair is (storage, key), not ({type(storage).__name__}, …)"
            )
        # A set's files are named after the key, so one that is no key must not get as far as that.
        yield ObjectLocation(storage, validate_key(key), f"{storage!r}/{key}")
        return
    if isinstance(location, bytes | bytearray | memoryview):
        if writing:
            raise InvalidArgumentError(
                "bytes are a location for reading only; to save into memory, give (MemoryStorage(), key)"
            )
        memory = MemoryStorage()
        await memory.write(_BYTES_KEY, location)
        yield ObjectLocation(memory, _BYTES_KEY, "bytes in memory")
        return
    if not isinstance(location, str | os.PathLike):
        raise InvalidArgumentError(
            f"a location is a URL, a path, (storage, key) or bytes, not {type(location).__name__}"
        )
    opened, key = await open_location(location, storage_options=storage_options)
    if isinstance(opened, LocalStorage):
        # The caller named this very file; in caches of models it is often a link, and so are its siblings.
        opened = LocalStorage(opened.root, follow_links=True)
    async with opened as storage:
        yield ObjectLocation(storage, key, redacted(os.fspath(location)))
