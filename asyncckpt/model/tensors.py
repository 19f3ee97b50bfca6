"""Very many tensors as columns: a million of them as objects take seconds to make, and gigabytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from asyncckpt.errors import LayoutError
from asyncckpt.model.boxes import Shape
from asyncckpt.model.metadata import TensorMetadata

Column = NDArray[np.int64]
Boxes = Mapping[str, tuple[Shape, Shape]]
MAX_TOTAL_BYTES = 1 << 62
_NO_BOXES: Boxes = {}


class TensorTable(Sequence[TensorMetadata]):
    """Tensors by columns; one becomes a `TensorMetadata` when it is asked for.

    `boxes` has the global shape and the origin of those that are pieces of larger tensors, by name. Equal to any
    sequence of equal tensors.
    """

    __slots__ = ("boxes", "checksums", "dtypes", "names", "offsets", "shapes", "sizes")

    def __init__(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[Shape],
        sizes: Column,
        offsets: Column,
        boxes: Boxes = _NO_BOXES,
        checksums: list[str | None] | None = None,
    ) -> None:
        self.names = names
        self.dtypes = dtypes
        self.shapes = shapes
        self.sizes = sizes
        self.offsets = offsets
        self.boxes = boxes
        self.checksums = checksums

    @classmethod
    def of(cls, tensors: Sequence[TensorMetadata]) -> TensorTable:
        """The columns of tensors that have no pieces. Raises LayoutError when they are larger than any file."""
        if isinstance(tensors, cls):
            return tensors
        checksums = [tensor.checksum for tensor in tensors]
        return cls(
            [tensor.name for tensor in tensors],
            [tensor.dtype for tensor in tensors],
            [tensor.shape for tensor in tensors],
            sizes_column([tensor.size for tensor in tensors]),
            _offsets_column(tensors),
            {t.name: (t.global_shape or (), t.origin) for t in tensors if t.origin is not None},
            checksums if any(checksums) else None,
        )

    @classmethod
    def joined(cls, groups: Iterable[Sequence[TensorMetadata]]) -> TensorTable:
        """One table of all of them, in order."""
        tables = [cls.of(group) for group in groups]
        if len(tables) == 1:
            return tables[0]
        checksums = [table.checksums or [None] * len(table) for table in tables]
        none = np.zeros(0, np.int64)
        return cls(
            list(chain.from_iterable(table.names for table in tables)),
            list(chain.from_iterable(table.dtypes for table in tables)),
            list(chain.from_iterable(table.shapes for table in tables)),
            np.concatenate([none, *(table.sizes for table in tables)]),
            np.concatenate([none, *(table.offsets for table in tables)]),
            {name: box for table in tables for name, box in table.boxes.items()},
            list(chain.from_iterable(checksums)) if any(table.checksums for table in tables) else None,
        )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> TensorMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> TensorTable: ...
    def __getitem__(self, index: int | slice) -> TensorMetadata | TensorTable:
        if isinstance(index, slice):
            return TensorTable(
                self.names[index],
                self.dtypes[index],
                self.shapes[index],
                self.sizes[index],
                self.offsets[index],
                self.boxes,
                None if self.checksums is None else self.checksums[index],
            )
        checksum = None if self.checksums is None else self.checksums[index]
        return self._tensor(
            self.names[index], self.dtypes[index], self.shapes[index], int(self.offsets[index]), checksum
        )

    def __iter__(self) -> Iterator[TensorMetadata]:
        checksums = repeat(None) if self.checksums is None else self.checksums
        make = self._tensor if self.boxes else TensorMetadata
        return map(make, self.names, self.dtypes, self.shapes, self.offsets.tolist(), checksums)

    def _tensor(
        self, name: str, dtype: str, shape: Shape, offset: int, checksum: str | None
    ) -> TensorMetadata:
        global_shape, origin = self.boxes.get(name, (None, None))
        return TensorMetadata(name, dtype, shape, offset, checksum, global_shape, origin)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TensorTable) and self.boxes == other.boxes:
            return bool(
                self.names == other.names
                and self.dtypes == other.dtypes
                and self.shapes == other.shapes
                and np.array_equal(self.offsets, other.offsets)
                and self.checksums == other.checksums
            )
        if not isinstance(other, tuple | list | TensorTable):
            return NotImplemented
        return len(self) == len(other) and all(map(TensorMetadata.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorTable, tuple(getattr(self, name) for name in _ARGUMENTS)

    def at(self, offsets: Column) -> TensorTable:
        """The same tensors at other offsets."""
        return TensorTable(
            self.names, self.dtypes, self.shapes, self.sizes, offsets, self.boxes, self.checksums
        )

    def named(self, names: Iterable[str]) -> TensorTable:
        """The same tensors with other names."""
        return TensorTable(
            list(names), self.dtypes, self.shapes, self.sizes, self.offsets, self.boxes, self.checksums
        )

    def with_boxes(self, boxes: Boxes) -> TensorTable:
        return TensorTable(
            self.names, self.dtypes, self.shapes, self.sizes, self.offsets, boxes, self.checksums
        )

    def take(self, order: Sequence[int]) -> TensorTable:
        """The tensors `order`, in this order."""
        chosen = np.asarray(order, np.int64)
        return TensorTable(
            [self.names[number] for number in order],
            [self.dtypes[number] for number in order],
            [self.shapes[number] for number in order],
            self.sizes[chosen],
            self.offsets[chosen],
            self.boxes,
            None if self.checksums is None else [self.checksums[number] for number in order],
        )


_ARGUMENTS = ("names", "dtypes", "shapes", "sizes", "offsets", "boxes", "checksums")


def sizes_column(sizes: Sequence[int]) -> Column:
    """Sizes as a column whose sums can't overflow. Raises LayoutError for more bytes than any file has."""
    total = sum(sizes)
    if total > MAX_TOTAL_BYTES:
        raise LayoutError(f"the tensors have {total} bytes in all, more than any file")
    return np.array(sizes, np.int64)


def _offsets_column(tensors: Sequence[TensorMetadata]) -> Column:
    try:
        return np.fromiter((tensor.offset for tensor in tensors), np.int64, len(tensors))
    except OverflowError:
        raise LayoutError("a tensor begins beyond the end of any file") from None


def lay_out_sizes(sizes: Column, start: int, alignment: int) -> tuple[Column, int]:
    """Where runs of these sizes lie one after another from `start`, each aligned; and where the last one ends."""
    if not len(sizes):
        return sizes, start
    first = -(-start // alignment) * alignment
    offsets = np.empty(len(sizes), np.int64)
    offsets[0] = 0
    np.cumsum(-(-sizes[:-1] // alignment) * alignment, out=offsets[1:])
    offsets += first
    return offsets, int(offsets[-1] + sizes[-1])


def joined_spans(starts: Column, ends: Column) -> list[tuple[int, int]]:
    """The spans, those that follow one another without a gap as one; empty ones only where they stand alone."""
    if not len(starts):
        return []
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [len(starts)]]) - 1
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))
