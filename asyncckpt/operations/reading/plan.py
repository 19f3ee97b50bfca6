"""Tensors that are stored in pieces, put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.boxes import tiles, whole
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.model.metadata import TensorMetadata


@dataclass(frozen=True, slots=True)
class Joined:
    """A global tensor and the pieces that tile it."""

    metadata: TensorMetadata
    stored: tuple[StoredTensor, ...]

    def assemble(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The global tensor from the arrays of its pieces."""
        result = np.empty(self.metadata.shape, numpy_dtype(self.metadata.dtype))
        outer = whole(self.metadata.shape)
        for piece in self.stored:
            box = piece.metadata.box
            assert box is not None
            result[box.within(outer)] = arrays[piece.name]
        return result


def join_pieces(tensors: Sequence[StoredTensor]) -> dict[str, Joined]:
    """The global tensors whose pieces are here, by name: a piece is called `name@origin0,origin1`.

    Raises LayoutError when the pieces of a tensor do not tile it.
    """
    groups: dict[str, list[StoredTensor]] = {}
    for stored in tensors:
        if stored.metadata.origin is not None:
            groups.setdefault(stored.name.rpartition("@")[0] or stored.name, []).append(stored)
    return {name: _join(name, pieces) for name, pieces in groups.items()}


def piece_name(name: str, origin: Sequence[int]) -> str:
    """The name under which a piece of a tensor is stored."""
    return f"{name}@{','.join(map(str, origin))}"


def _join(name: str, pieces: list[StoredTensor]) -> Joined:
    first = pieces[0].metadata
    shape = first.global_shape
    boxes = [piece.metadata.box for piece in pieces]
    same = all(p.metadata.global_shape == shape and p.metadata.dtype == first.dtype for p in pieces)
    if shape is None or not same or not tiles([box for box in boxes if box is not None], shape):
        raise LayoutError(f"the {len(pieces)} pieces of tensor {name!r} do not make up its shape {shape}")
    metadata = replace(
        first,
        name=name,
        shape=shape,
        global_shape=None,
        origin=None,
        pieces=tuple(piece.metadata for piece in pieces),
    )
    return Joined(metadata, tuple(pieces))
