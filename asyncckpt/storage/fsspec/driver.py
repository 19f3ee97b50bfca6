"""Single calls of an fsspec filesystem: on the loop where it is asynchronous, in joined threads otherwise.

Only single-object calls are made: fsspec's bulk calls leave their children running when they are cancelled.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from asyncckpt._aio import WorkerThreads, run_in_thread
from asyncckpt.errors import MissingExtraError, UnsupportedOperationError
from asyncckpt.storage.fsspec.errors import translating
from asyncckpt.storage.urls import Secrets

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a kind of filesystem, beyond what fsspec asks of all."""

    atomic: bool = False
    """A put shows the whole object or nothing."""
    exclusive: bool = False
    """`mode="create"` is decided by the store, not by a look before the write."""
    folders: bool = False
    """A folder must be made before there can be a file in it."""
    threads: int = 1
    """How many calls may run at once; one, unless it is known to be safe."""
    puts_files: bool = False
    """Large objects go through put_file, which reads the file bit by bit."""


_OBJECT_STORE = Traits(atomic=True, threads=4)
_KNOWN: dict[str, Traits] = {
    "fsspec.implementations.memory.MemoryFileSystem": Traits(atomic=True, exclusive=True, threads=4),
    "fsspec.implementations.local.LocalFileSystem": Traits(folders=True, threads=4, puts_files=True),
    "s3fs.core.S3FileSystem": Traits(atomic=True, exclusive=True, threads=4),
    "gcsfs.core.GCSFileSystem": Traits(atomic=True, exclusive=True, threads=4),
    "adlfs.spec.AzureBlobFileSystem": _OBJECT_STORE,
}


def traits_of(kind: type) -> Traits:
    """The traits of a class of filesystems; one that is not known is promised nothing."""
    for ancestor in kind.__mro__:
        known = _KNOWN.get(f"{ancestor.__module__}.{ancestor.__name__}")
        if known is not None:
            return known
    is_async = bool(getattr(kind, "async_impl", False))
    return Traits(folders=not is_async, puts_files=not is_async)


def is_memory(filesystem: Any) -> bool:
    return any(kind.__name__ == "MemoryFileSystem" for kind in type(filesystem).__mro__)


def unwrapped(filesystem: Any) -> Any:
    """The synchronous filesystem inside fsspec's async wrapper, whose threads outlive a cancel."""
    inner = getattr(filesystem, "sync_fs", None)
    return filesystem if inner is None else inner


class Driver:
    """One filesystem and how it is called. `owned` ones are closed with the storage."""

    def __init__(self, filesystem: Any, *, owned: bool, secrets: Secrets) -> None:
        self.filesystem = unwrapped(filesystem)
        base = getattr(self.filesystem, "fs", None)  # fsspec's DirFileSystem adds a folder to another one
        self.traits = traits_of(type(self.filesystem if base is None else base))
        self.threads = WorkerThreads(self.traits.threads, name="fsspec")
        self.on_loop = bool(self.filesystem.async_impl and self.filesystem.asynchronous)
        self.owned = owned
        self._secrets = secrets

    async def translating(self, what: str, call: Awaitable[T]) -> T:
        """Await something of this filesystem. Raises StorageError subclasses, without its secrets."""
        return await translating(what, call, self._secrets)

    async def call(self, what: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the filesystem in order to do `what`; a thread is over before a cancel is seen.

        Raises StorageError subclasses.
        """
        return await self.translating(what, self._call(name, *args, **kwargs))

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.on_loop:
            return await getattr(self.filesystem, f"_{name}")(*args, **kwargs)
        return await self.threads.run(partial(getattr(self.filesystem, name), *args, **kwargs))

    def lists_whole_trees(self) -> bool:
        """Whether `find` is an object store's own: fsspec's takes an error for an empty folder."""
        asyn = sys.modules.get("fsspec.asyn")  # where it was never imported, this is none of its classes
        if asyn is None or hasattr(self.filesystem, "fs"):
            return False
        kind, base = type(self.filesystem), asyn.AsyncFileSystem
        return issubclass(kind, base) and kind._find is not base._find

    async def aclose(self) -> None:
        await self.threads.close()
        if not (self.owned and self.on_loop):
            return
        for name in ("_s3", "_session"):
            close = getattr(getattr(self.filesystem, name, None), "close", None)
            closing = close() if close is not None else None
            if inspect.isawaitable(closing):
                await self.translating("closing", closing)


def class_of(url: str) -> type | None:
    """The filesystem class that serves a URL, None for a chain of them.

    Raises UnsupportedOperationError for an unknown scheme, MissingExtraError when its driver is missing.
    """
    import fsspec

    if "::" in url:
        return None
    protocol = fsspec.core.split_protocol(url)[0] or "file"
    try:
        kind: type = fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise UnsupportedOperationError(f"fsspec knows no filesystem for {protocol}://") from error
    except ImportError as error:
        raise MissingExtraError(f"{protocol}:// needs its fsspec driver: {error}") from error
    return kind


@dataclass(frozen=True, slots=True)
class Address:
    """Where a driver finds its filesystem. Both parts may hold secrets, so the repr has neither."""

    url: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.url, self.options)


async def open_driver(what: str, address: Address, kind: type | None) -> tuple[Driver, str]:
    """The driver for an address and the path that it names; made in a thread, because some connect at once.

    Raises StorageError subclasses.
    """
    make = partial(_make, address.url, kind, dict(address.options))
    filesystem, path = await translating(what, run_in_thread(make), address.secrets)
    return Driver(filesystem, owned=True, secrets=address.secrets), path


def _make(url: str, kind: Any, options: dict[str, Any]) -> tuple[Any, str]:
    import fsspec

    fresh = {"skip_instance_cache": True, "use_listings_cache": False}
    if kind is None:
        filesystem, path = fsspec.core.url_to_fs(url, **{**options, **fresh})
        return filesystem, str(path)
    options = {**kind._get_kwargs_from_urls(url), **options, **fresh}
    if kind.async_impl:
        options["asynchronous"] = True
    return kind(**options), str(kind._strip_protocol(url))
