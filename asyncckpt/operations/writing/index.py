"""The index of what was written, equal to the one that reading yields, without a byte being read.

The tree of a large state is kept as text, and becomes objects when somebody asks for the index: whoever drops a million
of them holds up the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from asyncckpt.errors import CheckpointError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Extent, Index, Seal, StoredTensor
from asyncckpt.formats.kit.metadata_json import decode_metadata, encode_metadata, with_shards
from asyncckpt.formats.kit.plan import AnyPlan, Content, Digests, FilePlan, Payloads
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.model.checksums import Checksums, Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata
from asyncckpt.model.state.tree import is_small
from asyncckpt.model.tensors import Column, TensorTable

Describe = Callable[[CheckpointMetadata], CheckpointMetadata]


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
    tensors: TensorTable
    file_numbers: Column
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
        offsets, file_numbers = _places(len(content.tensors), named)
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
            tensors=content.table().at(offsets),
            file_numbers=file_numbers,
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
        """The index as reading yields it, made anew at each call; for a worker thread, if its tree is large.

        Raises CheckpointError for a file whose tensors lie in others, too: only they know where.
        """
        stored = self.stored
        if stored is not None and len(stored) != sum(self.shards):
            raise CheckpointError("the tensors lie in other files, too: open the checkpoint for its index")
        metadata = self._metadata(
            self.tensors if stored is None else tuple(tensor.metadata for tensor in stored)
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
        text = dump_json(encode_metadata(self.metadata))
        metadata = with_shards(decode_metadata(load_json(text.encode(), "the metadata")), groups)
        return metadata if self.describe is None else self.describe(metadata)

    def _stored(self, metadata: CheckpointMetadata) -> StoredTable:
        listed = TensorTable.joined(shard.tensors for shard in metadata.shards)
        return StoredTable(
            listed.with_boxes(self.tensors.boxes),
            self.tensors.offsets,
            self.file_numbers,
            self.checksums,
            self.positions,
            self.chunk_bytes,
        )


def _described(
    describe: Callable[[CheckpointMetadata, Digests], CheckpointMetadata],
    digests: Digests,
    metadata: CheckpointMetadata,
) -> CheckpointMetadata:
    return describe(metadata, digests)


def _places(count: int, plans: Sequence[AnyPlan]) -> tuple[Column, Column]:
    """Offset and file of every tensor; of a stream neither is known yet."""
    offsets, files = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for file, plan in enumerate(plans):
        for payloads in (plan.payloads, plan.inline) if isinstance(plan, FilePlan) else ():
            columns = Payloads.of_all(payloads)
            offsets[columns.numbers] = columns.offsets
            files[columns.numbers] = file
    return offsets, files


def _header_extents(plans: Sequence[AnyPlan]) -> tuple[Extent, ...] | None:
    """All that is not zero outside the payloads; a stream does not tell."""
    extents = []
    for file, plan in enumerate(plans):
        if not isinstance(plan, FilePlan):
            return None
        extents += [Extent(region.start, region.size, file) for region in plan.deferred if region.size]
    return tuple(extents)
