"""The tensors of a checkpoint by name: those that its file lists, and those that are stored there in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.index import Index, StoredTensor
from asyncckpt.model.boxes import tiles
from asyncckpt.model.metadata import Json, TensorMetadata
from asyncckpt.model.state.payloads import PAYLOAD_DTYPE, payload_names


@dataclass(frozen=True, slots=True)
class Joined:
    """A global tensor and the pieces that tile it."""

    metadata: TensorMetadata
    stored: tuple[StoredTensor, ...]


class Catalog:
    """Look-up of tensors. `listed` are those of the file, `joined` those that its pieces make up, both by name.

    `tensors` is what a user sees: neither pieces nor the `payloads` of a state. Raises LayoutError when the pieces of
    a tensor do not tile it.
    """

    def __init__(self, index: Index) -> None:
        # From here on these objects are used: each walk over a table of very many would make them anew.
        self.listed = {stored.name: stored for stored in index.tensors}
        self.joined = join_pieces(self.listed.values())
        members = {stored.name for tensor in self.joined.values() for stored in tensor.stored}
        payloads = _payloads(self.listed.values(), index.tree)
        self.payloads: Mapping[str, TensorMetadata] = MappingProxyType(
            {name: self.listed[name].metadata for name in payloads}
        )
        members |= payloads.keys()
        single = {name: s.metadata for name, s in self.listed.items() if name not in members}
        joined = {name: tensor.metadata for name, tensor in self.joined.items()}
        self.tensors: Mapping[str, TensorMetadata] = MappingProxyType({**single, **joined})

    def similar(self, name: str) -> str:
        """What to add to an error about a name that is not there."""
        last = name.rpartition(".")[2]
        near = [other for other in self.tensors if other.endswith(last)][:3]
        return f"; similar are {', '.join(map(repr, near))}" if near and last else ""


def join_pieces(tensors: Iterable[StoredTensor]) -> dict[str, Joined]:
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


def _payloads(tensors: Iterable[StoredTensor], tree: Json) -> dict[str, None]:
    """The names of the state's payloads, in the order of the file."""
    possible = [
        stored.name
        for stored in tensors
        if stored.metadata.dtype == PAYLOAD_DTYPE and len(stored.metadata.shape) == 1
    ]
    if not possible:
        return {}
    named = payload_names(tree)
    return dict.fromkeys(name for name in possible if name in named)
