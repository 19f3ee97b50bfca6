"""The read planner: which parts of which stored tensors a read needs, and where in its arrays each belongs.

It does no I/O and sees no bytes. A want is a region of a global tensor; the tensor may be stored whole, or in pieces
that lie in several files. `runs` says which bytes of a stored tensor a part needs, `placement` puts them in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np

from asyncckpt.errors import MismatchError
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.boxes import Box, Shape, overlap, whole
from asyncckpt.model.dtype import item_size
from asyncckpt.model.metadata import TensorMetadata
from asyncckpt.operations.reading.catalog import Catalog
from asyncckpt.operations.reading.slices import Selection, Subscript, select


class Want(NamedTuple):
    """A tensor, or the region of it that a subscript or a box means; `into` is the array to fill, else a new one.

    The array has the shape of the region, and may itself be a region of a larger one.
    """

    name: str
    region: Subscript | Box | None = None
    into: np.ndarray | None = None


class Part(NamedTuple):
    """What a want needs of one stored tensor: the items at `source`, which belong at `target` of its array.

    `source` are ascending positions in each dimension of the stored tensor, None for all of it.
    """

    want: int
    stored: StoredTensor
    source: tuple[range, ...] | None = None
    target: tuple[slice, ...] = ()


@dataclass(slots=True)
class ReadPlan:
    """What reading `wants` takes: `tensors` are the global ones, `selections` what is wanted of some of them."""

    wants: list[Want] = field(default_factory=list)
    tensors: list[TensorMetadata] = field(default_factory=list)
    selections: dict[int, Selection] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many bytes the arrays of its wants have."""
        return sum(prod(self.shape(n)) * item_size(tensor.dtype) for n, tensor in enumerate(self.tensors))

    def shape(self, want: int) -> Shape:
        """The shape of the array that the parts of a want fill, with every dimension of the tensor."""
        selection = self.selections.get(want)
        return self.tensors[want].shape if selection is None else selection.shape


def plan_reads(catalog: Catalog, wants: Iterable[Want]) -> ReadPlan:
    """Raises KeyError for a tensor that is not there, MismatchError for a region or an array that does not fit."""
    plan = ReadPlan(list(wants))
    tensors, parts, joined, listed = plan.tensors, plan.parts, catalog.joined, catalog.listed
    for number, want in enumerate(plan.wants):
        pieces = joined.get(want.name)
        if pieces is None and want.region is None:
            stored = listed[want.name]
            tensors.append(stored.metadata)
            parts.append(Part(number, stored))
            continue
        metadata = listed[want.name].metadata if pieces is None else pieces.metadata
        tensors.append(metadata)
        selection = select(metadata.shape, _subscript(want.region, metadata))
        if want.region is not None:
            plan.selections[number] = selection
        held = (listed[want.name],) if pieces is None else pieces.stored
        parts.extend(_parts(number, selection.positions, held))
    return plan


def _subscript(region: Subscript | Box | None, tensor: TensorMetadata) -> Subscript:
    if region is None:
        return ...
    if not isinstance(region, Box):
        return region
    outer = whole(tensor.shape)
    if not region.inside(outer):
        raise MismatchError(
            f"the box from {list(region.origin)} to {list(region.end)} leaves tensor {tensor.name!r}, whose shape is "
            f"{list(tensor.shape)}"
        )
    return region.within(outer)


def _parts(want: int, positions: tuple[range, ...], pieces: Iterable[StoredTensor]) -> Iterator[Part]:
    """What each of the pieces has of the positions; no part for those that have none."""
    for stored in pieces:
        box = stored.metadata.box or whole(stored.metadata.shape)
        target = [overlap(p, low, high) for p, low, high in zip(positions, box.origin, box.end, strict=True)]
        found = [place for place in target if place is not None]
        if len(found) == len(target):
            source = tuple(
                range(p[place.start] - low, p[place.stop - 1] - low + 1, p.step)
                for p, place, low in zip(positions, found, box.origin, strict=True)
            )
            yield Part(want, stored, source, tuple(found))
