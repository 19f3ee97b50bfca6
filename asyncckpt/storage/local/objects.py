"""Finished objects on the disk: opening, looking, listing, removing.

Everything here blocks and belongs in a worker thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from asyncckpt.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectNotFoundError,
    StorageFullError,
    UnsupportedOperationError,
)
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.local.errors import storage_errors
from asyncckpt.storage.local.folders import (
    MadeFolders,
    is_temp_name,
    open_folder,
    refuse_link,
    split_key,
    sync_folder,
    temp_name,
)

_WRITE_ID = "user.asyncckpt.write-id"
# Without O_NONBLOCK the open of a named pipe would wait for somebody to write into it.
_OBJECT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def version_of(found: os.stat_result) -> str:
    """Differs between any two states of a file's bytes.

    The change time is left out: a file that is replaced or loses its hidden second name keeps its bytes.
    """
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def info_of(key: str, found: os.stat_result, write_id: str | None = None) -> ObjectInfo:
    """What is known of a file, from its stat."""
    return ObjectInfo(key, found.st_size, version_of(found), write_id, _time_of(found))


def _time_of(found: os.stat_result) -> datetime:
    return datetime.fromtimestamp(found.st_mtime_ns / 1e9, UTC)


def keep_write_id(descriptor: int, write_id: str) -> str | None:
    """Write it into the file's attributes; None where there are none, or no room for it."""
    try:
        os.setxattr(descriptor, _WRITE_ID, write_id.encode())
    except (AttributeError, OSError):
        # Not Linux, or not this file system: nothing rests on it.
        return None
    return write_id


def write_id_of(file: int | str) -> str | None:
    """The write id of a file, by its descriptor or path; links are not followed."""
    try:
        return os.getxattr(file, _WRITE_ID, follow_symlinks=isinstance(file, int)).decode(errors="replace")
    except (AttributeError, OSError):
        return None


@contextmanager
def open_object(root: Path, key: str) -> Iterator[tuple[int, os.stat_result]]:
    """The object's descriptor and stat. Raises ObjectNotFoundError, InvalidKeyError for a link."""
    descriptor, found = open_descriptor(root, key)
    try:
        yield descriptor, found
    finally:
        os.close(descriptor)


def open_descriptor(root: Path, key: str, *, follow_link: bool = False) -> tuple[int, os.stat_result]:
    """As `open_object`; the caller closes the descriptor."""
    with _folder_of(root, key) as (folder, name):
        descriptor = os.open(name, _OBJECT & ~os.O_NOFOLLOW if follow_link else _OBJECT, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        _require_object(key, found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def stat_object(root: Path, key: str, *, with_write_id: bool = True) -> ObjectInfo:
    """Raises ObjectNotFoundError, InvalidKeyError for a link."""
    with _folder_of(root, key) as (folder, name):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        refuse_link(found, name)
        _require_object(key, found)
        # There is no getxattr below a folder's descriptor, but the kernel has a name for that folder.
        path = f"/proc/self/fd/{folder}/{name}"
        return info_of(key, found, write_id_of(path) if with_write_id else None)


def delete_object(root: Path, key: str, made: MadeFolders) -> None:
    """Remove the file and sync its folder; one that is not there is no error.

    Of the folders only those go that this storage made and that are empty now.
    """
    with suppress(ObjectNotFoundError):
        stat_object(root, key)
        with _folder_of(root, key) as (folder, name):
            os.unlink(name, dir_fd=folder)
            sync_folder(folder)
    made.remove_empty(root.joinpath(*split_key(key)[0]))


@contextmanager
def _folder_of(root: Path, key: str) -> Iterator[tuple[int, str]]:
    folders, name = split_key(key)
    try:
        with storage_errors(key), open_folder(root, folders) as folder:
            yield folder, name
    except UnsupportedOperationError as error:
        # A file stands where the key has a folder, so there is nothing below it.
        raise ObjectNotFoundError(f"there is no object {key!r}: {error}") from error


def _require_object(key: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ObjectNotFoundError(f"{key!r} is a folder or a device, not an object")


def time_of_new_file(root: Path, token: str) -> datetime | None:
    """The modification time that the file system gives to a file just made; None where none can be made."""
    name = temp_name("clock", token)
    try:
        with storage_errors("."), open_folder(root, []) as folder:
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            try:
                return _time_of(os.fstat(descriptor))
            finally:
                os.close(descriptor)
                os.unlink(name, dir_fd=folder)
    except (AccessDeniedError, ObjectNotFoundError, StorageFullError):
        return None


def walk(root: Path, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
    """Every object whose key begins with `prefix` and follows `start_after`, in the order of the keys' bytes.

    Skips links, unfinished files and names that are not keys. Raises AccessDeniedError for a folder that
    can't be read: a listing that would miss something is none.
    """
    with storage_errors(prefix or "."):
        yield from _walk(root, prefix, start_after.encode(), prefix.rpartition("/")[0])


def _walk(root: Path, prefix: str, after: bytes, folder: str) -> Iterator[ObjectInfo]:
    for name, is_folder in _names(root, folder):
        key = f"{folder}/{name}" if folder else name
        if not _is_key(key):
            continue
        if is_folder:
            inside = f"{key}/"
            passed = inside.encode() < after and not after.startswith(inside.encode())
            if not passed and (inside.startswith(prefix) or prefix.startswith(inside)):
                yield from _walk(root, prefix, after, key)
        elif key.startswith(prefix) and key.encode() > after:
            with suppress(ObjectNotFoundError):
                yield stat_object(root, key, with_write_id=False)


def _names(root: Path, folder: str) -> list[tuple[str, bool]]:
    """Files and folders, sorted as their keys will be: what is in a folder follows its name and a slash."""
    try:
        with open_folder(root, folder.split("/") if folder else []) as descriptor:
            with os.scandir(descriptor) as entries:
                names = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries if not e.is_symlink()]
    except (ObjectNotFoundError, InvalidKeyError, UnsupportedOperationError):
        # Removed or replaced while we walk, or never there; nothing below it is an object.
        return []
    return sorted(names, key=lambda entry: os.fsencode(entry[0]) + b"/" * entry[1])


def _is_key(key: str) -> bool:
    try:
        validate_key(key)
    except InvalidKeyError:
        return False
    return not is_temp_name(key.rpartition("/")[2])
