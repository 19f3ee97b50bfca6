"""The header of a file that we write, and its reading twin.

Writing: a `BlockHeader` is the bytes around the block. Its size is known at once, its checksums when every tensor is
written, so it is a deferred region of the plan, and its `outside` is filled in last of all. Reading: `indexed` makes
the index of tensors that a parser has found and of the block that stood beside them, and checks all that can be
checked without reading the tensors. Between the two, a format is its byte table and little else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from asyncckpt.errors import LayoutError, TruncatedError
from asyncckpt.formats.kit.block.order import (
    add_checksums,
    decode_arranged,
    foreign_metadata,
    in_file_order,
)
from asyncckpt.formats.kit.block.seal import with_header_crc
from asyncckpt.formats.kit.block.text import Block, BlockTemplate
from asyncckpt.formats.kit.index import Extent, Index, RegionDigest, Seal, StoredTensor
from asyncckpt.formats.kit.plan import Describe, Digests, FilePlan, Payload, Payloads, TensorBytes, spans_of
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import Checksums, Chunking
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.ranges import ByteRange
from asyncckpt.model.tensors import joined_spans

Region = tuple[int, Buffer]
"""A run of the file's bytes that belong to no tensor, and where it begins."""


# -- plan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The bytes of a file from `start` on: `before`, the block, `after`."""

    before: bytes
    block: BlockTemplate
    after: bytes = b""
    start: int = 0

    @property
    def size(self) -> int:
        return len(self.before) + self.block.size + len(self.after)

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def region(self) -> ByteRange:
        return ByteRange(self.start, self.end)

    def plan(
        self,
        name: str,
        payloads: Sequence[Payload],
        *,
        size: int,
        chunking: Chunking,
        listed: Sequence[int] | None = None,
        describe: Describe | None = None,
    ) -> FilePlan:
        """A file of `size` bytes: this header, the payloads, and zeros between them.

        `listed` are the numbers of the tensors of which the block has the checksums, in its order; by default the
        payloads'. `chunking` is that of the whole content, `describe` as in FilePlan. Raises LayoutError when the
        payloads overlap.
        """
        numbers = _numbers(payloads) if listed is None else listed

        def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
            return self.encode(in_file_order(numbers, chunking, digests.checksums), payloads, size=size)

        return FilePlan(name, size, payloads, (self.region,), chunking, finish, describe=describe)

    def encode(
        self,
        checksums: Checksums,
        payloads: Sequence[Payload],
        *,
        size: int,
        others: Sequence[tuple[int, bytes]] = (),
        masks: Sequence[tuple[int, bytes]] = (),
    ) -> list[bytes]:
        """The header, and behind it the `others`, which are all else in the file that is neither payload nor zeros.

        `masks` are spans that the header's CRC32C counts as other bytes than they have.
        """
        block_start = self.start + len(self.before)
        own = self.before + self.block.render(block_start, checksums) + self.after
        return with_header_crc(
            [(self.start, own), *others],
            spans_of(payloads),
            size=size,
            at=block_start + self.block.outside_position,
            masks=masks,
        )


def _numbers(payloads: Sequence[Payload]) -> Sequence[int]:
    if isinstance(payloads, Payloads):
        numbers: list[int] = payloads.numbers.tolist()
        return numbers
    return [payload.tensor for payload in payloads]


# -- parse -----------------------------------------------------------------------------------------------------


def indexed(
    stored: Sequence[StoredTensor],
    block: Block | None,
    *,
    format: str,
    version: str,
    regions: Sequence[Region] = (),
    size: int | None = None,
    masks: Sequence[tuple[int, bytes]] = (),
    metadata: CheckpointMetadata | None = None,
    custom_fields: Mapping[str, Json] = MappingProxyType({}),
    header_extents: tuple[Extent, ...] | None = None,
    files: tuple[str, ...] = ("",),
    warnings: tuple[str, ...] = (),
    digests: tuple[RegionDigest, ...] = (),
    details: Mapping[str, Json] = MappingProxyType({}),
    seals: frozenset[Seal] = frozenset(),
) -> Index:
    """The index of the tensors, given in the order of the file, with what the block says of them.

    `regions` are the bytes outside the tensors of a file of `size` bytes: with a block, the two must fill the file
    to its end, and the header's CRC32C is verified. Without regions the caller has verified it. `metadata` is the
    checkpoint's where the format has its own place for it; else it is the block's, or in a foreign file, which has
    no block, made of `custom_fields`. Raises LayoutError, TruncatedError, ChecksumMismatchError.
    """
    _require_unique(stored)
    if size is not None:
        _require_inside(stored, size)
    if block is not None and regions and size is not None:
        _require_whole(stored, regions, size)
        block.check_outside(regions, _spans(stored), size=size, masks=masks)
        header_extents = header_extents or tuple(Extent(start, len(data)) for start, data in regions)
    if block is not None:
        stored = add_checksums(stored, block)
    if metadata is None and block is not None:
        metadata, stored = decode_arranged(block.metadata, stored)
    return Index(
        format=format,
        version=version,
        metadata=foreign_metadata(stored, custom_fields) if metadata is None else metadata,
        tensors=stored if isinstance(stored, StoredTable) else tuple(stored),
        tree=None if block is None else block.tree,
        warnings=warnings,
        files=files,
        digests=digests,
        header_extents=header_extents,
        details=details,
        seals=seals,
    )


def _spans(stored: Sequence[StoredTensor]) -> Iterable[tuple[int, int]]:
    """Where the tensors of the parsed file lie."""
    if isinstance(stored, StoredTable):
        return joined_spans(stored.starts, stored.ends) if stored.file == 0 else ()
    return ((at, at + size) for tensor in stored for at, size, file in tensor.runs if file == 0)


def _require_unique(stored: Sequence[StoredTensor]) -> None:
    names = set(stored.tensors.names if isinstance(stored, StoredTable) else (t.name for t in stored))
    if len(names) != len(stored):
        raise LayoutError("two tensors of the file have the same name")


def _require_inside(stored: Sequence[StoredTensor], size: int) -> None:
    if isinstance(stored, StoredTable) and not (stored.ends > size).any():
        return
    for tensor in stored:
        for extent in tensor.runs:
            if extent.file == 0 and extent.end > size:
                raise TruncatedError(
                    f"tensor {tensor.name!r} ends at {extent.end}, the file has {size} bytes"
                )


def _require_whole(stored: Sequence[StoredTensor], regions: Sequence[Region], size: int) -> None:
    end = max(
        max((start + len(data) for start, data in regions), default=0),
        max((end for _, end in _spans(stored)), default=0),
    )
    if end < size:
        raise LayoutError(f"{size - end} bytes are left over after the last tensor")
