"""Checkpoints whose tensors are stored in every way that an index can describe, to read them back."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Extent, FileInfo, Frames, Index, ParseSteps, StoredTensor
from asyncckpt.formats.kit.plan import AnyPlan, Content
from asyncckpt.model.boxes import Box
from asyncckpt.model.checksums import Buffer, crc32c
from asyncckpt.model.dtype import dtype_name
from asyncckpt.model.metadata import CheckpointMetadata, TensorMetadata
from asyncckpt.operations.reading.catalog import piece_name
from asyncckpt.storage.base import ICheckpointStorage


@dataclass(frozen=True)
class Layout:
    """How one tensor, or one piece of it, is stored."""

    order: Literal["C", "F"] = "C"
    chunk_bytes: int = 0
    """None of its bytes are checked with 0."""
    frame_bytes: int = 0
    """It is stored as it is with 0."""
    skip: int = 0
    extents: int = 1
    file: int = 0


class Described(ICheckpointFormat):
    """A format that knows its index beforehand."""

    name = "described"
    extensions = (".described",)

    def __init__(self, index: Index) -> None:
        self.index = index

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return False

    def plan(self, content: Content, *, name: str) -> Sequence[AnyPlan]:
        raise NotImplementedError

    def parse(self, source: FileInfo) -> ParseSteps:
        yield from ()
        return self.index


@dataclass
class Writing:
    """Files in memory that grow as tensors are added, and what an index says of them."""

    files: list[bytearray] = field(default_factory=lambda: [bytearray(b"leader"), bytearray(), bytearray()])
    tensors: list[StoredTensor] = field(default_factory=list)
    decoded: list[tuple[str, int]] = field(default_factory=list)
    """Every frame that was decoded: the tensor's name, and the frame's number."""

    def add(
        self,
        name: str,
        array: np.ndarray,
        layout: Layout,
        box: Box | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        metadata = TensorMetadata(
            name,
            dtype_name(array.dtype),
            array.shape,
            global_shape=shape,
            origin=None if box is None else box.origin,
        )
        raw = array.tobytes(order=layout.order)
        chunk = layout.chunk_bytes
        values = [crc32c(raw[at : at + chunk]) for at in range(0, len(raw), chunk or 1)]
        sums = np.array(values, np.uint32) if chunk else None
        if layout.frame_bytes:
            frames = self._frames(name, raw, layout)
            stored = StoredTensor(metadata, (), sums, frames, layout.order, None, chunk)
        else:
            stored = StoredTensor(metadata, self._extents(raw, layout), sums, None, layout.order, None, chunk)
        self.tensors.append(stored)

    def _append(self, file: int, data: bytes) -> Extent:
        kept = self.files[file]
        kept += b"#" * 3
        kept += data
        return Extent(len(kept) - len(data), len(data), file)

    def _extents(self, raw: bytes, layout: Layout) -> tuple[Extent, ...]:
        step = max(1, -(-len(raw) // layout.extents))
        pieces = [raw[at : at + step] for at in range(0, len(raw), step)] or [b""]
        # The last one first: extents need not ascend.
        placed = [
            self._append((layout.file + n) % 3, piece) for n, piece in reversed(list(enumerate(pieces)))
        ]
        return tuple(reversed(placed))

    def _frames(self, name: str, raw: bytes, layout: Layout) -> Frames:
        skip = min(layout.skip, layout.frame_bytes - 1)
        data = b"!" * skip + raw
        size = layout.frame_bytes
        extents = tuple(
            self._append(layout.file, zlib.compress(data[at : at + size])) for at in range(0, len(data), size)
        )

        def decode(number: int, stored: Buffer) -> bytes:
            self.decoded.append((name, number))
            return zlib.decompress(stored)

        return Frames(size, extents, decode, skip)

    async def write(self, storage: ICheckpointStorage) -> Described:
        names = ("", "b", "below/c")
        for name, data in zip(("a.described", *names[1:]), self.files, strict=True):
            await storage.write(name, bytes(data))
        return Described(
            Index(
                format="described",
                version="1",
                metadata=CheckpointMetadata(),
                tensors=tuple(self.tensors),
                files=names,
            )
        )


def layouts() -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout,
        order=st.sampled_from(["C", "F"]),
        chunk_bytes=st.sampled_from([0, 0, 5, 16, 64, 1 << 20]),
        frame_bytes=st.sampled_from([0, 0, 7, 16, 40, 1 << 20]),
        skip=st.integers(0, 20),
        extents=st.sampled_from([1, 1, 1, 2, 3]),
        file=st.integers(0, 2),
    )


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that make up a tensor: each dimension is cut at some places, not the same in all of the others' parts."""

    def cut(box: Box, axis: int) -> list[Box]:
        if axis == len(shape):
            return [box]
        size = box.shape[axis]
        borders = (
            [0, *sorted(draw(st.sets(st.integers(1, size - 1), max_size=2))), size] if size > 1 else [0, size]
        )
        found = []
        for low, high in pairwise(borders):
            origin = (*box.origin[:axis], low, *box.origin[axis + 1 :])
            part = Box(origin, (*box.shape[:axis], high - low, *box.shape[axis + 1 :]))
            found += cut(part, axis + 1)
        return found

    return cut(Box((0,) * len(shape), shape), 0)


def add_tiled(
    writing: Writing, name: str, array: np.ndarray, boxes: Sequence[Box], layouts: Sequence[Layout]
) -> None:
    """A tensor in pieces, each stored in its own way."""
    outer = Box((0,) * array.ndim, array.shape)
    for box, layout in zip(boxes, layouts, strict=True):
        writing.add(
            piece_name(name, box.origin),
            array[box.within(outer)].reshape(box.shape),
            layout,
            box,
            array.shape,
        )
