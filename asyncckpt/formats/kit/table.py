"""The tensors of a file of very many, as columns: each lies in one run of bytes, as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import overload

import numpy as np

from asyncckpt.formats.kit.index import Extent, StoredTensor
from asyncckpt.model.checksums import Checksums
from asyncckpt.model.tensors import Column, TensorTable


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoredTable(Sequence[StoredTensor]):
    """Tensors by columns; one becomes a `StoredTensor` when it is asked for.

    `starts` are their places in file number `file`, or each in its own. `first` has the position of each one's first
    checksum in `checksums`, and behind them the position after the last.
    """

    tensors: TensorTable
    starts: Column
    file: int | Column = 0
    checksums: Checksums | None = None
    first: Column = field(default_factory=lambda: np.zeros(1, np.int64))
    chunk_bytes: int = 0

    def __len__(self) -> int:
        return len(self.tensors)

    @overload
    def __getitem__(self, index: int) -> StoredTensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredTensor]: ...
    def __getitem__(self, index: int | slice) -> StoredTensor | list[StoredTensor]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        tensor = self.tensors[numbers]
        extent = Extent(int(self.starts[numbers]), tensor.size, int(self.files[numbers]))
        if self.checksums is None:
            return StoredTensor(tensor, (extent,))
        own = self.checksums[self.first[numbers] : self.first[numbers + 1]]
        return StoredTensor(tensor, (extent,), own, chunk_bytes=self.chunk_bytes)

    def __iter__(self) -> Iterator[StoredTensor]:
        checksums, chunk_bytes = self.checksums, self.chunk_bytes
        extents = map(Extent, self.starts.tolist(), self.tensors.sizes.tolist(), self.files.tolist())
        places = zip(self.tensors, extents, strict=True)
        if checksums is None:
            for tensor, extent in places:
                yield StoredTensor(tensor, (extent,))
            return
        for (tensor, extent), (begin, end) in zip(places, pairwise(self.first.tolist()), strict=True):
            yield StoredTensor(tensor, (extent,), checksums[begin:end], chunk_bytes=chunk_bytes)

    def __repr__(self) -> str:
        return repr(tuple(self))

    @property
    def files(self) -> Column:
        """The number of each one's file."""
        return np.broadcast_to(np.asarray(self.file, np.int64), len(self))

    @property
    def ends(self) -> Column:
        return self.starts + self.tensors.sizes

    def with_checksums(
        self, tensors: TensorTable, checksums: Checksums, first: Column, chunk_bytes: int
    ) -> StoredTable:
        return replace(self, tensors=tensors, checksums=checksums, first=first, chunk_bytes=chunk_bytes)

    def take(self, order: Sequence[int]) -> StoredTable:
        """The tensors `order`, in this order."""
        chosen = np.asarray(order, np.int64)
        counts = (
            np.diff(self.first)[chosen] if self.checksums is not None else np.zeros(len(chosen), np.int64)
        )
        first = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(counts, out=first[1:])
        checksums = self.checksums
        if checksums is not None:
            # Position p of the new list is position p - first[i] + old_first[i] of the old one.
            moved = np.repeat(self.first[:-1][chosen] - first[:-1], counts)
            checksums = checksums[np.arange(len(moved)) + moved]
        return replace(
            self,
            tensors=self.tensors.take(order),
            starts=self.starts[chosen],
            file=self.file if isinstance(self.file, int) else self.file[chosen],
            checksums=checksums,
            first=first,
        )


def bytes_of_tensors(tensors: Sequence[StoredTensor]) -> int:
    """The bytes of all of them, without making an object for each."""
    if isinstance(tensors, StoredTable):
        return int(tensors.tensors.sizes.sum())
    return sum(stored.metadata.size for stored in tensors)


def first_outside(
    tensors: Sequence[StoredTensor], sizes: Sequence[int]
) -> tuple[StoredTensor, Extent] | None:
    """The first tensor with a run of bytes that leaves its file; `sizes` are the files'."""
    if isinstance(tensors, StoredTable):
        limits = np.asarray(sizes, np.int64)[tensors.files]
        wrong = np.flatnonzero(tensors.ends > limits)
        if not len(wrong):
            return None
        found = tensors[int(wrong[0])]
        return found, found.extents[0]
    for stored in tensors:
        for extent in stored.runs:
            if extent.end > sizes[extent.file]:
                return stored, extent
    return None
