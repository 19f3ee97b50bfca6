"""Staging: a private copy of the arrays, so that nothing can change them while they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from asyncckpt.model.dtype import as_bytes_view, dtype_name
from asyncckpt.model.tensors import Column, TensorTable, sizes_column
from asyncckpt.operations.writing.source import ALIGNMENT

_COPY_BYTES = 32 * 1024 * 1024
"""What one thread copies at a time."""
_SMALL_BYTES = 16 * 1024
"""Tensors below this are copied many at a time: to begin one copy takes longer than to make it."""
_JOINED_BYTES = 1024 * 1024
"""No single step holds the GIL for longer than a millisecond."""
_PADDING = bytes(ALIGNMENT)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Tensors:
    """Named tensors, C-contiguous and little-endian; `shared[i]` is whether the memory is still the caller's."""

    table: TensorTable
    arrays: list[np.ndarray]
    shared: list[bool]

    def views(self) -> list[memoryview]:
        """The bytes of all tensors, where they are."""
        return [as_bytes_view(array)[1] for array in self.arrays]


def normalise(arrays: dict[str, np.ndarray], payloads: dict[str, np.ndarray]) -> Tensors:
    """The tensors as they will be written; those that are not C-contiguous and little-endian are copied here.

    The payloads come after them, and need no copy: they can't change. Raises UnsupportedDtypeError. For a worker
    thread.
    """
    names: dict[np.dtype[Any], str] = {}
    dtypes, shapes, sizes, normal, shared = [], [], [], [], []
    for name, given in (arrays | payloads).items():
        array = given
        dtype = names.get(array.dtype)
        ours = name in payloads
        # The short way, for very many: a dtype that was seen before, in a plain array.
        if dtype is None or type(array) is not np.ndarray or not array.flags.c_contiguous:
            array, _ = as_bytes_view(given)
            dtype = names[array.dtype] = dtype_name(array.dtype)
            ours = ours or not np.may_share_memory(array, given)
        dtypes.append(dtype)
        shapes.append(array.shape)
        sizes.append(array.nbytes)
        normal.append(array)
        shared.append(not ours)
    table = TensorTable(
        [*arrays, *payloads], dtypes, shapes, sizes_column(sizes), np.zeros(len(sizes), np.int64)
    )
    return Tensors(table, normal, shared)


class Small(NamedTuple):
    """Small tensors [first, behind), copied in one go."""

    first: int
    behind: int


class Large(NamedTuple):
    """Bytes [start, end) of a tensor."""

    tensor: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Layout:
    """Where the bytes of tensors will be in a pool of `size` bytes; those of `others` stay where they are."""

    tensors: Tensors
    sizes: Column
    positions: Column
    size: int
    others: dict[int, memoryview]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        """What is still the caller's is copied, and what is small: then it can be written in runs."""
        sizes = tensors.table.sizes
        copied = np.array(tensors.shared, bool) | (sizes < _SMALL_BYTES)
        room = np.where(copied, -(-sizes // ALIGNMENT) * ALIGNMENT, 0)
        positions = np.cumsum(room) - room
        kept = np.flatnonzero(~copied).tolist()
        others = {number: as_bytes_view(tensors.arrays[number])[1] for number in kept}
        return cls(tensors, sizes, positions, int(room.sum()), others)

    def batches(self) -> list[list[Small | Large]]:
        """What has to be copied, in batches of about equal size: large tensors are cut, small ones gathered."""
        batches: list[list[Small | Large]] = []
        room = 0
        for piece in self._pieces():
            if room <= 0:
                batches.append([])
                room = _COPY_BYTES
            batches[-1].append(piece)
            room -= _JOINED_BYTES if isinstance(piece, Small) else piece.end - piece.start
        return batches

    def _pieces(self) -> Iterator[Small | Large]:
        position = 0
        for number in np.flatnonzero(self.sizes >= _SMALL_BYTES).tolist():
            yield from self._small(position, number)
            end = int(self.sizes[number]) if number not in self.others else 0
            yield from (Large(number, at, min(end, at + _COPY_BYTES)) for at in range(0, end, _COPY_BYTES))
            position = number + 1
        yield from self._small(position, len(self.sizes))

    def _small(self, first: int, behind: int) -> Iterator[Small]:
        while first < behind:
            limit = self.positions[first] + _JOINED_BYTES
            stop = min(behind, int(np.searchsorted(self.positions, limit, "left")))
            yield Small(first, stop)
            first = stop

    def copy(self, pieces: Sequence[Small | Large], memory: memoryview) -> None:
        """Copy into the memory of the pool, with zeros up to the next tensor. Blocks."""
        for piece in pieces:
            if isinstance(piece, Small):
                data = _joined(self.tensors.arrays[piece.first : piece.behind])
                start = int(self.positions[piece.first])
                memory[start : start + len(data)] = data
            else:
                self._copy_large(piece, memory)

    def _copy_large(self, piece: Large, memory: memoryview) -> None:
        position = int(self.positions[piece.tensor])
        _, view = as_bytes_view(self.tensors.arrays[piece.tensor])
        # numpy's copy releases the GIL, a memoryview's does not.
        target = np.frombuffer(memory[position + piece.start : position + piece.end], np.uint8)
        np.copyto(target, np.frombuffer(view[piece.start : piece.end], np.uint8))
        if piece.end == view.nbytes:
            padding = -piece.end % ALIGNMENT
            memory[position + piece.end : position + piece.end + padding] = _PADDING[:padding]


def _joined(arrays: Sequence[np.ndarray]) -> bytes:
    """The bytes of small arrays, each with zeros up to the next multiple of the alignment."""
    pieces = []
    for array in arrays:
        data = array.tobytes()
        pieces.append(data)
        if len(data) % ALIGNMENT:
            pieces.append(_PADDING[: -len(data) % ALIGNMENT])
    return b"".join(pieces)
