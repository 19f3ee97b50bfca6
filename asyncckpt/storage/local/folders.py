"""Folders below the root, opened step by step so that no symbolic link is ever followed.

Everything here blocks and belongs in a worker thread.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncckpt.errors import InvalidKeyError, ObjectNotFoundError, UnsupportedOperationError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_SYNC_OF_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
_TEMP_NAME = re.compile(r"\..*\.[0-9a-f]{32}\.tmp", re.DOTALL)
_MAX_NAME_BYTES = 255


def temp_name(name: str, token: str) -> str:
    """The hidden name under which a file is written before it gets its own; `token` is 32 hex digits."""
    suffix = f".{token}.tmp"
    stem = name.encode()[: _MAX_NAME_BYTES - len(suffix) - 1].decode(errors="ignore")
    return f".{stem}{suffix}"


def is_temp_name(name: str) -> bool:
    """Whether the name is one that `temp_name` makes."""
    return _TEMP_NAME.fullmatch(name) is not None


def split_key(key: str) -> tuple[list[str], str]:
    """The folders of a key and its last name. Raises InvalidKeyError for names of unfinished files."""
    *folders, name = key.split("/")
    if any(map(is_temp_name, [*folders, name])):
        raise InvalidKeyError(f"invalid key {key!r}: such names are kept for unfinished files")
    return folders, name


@contextmanager
def open_folder(root: Path, folders: list[str]) -> Iterator[int]:
    """The descriptor of a folder that exists. Raises ObjectNotFoundError, InvalidKeyError for a link."""
    descriptor = open_existing(root, folders)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_existing(root: Path, folders: list[str]) -> int:
    """As `open_folder`; the caller closes the descriptor."""
    try:
        return _descend(root, folders, created=None)
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"there is no folder {'/'.join(folders) or str(root)!r}") from error


def open_or_create(root: Path, folders: list[str], created: list[Path]) -> int:
    """The folder's descriptor; folders that were missing are made, synced and added to `created`."""
    _create_root(root, created)
    return _descend(root, folders, created=created)


def _create_root(root: Path, created: list[Path]) -> None:
    missing = [root]
    while not missing[-1].exists() and missing[-1] != missing[-1].parent:
        missing.append(missing[-1].parent)
    for folder in reversed(missing[:-1]):
        with suppress(FileExistsError):
            os.mkdir(folder)
            created.append(folder)
        parent = os.open(folder.parent, _FOLDER)
        try:
            sync_folder(parent)
        finally:
            os.close(parent)


def _descend(root: Path, folders: list[str], created: list[Path] | None) -> int:
    descriptor = os.open(root, _FOLDER)
    path = root
    try:
        for name in folders:
            path /= name
            inner = _step(descriptor, name, path, created)
            os.close(descriptor)
            descriptor = inner
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _step(descriptor: int, name: str, path: Path, created: list[Path] | None) -> int:
    try:
        return _open_below(descriptor, name)
    except FileNotFoundError:
        if created is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=descriptor)
        created.append(path)
    sync_folder(descriptor)
    return _open_below(descriptor, name)


def _open_below(descriptor: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        refuse_link(os.stat(name, dir_fd=descriptor, follow_symlinks=False), name)
        raise UnsupportedOperationError(
            f"{name!r} is a file, so nothing can be below it on a disk; choose another key"
        ) from error


def refuse_link(found: os.stat_result, name: str) -> None:
    """Raise InvalidKeyError when what was found is a symbolic link, which could lead out of the root."""
    if stat.S_ISLNK(found.st_mode):
        raise InvalidKeyError(f"{name!r} is a symbolic link, and links are not followed; name its target")


def sync_folder(descriptor: int) -> None:
    """Make names that were added to the folder survive a power cut, where the file system can."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise


def remove_created(created: list[Path]) -> None:
    """Remove the folders that a failed write made, unless somebody else uses them by now."""
    while created:
        with suppress(OSError):
            os.rmdir(created.pop())


class MadeFolders:
    """The folders that one storage has made: each goes with its last object, as if there were no folders.

    A folder that was there before, or that somebody else made, stays. Used from several worker threads at a
    time; each step is atomic, and whoever finds its folder gone makes it again.
    """

    def __init__(self) -> None:
        self._paths: set[Path] = set()

    def add(self, created: list[Path]) -> None:
        """Remember the folders of an object that is there now."""
        self._paths.update(created)

    def remove_empty(self, folder: Path) -> None:
        """Remove the folder and those above it that were made here and are empty."""
        while folder in self._paths:
            try:
                os.rmdir(folder)
            except OSError:
                # Something is in it, or it is gone already; either way it is not ours to look after now.
                return
            self._paths.discard(folder)
            folder = folder.parent
