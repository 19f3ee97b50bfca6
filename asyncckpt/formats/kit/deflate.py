"""DEFLATE in frames: compressed in parallel threads, each frame readable alone, all of them one valid stream.

Every frame is compressed without history and ends at a byte's border (a full flush), so the frames one after
another are what any inflater reads, and a frame can be inflated on its own by whoever knows where it begins.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.parallel import map_in_order
from asyncckpt.model.checksums import Buffer, crc32

_RAW = -zlib.MAX_WBITS
EMPTY_STREAM = b"\x03\x00"
_FLUSH_BYTES = 16


class CompressedFrame(NamedTuple):
    """One frame: its bytes, the size it was made from, and the CRC32 of that."""

    data: bytes
    raw_bytes: int
    crc32: int


def size_bound(raw_bytes: int, frames: int) -> int:
    """No stream of so many frames is larger: zlib's own bound, and a flush for each."""
    return (
        raw_bytes + (raw_bytes >> 12) + (raw_bytes >> 14) + (raw_bytes >> 25) + frames * (13 + _FLUSH_BYTES)
    )


def compress_frames(
    frames: Iterable[Sequence[Buffer]], *, level: int, threads: int | None = None
) -> Generator[CompressedFrame, None, None]:
    """Compress frames, each given as views, in order. The threads end with the generator, also when it is closed."""
    count = threads or min(8, os.cpu_count() or 1)
    return map_in_order(partial(_compress, level=level), frames, threads=count, name="asyncckpt-deflate")


def _compress(views: Sequence[Buffer], *, level: int) -> CompressedFrame:
    deflater = zlib.compressobj(level, zlib.DEFLATED, _RAW)
    parts = []
    crc = size = 0
    for view in views:
        parts.append(deflater.compress(view))
        crc = crc32(view, crc)
        size += memoryview(view).nbytes
    parts.append(deflater.flush(zlib.Z_FULL_FLUSH))
    return CompressedFrame(b"".join(parts), size, crc)


def inflate_frame(data: Buffer, raw_bytes: int, what: str, *, padding: int = 0) -> bytes:
    """The bytes of one frame, without the zeros at its end.

    Raises LayoutError when they are not DEFLATE, not so many, or the padding is not zeros.
    """
    try:
        raw = zlib.decompressobj(_RAW).decompress(data, raw_bytes + 1)
    except zlib.error as error:
        raise LayoutError(f"{what} can't be inflated: {error}") from None
    if len(raw) != raw_bytes:
        raise LayoutError(f"{what} inflates to {len(raw)} bytes or more, {raw_bytes} were expected")
    if padding and raw[-padding:].strip(b"\0"):
        raise LayoutError(f"{what} has other padding than zeros")
    return raw[: raw_bytes - padding] if padding else raw
