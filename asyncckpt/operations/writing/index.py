"""The index of what was written, equal to the one that reading yields, without a byte being read.

Of a checkpoint of very many tensors the objects of an index take gigabytes, and whoever drops them holds up the event
loop. So it is kept as columns and text, and put together when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from asyncckpt.errors import CheckpointError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Extent, Index, Seal, StoredTensor
from asyncckpt.formats.kit.metadata_json import decode_metadata, encode_metadata, with_shards
from asyncckpt.formats.kit.plan import AnyPlan, Content, Digests, FilePlan
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.model.boxes import Shape
from asyncckpt.model.checksums import Checksums, Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata
from asyncckpt.model.state.tree import is_small
from asyncckpt.operations.writing.cutting import Column

Describe = Callable[[CheckpointMetadata], CheckpointMetadata]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class TensorColumns:
    """Names, dtypes and shapes of tensors, and where they lie: one array or text each, however many there are.

    `boxes` has those that are pieces of larger tensors, by number: global shape and origin.
    """

    names: str
    name_ends: Column
    dtypes: tuple[str, ...]
    dtype_numbers: NDArray[np.uint16]
    dims: Column
    dim_ends: Column
    boxes: dict[int, tuple[Shape | None, Shape | None]]
    offsets: Column
    files: NDArray[np.int32]

    @classmethod
    def of(
        cls, tensors: Sequence[TensorMetadata], offsets: Column, files: NDArray[np.int32]
    ) -> TensorColumns:
        names = [tensor.name for tensor in tensors]
        shapes = [tensor.shape for tensor in tensors]
        numbers: dict[str, int] = {}
        return cls(
            names="".join(names),
            name_ends=_ends(list(map(len, names))),
            # Filled by the next line: dicts keep the order.
            dtype_numbers=np.array([numbers.setdefault(t.dtype, len(numbers)) for t in tensors], np.uint16),
            dtypes=tuple(numbers),
            dims=np.array([dim for shape in shapes for dim in shape], np.int64),
            dim_ends=_ends(list(map(len, shapes))),
            boxes={n: (t.global_shape, t.origin) for n, t in enumerate(tensors) if t.origin is not None},
            offsets=offsets,
            files=files,
        )

    def metadata(self) -> Iterator[TensorMetadata]:
        """The tensors, each at its offset in its file."""
        dims: list[int] = self.dims.tolist()
        names = (self.names[a:b] for a, b in pairwise([0, *self.name_ends.tolist()]))
        shapes = (tuple(dims[a:b]) for a, b in pairwise([0, *self.dim_ends.tolist()]))
        dtypes = (self.dtypes[number] for number in self.dtype_numbers.tolist())
        columns = zip(names, dtypes, shapes, self.offsets.tolist(), strict=True)
        for number, (name, dtype, shape, offset) in enumerate(columns):
            yield self.boxed(number, TensorMetadata(name, dtype, shape, offset))

    def boxed(self, number: int, tensor: TensorMetadata) -> TensorMetadata:
        """The tensor with its place in a larger one, where it has any."""
        if number not in self.boxes:
            return tensor
        global_shape, origin = self.boxes[number]
        return replace(tensor, global_shape=global_shape, origin=origin)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class IndexRecord:
    """What an index is made of. `stored` are the tensors of a stream, which says itself where they are."""

    format: str
    version: str
    seals: frozenset[Seal]
    files: tuple[str, ...]
    header_extents: tuple[Extent, ...] | None
    metadata: CheckpointMetadata
    shards: tuple[int, ...]
    tree: Json
    tree_text: str | None
    columns: TensorColumns
    chunk_bytes: int
    positions: Column
    checksums: Checksums | None = None
    stored: tuple[StoredTensor, ...] | None = None
    describe: Describe | None = None

    @classmethod
    def of(cls, content: Content, plans: Sequence[AnyPlan], format: ICheckpointFormat) -> IndexRecord:
        """All that is known once the files are planned. For a worker thread, if there are many tensors."""
        listed = [plan for plan in plans[:-1] if not (isinstance(plan, FilePlan) and plan.is_side_file)]
        named = [plans[-1], *listed]
        small = is_small(content.tree)
        last = plans[-1]
        chunking = last.chunking if isinstance(last, FilePlan) else Chunking.of(1, ())
        return cls(
            format=format.name,
            version=format.version,
            seals=format.seals,
            files=("", *(plan.name for plan in listed)),
            header_extents=_header_extents(named),
            metadata=with_shards(content.metadata, [()] * len(content.shards)),
            shards=content.shards,
            tree=content.tree if small else None,
            tree_text=None if small else content.tree_text,
            columns=TensorColumns.of(content.tensors, *_places(len(content.tensors), named)),
            chunk_bytes=chunking.chunk_bytes,
            positions=chunking.positions,
        )

    def with_digests(self, digests: Digests, plan: FilePlan) -> IndexRecord:
        """The record, with what was computed while the files were written; `plan` is that of the last of them."""
        describe = None if plan.describe is None else partial(_described, plan.describe, digests)
        return replace(self, checksums=digests.checksums, describe=describe)

    def with_stored(self, stored: Sequence[StoredTensor]) -> IndexRecord:
        """The record of a stream, which knows where its tensors are once it has been made."""
        return replace(self, stored=tuple(stored))

    def index(self) -> Index:
        """The index as reading yields it, made anew at each call; for a worker thread, if there are many tensors.

        Raises CheckpointError for a file whose tensors lie in others, too: only they know where.
        """
        stored = self.stored
        if stored is not None and len(stored) != sum(self.shards):
            raise CheckpointError("the tensors lie in other files, too: open the checkpoint for its index")
        metadata = self._metadata(
            list(self.columns.metadata()) if stored is None else [tensor.metadata for tensor in stored]
        )
        return Index(
            format=self.format,
            version=self.version,
            metadata=metadata,
            tensors=self._stored(metadata) if stored is None else stored,
            tree=self.tree if self.tree_text is None else load_json(self.tree_text.encode(), "the tree"),
            files=self.files,
            header_extents=self.header_extents,
            seals=self.seals,
        )

    def _metadata(self, tensors: Sequence[TensorMetadata]) -> CheckpointMetadata:
        """As a reader has it: from JSON, with the tensors of each shard."""
        groups, start = [], 0
        for count in self.shards:
            groups.append(tensors[start : start + count])
            start += count
        metadata = with_shards(decode_metadata(encode_metadata(self.metadata)), groups)
        return metadata if self.describe is None else self.describe(metadata)

    def _stored(self, metadata: CheckpointMetadata) -> tuple[StoredTensor, ...]:
        assert self.checksums is not None
        columns, checksums, made = self.columns, self.checksums, []
        tensors = (tensor for shard in metadata.shards for tensor in shard.tensors)
        chunks = pairwise(self.positions.tolist())
        places = zip(columns.offsets.tolist(), columns.files.tolist(), strict=True)
        for number, (tensor, (first, end), (offset, file)) in enumerate(
            zip(tensors, chunks, places, strict=True)
        ):
            extents = (Extent(offset, tensor.size, file),)
            own = columns.boxed(number, tensor)
            made.append(StoredTensor(own, extents, checksums[first:end], chunk_bytes=self.chunk_bytes))
        return tuple(made)


def _described(
    describe: Callable[[CheckpointMetadata, Digests], CheckpointMetadata],
    digests: Digests,
    metadata: CheckpointMetadata,
) -> CheckpointMetadata:
    return describe(metadata, digests)


def _ends(sizes: Sequence[int]) -> Column:
    return np.cumsum(np.array(sizes, np.int64))


def _places(count: int, plans: Sequence[AnyPlan]) -> tuple[Column, NDArray[np.int32]]:
    """Offset and file of every tensor; of a stream neither is known yet."""
    offsets, files = np.zeros(count, np.int64), np.zeros(count, np.int32)
    for file, plan in enumerate(plans):
        if isinstance(plan, FilePlan) and (plan.payloads or plan.inline):
            stored = (*plan.payloads, *plan.inline)
            numbers = np.array([payload.tensor for payload in stored], np.int64)
            offsets[numbers] = [payload.offset for payload in stored]
            files[numbers] = file
    return offsets, files


def _header_extents(plans: Sequence[AnyPlan]) -> tuple[Extent, ...] | None:
    """All that is not zero outside the payloads; a stream does not tell."""
    extents = []
    for file, plan in enumerate(plans):
        if not isinstance(plan, FilePlan):
            return None
        extents += [Extent(region.start, region.size, file) for region in plan.deferred if region.size]
    return tuple(extents)
