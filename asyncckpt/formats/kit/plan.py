"""What a format plans to write: values only, no bytes moved yet.

A file is payloads (tensors' bytes, at offsets), *deferred* regions (everything else that is not zero: headers, tables,
manifests), and zeros in between. Deferred regions have a fixed place and size; their bytes are known when every
checksum is, so whoever writes the file asks `finish` for them last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, overload

import numpy as np

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.formats.kit.strict_json import dump_json
from asyncckpt.model.checksums import Buffer, Checksums, Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata
from asyncckpt.model.ranges import ByteRange
from asyncckpt.model.tensors import Column, TensorTable, joined_spans, lay_out_sizes


@dataclass(frozen=True)
class Content:
    """What is to be stored. `tensors` is flat, over all shards in order; `shards[i]` counts those of shard i.

    `tree` is the structure that the state is rebuilt from; None for bare tensors.
    """

    tensors: Sequence[TensorMetadata]
    shards: tuple[int, ...]
    metadata: CheckpointMetadata
    tree: Json = None

    def __post_init__(self) -> None:
        if sum(self.shards) != len(self.tensors):
            raise LayoutError(
                f"the shards hold {sum(self.shards)} tensors, the content has {len(self.tensors)}"
            )

    def chunking(self) -> Chunking:
        """How its tensors are cut into checksum chunks."""
        return Chunking.for_sizes(self.table().sizes.tolist())

    def table(self) -> TensorTable:
        """Its tensors as columns."""
        return TensorTable.of(self.tensors)

    @cached_property
    def tree_text(self) -> str:
        """The tree as JSON, made once: a large one takes as long as all else that a plan does."""
        return dump_json(self.tree)

    def by_shard(self) -> Iterator[Sequence[TensorMetadata]]:
        start = 0
        for count in self.shards:
            yield self.tensors[start : start + count]
            start += count


class TensorBytes(Protocol):
    """Where the bytes come from, called from a worker thread: bytes [start, end) of tensor number `tensor`."""

    def __call__(self, tensor: int, start: int, end: int) -> Buffer: ...


@dataclass(frozen=True, slots=True)
class Payload:
    """All bytes of tensor number `tensor`, at an offset of the file."""

    tensor: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Payloads(Sequence[Payload]):
    """Payloads as columns; one becomes a `Payload` when it is asked for."""

    __slots__ = ("numbers", "offsets", "sizes")

    def __init__(self, numbers: Column, offsets: Column, sizes: Column) -> None:
        self.numbers = numbers
        self.offsets = offsets
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Payload: ...
    @overload
    def __getitem__(self, index: slice) -> Payloads: ...
    def __getitem__(self, index: int | slice) -> Payload | Payloads:
        if isinstance(index, slice):
            return Payloads(self.numbers[index], self.offsets[index], self.sizes[index])
        return Payload(int(self.numbers[index]), int(self.offsets[index]), int(self.sizes[index]))

    def __iter__(self) -> Iterator[Payload]:
        return map(Payload, self.numbers.tolist(), self.offsets.tolist(), self.sizes.tolist())

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @classmethod
    def of_all(cls, payloads: Sequence[Payload]) -> Payloads:
        """Any payloads as columns."""
        if isinstance(payloads, cls):
            return payloads
        triples = np.array([(p.tensor, p.offset, p.size) for p in payloads], np.int64).reshape(-1, 3)
        return cls(triples[:, 0], triples[:, 1], triples[:, 2])

    def of(self, numbers: Sequence[int]) -> Payloads:
        """The same places, for tensors `numbers` where these have 0, 1, 2 …"""
        return Payloads(np.asarray(numbers, np.int64)[self.numbers], self.offsets, self.sizes)

    def moved(self, by: int) -> Payloads:
        return Payloads(self.numbers, self.offsets + by, self.sizes)


def spans_of(payloads: Sequence[Payload]) -> list[tuple[int, int]]:
    """Where payloads lie, (start, end); neighbours without a gap are one."""
    if not isinstance(payloads, Payloads):
        return [(payload.offset, payload.end) for payload in payloads]
    return joined_spans(payloads.offsets, payloads.offsets + payloads.sizes)


@dataclass(frozen=True, slots=True)
class Digests:
    """What was computed while the payloads were written.

    `checksums` are the CRC32C of every chunk of every tensor of the content, flat. Files of a set are written side by
    side: each has its own tensors' checksums and zeros for all others; only the last one has all of them. Where the
    plan asked for it, `crc32` has each tensor's CRC32, and `format` what its `format_digest` returned. For the last
    file, `earlier` has what the `format_digest` of the others returned, by name.
    """

    checksums: Checksums
    crc32: tuple[int, ...] = ()
    format: Any = None
    earlier: Mapping[str, Any] = field(default_factory=dict)


Describe = Callable[[CheckpointMetadata, Digests], CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file whose layout is known before a byte is written.

    `name` is the file's name beside the checkpoint's key. `finish(digests, read)` gives the bytes of each deferred
    region, in order; it runs in a worker thread. `chunking` covers all tensors of the content, in order, also
    those that lie in other files of a set: all its files share it. `format_digest(read)` is a hash over the payloads
    that only this format knows, and that takes long: whoever writes the file lets it run beside the writing, in a
    worker thread. `inline` are tensors whose bytes `finish` itself puts into a deferred region. `is_side_file` is for
    files that lie beside a set and are no part of its index.

    `describe(metadata, digests)` is for the last file of a format that does not keep the metadata as it was given:
    what a reader finds, from the metadata with every tensor in its shard, at its offset in the file.
    """

    name: str
    size: int
    payloads: Sequence[Payload]
    deferred: tuple[ByteRange, ...]
    chunking: Chunking
    finish: Callable[[Digests, TensorBytes], Sequence[bytes]]
    needs_crc32: bool = False
    format_digest: Callable[[TensorBytes], Any] | None = None
    inline: tuple[Payload, ...] = ()
    is_side_file: bool = False
    describe: Describe | None = None

    def __post_init__(self) -> None:
        position = 0
        for start, end in sorted(spans_of(self.payloads) + [tuple(r) for r in self.deferred]):
            if start < position:
                raise LayoutError(f"the plan of {self.name!r} overlaps at byte {start}")
            position = end
        if position > self.size:
            raise LayoutError(f"the plan of {self.name!r} ends at {position}, the file at {self.size}")


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One file whose size is known only when it has been made: compressed or encrypted.

    `chunks(read)` makes the bytes after the head, in order, in a worker thread; `head()` gives the first
    `head_bytes` bytes afterwards, and `stored()` the tensors as parsing the file would. It gives none for a file whose
    tensors lie in others, too. `size_bound` is an upper bound, with which parts are planned.
    """

    name: str
    size_bound: int
    chunks: Callable[[TensorBytes], Iterator[bytes]]
    head_bytes: int = 0
    head: Callable[[], bytes] = field(default=bytes)
    stored: Callable[[], Sequence[StoredTensor]] = field(default=tuple)


AnyPlan = FilePlan | StreamPlan


def aligned(offset: int, alignment: int = 64) -> int:
    """The next multiple of `alignment`, so that a memory map of the payload is directly usable."""
    return -(-offset // alignment) * alignment


def lay_out(tensors: Sequence[TensorMetadata], start: int, *, alignment: int = 64) -> tuple[Payloads, int]:
    """Lay the tensors out one after another from `start`, aligned. Returns the payloads and the end.

    Raises LayoutError for more bytes than any file has.
    """
    sizes = TensorTable.of(tensors).sizes
    offsets, end = lay_out_sizes(sizes, start, alignment)
    return Payloads(np.arange(len(sizes)), offsets, sizes), end
