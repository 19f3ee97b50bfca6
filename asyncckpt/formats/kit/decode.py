"""From stored bytes to a tensor's bytes: joining extents, decoding frames, checking checksums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asyncckpt.errors import ChecksumMismatchError, DataAbsentError, LayoutError
from asyncckpt.formats.kit.index import Extent, StoredTensor
from asyncckpt.model.checksums import Buffer, crc32c
from asyncckpt.model.dtype import array_from

Fetch = Callable[[Extent], Buffer]


def check_chunk(stored: StoredTensor, chunk: int, data: Buffer) -> None:
    """Compare one chunk with its checksum. Raises ChecksumMismatchError with the tensor's name."""
    if stored.checksums is None:
        return
    start = chunk * stored.chunk_bytes
    expected = int(stored.checksums[chunk])
    value = crc32c(data)
    if value != expected:
        raise ChecksumMismatchError(
            f"tensor {stored.name!r} is damaged: bytes [{start}, {start + len(data)}) "
            f"have the CRC32C {value:08x}, the file says {expected:08x}",
            tensor=stored.name,
        )


def check_chunks(stored: StoredTensor, view: memoryview) -> None:
    """Compare every chunk of a whole tensor. Raises ChecksumMismatchError."""
    if stored.checksums is None:
        return
    for chunk in range(len(stored.checksums)):
        start = chunk * stored.chunk_bytes
        check_chunk(stored, chunk, view[start : start + stored.chunk_bytes])


def require_data(stored: StoredTensor) -> None:
    """Raises DataAbsentError where the file lists the tensor only."""
    if stored.absent is not None:
        raise DataAbsentError(f"tensor {stored.name!r} has no bytes: {stored.absent}")


def gather(stored: StoredTensor, fetch: Fetch) -> memoryview:
    """The tensor's bytes as stored order has them, joined and decoded. Raises FormatError subclasses."""
    require_data(stored)
    size = stored.metadata.size
    if stored.frames is not None:
        parts = [stored.frames.decode(i, bytes(fetch(e))) for i, e in enumerate(stored.frames.extents)]
        data: Buffer = b"".join(parts)
    elif len(stored.extents) == 1:
        data = fetch(stored.extents[0])
    else:
        data = b"".join(map(fetch, stored.extents))
    view = memoryview(data)
    if view.nbytes != size:
        raise LayoutError(f"tensor {stored.name!r} has {view.nbytes} stored bytes, its shape needs {size}")
    return view


def to_array(stored: StoredTensor, view: memoryview) -> np.ndarray:
    """An array over the bytes; in Fortran order a view with swapped strides, not a copy."""
    tensor = stored.metadata
    if stored.order == "F":
        return array_from(view, tensor.dtype, tensor.shape[::-1]).T
    return array_from(view, tensor.dtype, tensor.shape)
