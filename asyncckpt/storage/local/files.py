"""A file while it is written: under a hidden name beside its target, until it is published.

Everything here blocks and belongs in a worker thread.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from asyncckpt.errors import (
    ObjectExistsError,
    OutcomeUnknownError,
    RangeError,
    StorageError,
    UnsupportedOperationError,
)
from asyncckpt.model.buffers import Buffer
from asyncckpt.storage.local import kernel
from asyncckpt.storage.local.errors import storage_errors
from asyncckpt.storage.local.folders import (
    MadeFolders,
    open_or_create,
    remove_created,
    split_key,
    sync_folder,
    temp_name,
)
from asyncckpt.storage.local.objects import info_of, keep_write_id, open_object
from asyncckpt.storage.local.vectors import batches, rest
from asyncckpt.storage.objects import ObjectInfo

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NO_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ETXTBSY}
)
_COPY_BYTES = 1024 * 1024
_ATTEMPTS = 8
_STAMP_NS = 1_000_000
# This many parts may be on their way to the disk: enough to keep it busy, and the last sync stays short.
_UNSYNCED_RANGES = 8


class UnpublishedFile:
    """The bytes of a key that is being written. `discard` is right in any state."""

    def __init__(
        self,
        root: Path,
        key: str,
        *,
        token: str,
        write_id: str,
        made: MadeFolders,
    ) -> None:
        self.key = key
        self._root = root
        self._folders, self._name = split_key(key)
        self._token = token
        self._temp = temp_name(self._name, token)
        self._write_id = write_id
        self._made = made
        self._created: list[Path] = []
        self._folder: int | None = None
        self._file: int | None = None
        self._unsynced: deque[tuple[int, int]] = deque()

    def create(self, *, exclusive: bool, size: int | None) -> None:
        """Make the hidden file and set space aside. Raises ObjectExistsError early, StorageFullError."""
        with storage_errors(self.key):
            self._create()
            found = self._target()
            if exclusive and found is not None:
                raise ObjectExistsError(f"{self.key!r} exists already")
            if size:
                kernel.reserve_space(self._descriptor, size)

    def _create(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for attempt in range(_ATTEMPTS):
            try:
                self._folder = open_or_create(self._root, self._folders, self._created)
                self._file = os.open(self._temp, flags, 0o666, dir_fd=self._folder)
                return
            except FileNotFoundError:
                # A failed write beside this one has just removed the folder that it had made.
                self._close_folder()
                if attempt == _ATTEMPTS - 1:
                    raise

    def write_at(self, offset: int, views: Sequence[Buffer], stop: threading.Event) -> None:
        """Write the views one after another from `offset` on. Raises StorageFullError and the like."""
        start = offset
        with storage_errors(self.key):
            for batch in batches(views):
                offset = self._write_batch(offset, batch, stop)
            self._move_towards_disk(start, offset - start)

    def _write_batch(self, offset: int, batch: list[memoryview], stop: threading.Event) -> int:
        while batch:
            _check(stop, self.key)
            written = os.pwritev(self._descriptor, batch, offset)
            offset += written
            batch = rest(batch, written)
        return offset

    def _move_towards_disk(self, start: int, size: int) -> None:
        if not size or not kernel.start_writeback(self._descriptor, start, size):
            return
        self._unsynced.append((start, size))
        if len(self._unsynced) > _UNSYNCED_RANGES:
            kernel.finish_writeback(self._descriptor, *self._unsynced.popleft())

    def copy_at(self, offset: int, source: str, start: int, end: int, stop: threading.Event) -> None:
        """Fill from `offset` on with bytes [start, end) of another object. Raises RangeError."""
        with storage_errors(source), open_object(self._root, source) as (descriptor, found):
            if not 0 <= start <= end <= found.st_size:
                raise RangeError(f"range [{start}, {end}) leaves {source!r}, which has {found.st_size} bytes")
            while start < end:
                _check(stop, self.key)
                copied = self._copy_some(descriptor, start, end - start, offset)
                if not copied:
                    raise RangeError(f"{source!r} ended at {start} while it was copied")
                start += copied
                offset += copied

    def _copy_some(self, source: int, start: int, count: int, offset: int) -> int:
        if hasattr(os, "copy_file_range"):
            try:
                return os.copy_file_range(source, self._descriptor, count, start, offset)
            except OSError as error:
                if error.errno not in _NO_COPY:
                    raise
        data = os.pread(source, min(count, _COPY_BYTES), start)
        return os.pwrite(self._descriptor, data, offset)

    def publish(self, size: int, *, exclusive: bool) -> ObjectInfo:
        """Sync the file, give it its name in one step, sync the folder.

        Raises ObjectExistsError, and OutcomeUnknownError when the name was given but may not be durable.
        """
        with storage_errors(self.key):
            os.ftruncate(self._descriptor, size)
            self._stamp()
            write_id = keep_write_id(self._descriptor, self._write_id)
            os.fsync(self._descriptor)
            found = os.fstat(self._descriptor)
            self._target()  # a link onto a folder would only say "exists", and a rename would replace a device
            linked = self._rename(exclusive=exclusive)
        self._finish(linked=linked)
        return info_of(self.key, found, write_id)

    def _stamp(self) -> None:
        """Keep the time that the file system gave, but for its last digits.

        Stamps of its own are milliseconds apart, and versions must differ even for faster writes. The rest has to
        be its own, which on a network disk is the server's: ages are measured by that clock alone.
        """
        given = os.fstat(self._descriptor).st_mtime_ns
        now = given - given % _STAMP_NS + int(self._token, 16) % _STAMP_NS
        os.utime(self._descriptor, ns=(now, now))

    def _rename(self, *, exclusive: bool) -> bool:
        """Whether the hidden name is still there, because a link was made instead."""
        folder = self._open_folder
        if not exclusive:
            os.replace(self._temp, self._name, src_dir_fd=folder, dst_dir_fd=folder)
            return False
        try:
            os.link(self._temp, self._name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise ObjectExistsError(f"{self.key!r} exists already") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._rename_without_links(error)
            return False
        return True

    def _rename_without_links(self, reason: OSError) -> None:
        try:
            if kernel.rename_exclusively(self._open_folder, self._temp, self._name):
                return
        except FileExistsError:
            raise ObjectExistsError(f"{self.key!r} exists already") from None
        raise UnsupportedOperationError(
            f"the file system of {self.key!r} has neither hard links nor an exclusive rename, so it can't "
            "promise an exclusive create; pass overwrite=True if no other writer uses the key"
        ) from reason

    def _finish(self, *, linked: bool) -> None:
        """What is left to do once the object is visible; a failure here can't take it back."""
        try:
            if linked:
                os.unlink(self._temp, dir_fd=self._open_folder)
            sync_folder(self._open_folder)
            self._close_file()
        except OSError as error:
            raise OutcomeUnknownError(
                f"{self.key!r} was written, but its folder could not be synced (write id {self._write_id}): "
                f"{error.strerror}; check the disk",
                write_id=self._write_id,
            ) from error
        finally:
            self._made.add(self._created)
            self._created.clear()
        self._close_folder()

    def discard(self) -> None:
        """Remove the hidden file and the folders made for it, if they are there, and close everything."""
        with storage_errors(self.key):
            try:
                if self._folder is not None:
                    with suppress(FileNotFoundError):
                        os.unlink(self._temp, dir_fd=self._folder)
            finally:
                self._close_file()
                self._close_folder()
                remove_created(self._created)

    def _target(self) -> os.stat_result | None:
        """What bears the final name now. Raises UnsupportedOperationError for all but a file or a link."""
        try:
            found = os.stat(self._name, dir_fd=self._open_folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            raise UnsupportedOperationError(
                f"{self.key!r} is a device, a pipe or a socket, and only files and links are replaced; "
                "choose another key"
            )
        return found

    @property
    def _descriptor(self) -> int:
        if self._file is None:
            raise StorageError(f"the writer of {self.key!r} is closed")
        return self._file

    @property
    def _open_folder(self) -> int:
        if self._folder is None:
            raise StorageError(f"the writer of {self.key!r} is closed")
        return self._folder

    def _close_file(self) -> None:
        descriptor, self._file = self._file, None
        if descriptor is not None:
            os.close(descriptor)

    def _close_folder(self) -> None:
        descriptor, self._folder = self._folder, None
        if descriptor is not None:
            os.close(descriptor)


def _check(stop: threading.Event, key: str) -> None:
    if stop.is_set():
        raise StorageError(f"the write of {key!r} was stopped")
