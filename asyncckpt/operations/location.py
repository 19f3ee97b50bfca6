"""Locations: a URL, a path, a `(storage, key)` pair or, for reading, bytes. Every call takes any of them, and `at(…)`
where one needs options of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

from asyncckpt.arguments import Called, checked
from asyncckpt.errors import InvalidArgumentError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.model.checksums import Buffer
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.factory import open_location
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.urls import redacted

StorageOptions = Mapping[str, Any]
Place = str | os.PathLike[str] | tuple[ICheckpointStorage, str] | Buffer
_BYTES_KEY = "bytes"
_KINDS = "a URL, a path, (storage, key) or bytes"


@dataclass(frozen=True, slots=True, repr=False)
class LocationWithOptions:
    """A location that brings its own options; made by `at`."""

    place: Place
    storage_options: StorageOptions | None = None
    format: str | ICheckpointFormat | None = None

    def __repr__(self) -> str:
        named = self.place if isinstance(self.place, str | os.PathLike) else type(self.place).__name__
        return f"at({redacted(named)!r})"


Location = Annotated[Place | LocationWithOptions, Called(_KINDS)]


@checked
def at(
    location: Location,
    *,
    storage_options: StorageOptions | None = None,
    format: str | ICheckpointFormat | None = None,
) -> LocationWithOptions:
    """A location with the options of its storage and its format: what a call says of these holds for other locations.

    `convert(at("s3://a/x.mgb", storage_options=minio, format=MetagraphFormat(key=key)), "x.safetensors")`.
    """
    place, storage_options, format = with_options(location, storage_options, format)
    return LocationWithOptions(place, storage_options, format)


def with_options(
    location: Location,
    storage_options: StorageOptions | None,
    format: str | ICheckpointFormat | None,
) -> tuple[Place, StorageOptions | None, str | ICheckpointFormat | None]:
    """The place, and the options that hold there: the location's own before those of the call."""
    if not isinstance(location, LocationWithOptions):
        return location, storage_options, format
    own = location.storage_options
    return location.place, storage_options if own is None else own, location.format or format


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

    Raises InvalidKeyError, MissingExtraError, and InvalidArgumentError for what is not a location: bytes can't
    be written to.
    """
    location, storage_options, _ = with_options(location, storage_options, None)
    if isinstance(location, tuple):
        storage, key = location
        if not isinstance(storage, ICheckpointStorage):
            raise InvalidArgumentError(
                f"a location pair is (storage, key), not ({type(storage).__name__}, …)"
            )
        # A set's files are named after the key, so one that is not a key must not get as far as that.
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
        raise InvalidArgumentError(f"a location is {_KINDS}, not {type(location).__name__}")
    opened, key = await open_location(location, storage_options=storage_options)
    if isinstance(opened, LocalStorage):
        # The caller named this very file; in caches of models it is often a link, and so are its siblings.
        opened = LocalStorage(opened.root, follow_links=True)
    async with opened as storage:
        yield ObjectLocation(storage, key, redacted(os.fspath(location)))
