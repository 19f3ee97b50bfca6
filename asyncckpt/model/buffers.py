"""Buffers and lists of views of them: how large, cut, hashed and copied, without being joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import crc32c as _crc32c
import numpy as np

Buffer = bytes | bytearray | memoryview

INLINE_BYTES = 256 * 1024
"""Copying or hashing more than this would hold up the event loop: it belongs in a thread."""
# Below this the call into numpy costs more than the copy.
_NUMPY_COPY_BYTES = 64 * 1024


def total_bytes(views: Iterable[Buffer]) -> int:
    """The bytes in all the views together."""
    return sum(memoryview(view).nbytes for view in views)


def cut_views(views: Iterable[Buffer], part_bytes: int) -> Iterator[list[memoryview]]:
    """The bytes of the views, one after another, in parts of one size but for the last; nothing is copied."""
    part: list[memoryview] = []
    room = part_bytes
    for buffer in views:
        view = as_bytes(buffer)
        while view.nbytes:
            part.append(view[:room])
            room -= part[-1].nbytes
            view = view[part[-1].nbytes :]
            if not room:
                yield part
                part, room = [], part_bytes
    if part:
        yield part


def slice_views(views: Iterable[Buffer], start: int, end: int) -> list[memoryview]:
    """Bytes [start, end) of the views taken together; nothing is copied."""
    found: list[memoryview] = []
    offset = 0
    for buffer in views:
        whole = as_bytes(buffer)
        low, high = max(start - offset, 0), min(end - offset, whole.nbytes)
        if low < high:
            found.append(whole[low:high])
        offset += whole.nbytes
    return found


def as_bytes(view: Buffer) -> memoryview:
    """The buffer as a flat view of single bytes."""
    # A part may have a hundred thousand views, and as many new ones would call for a full garbage collection.
    if type(view) is memoryview and view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    whole = memoryview(view)
    # An empty view of several dimensions can't be cast.
    return whole.cast("B") if whole.nbytes else memoryview(b"")


def crc32c_of_views(views: Sequence[Buffer]) -> int:
    """The CRC32C of the views taken together. Releases the GIL for large views."""
    value = 0
    for view in views:
        value = _crc32c.crc32c(as_bytes(view), value)
    return value


def copy_bytes(target: memoryview, source: Buffer) -> None:
    """Copy bytes into a view of the same size. Large ones by numpy, which releases the GIL; a memoryview does not."""
    if target.nbytes < _NUMPY_COPY_BYTES:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
