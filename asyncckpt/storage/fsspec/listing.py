"""Listing an fsspec filesystem: never from its cache, and an error is never an empty list."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from asyncckpt._aio import fan_out
from asyncckpt.errors import InvalidKeyError, ObjectNotFoundError, StorageError
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.fsspec.driver import Driver
from asyncckpt.storage.urls import is_web_address, split_query

_CONCURRENCY = 8
_VERSION_FIELDS = (
    "ETag",
    "etag",
    "generation",
    "VersionId",
    "version_id",
    "LastModified",
    "last_modified",
    "mtime",
    "modified",
    "updated",
    "created",
    "ino",
    "size",
)
_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")


class Folder:
    """The root of a storage inside a filesystem: keys to paths, and back."""

    def __init__(self, driver: Driver, root: str) -> None:
        self._driver = driver
        stripped = str(driver.filesystem._strip_protocol(root)) if root else ""
        # A web address may be signed: the signature goes along with every path, and is in no key.
        stripped, self._query = split_query(stripped)
        self._is_web = is_web_address(stripped)
        self.root = stripped.rstrip("/")
        self._lead = f"{self.root}/" if stripped else ""

    def path(self, key: str) -> str:
        """Raises InvalidKeyError for a key with a query, which would be shown wherever keys are."""
        if self._is_web and "?" in key:
            raise InvalidKeyError(
                f"{key.partition('?')[0]!r} has a query behind it; a query belongs to the URL of the storage"
            )
        return self._lead + key + self._query

    def key(self, path: str) -> str:
        stripped, _ = split_query(str(self._driver.filesystem._strip_protocol(path)))
        return stripped[len(self._lead) :] if self._lead else stripped.lstrip("/")

    async def objects(self, prefix: str) -> list[ObjectInfo]:
        """Every file whose key begins with the prefix, in the order of the keys' bytes."""
        self._driver.filesystem.invalidate_cache()
        start = (
            self.path(prefix.rpartition("/")[0]) if "/" in prefix else self._lead.rstrip("/") + self._query
        )
        what = f"list of {prefix!r}"
        found: list[ObjectInfo]
        if self._driver.lists_whole_trees():
            entries = await self._driver.call(what, "find", start, detail=True)
            found = self._matching(entries.values(), prefix)
        else:
            found = await self._walk(start, prefix, what)
        return sorted(found, key=lambda info: info.key.encode())

    async def _walk(self, start: str, prefix: str, what: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        folders = [start]

        async def entries_of(folder: str) -> list[Mapping[str, Any]]:
            try:
                return list(await self._driver.call(what, "ls", folder, detail=True))
            except ObjectNotFoundError:
                return []  # not made yet, or just deleted

        while folders:
            levels = await fan_out(entries_of, folders, limit=_CONCURRENCY)
            parents, folders = set(folders), []
            for entries in levels:
                found += self._matching(entries, prefix)
                folders += [
                    entry["name"]
                    for entry in entries
                    if entry["type"] == "directory"
                    and entry["name"] not in parents
                    and self._may_hold(entry["name"], prefix)
                ]
        return found

    def _matching(self, entries: Any, prefix: str) -> list[ObjectInfo]:
        files = ((self.key(entry["name"]), entry) for entry in entries if entry["type"] == "file")
        return [info_of(entry, key) for key, entry in files if key and key.startswith(prefix)]

    def _may_hold(self, folder: str, prefix: str) -> bool:
        key = self.key(folder).rstrip("/") + "/"
        return key.startswith(prefix) or prefix.startswith(key)


def info_of(entry: Mapping[str, Any], key: str) -> ObjectInfo:
    """What a filesystem says of a file. The version is made of all that changes when the bytes do.

    Raises StorageError for one whose size it does not say.
    """
    if entry.get("size") is None:
        raise StorageError(f"{key!r}: the filesystem does not say how large it is, so it can't be used here")
    facts = [(name, str(entry[name])) for name in _VERSION_FIELDS if entry.get(name) is not None]
    version = hashlib.blake2s(repr(facts).encode(), digest_size=16).hexdigest()
    times = (_time(entry[name]) for name in _TIME_FIELDS if entry.get(name) is not None)
    return ObjectInfo(key, int(entry["size"]), version, None, next((t for t in times if t is not None), None))


def _time(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return None
    return None
