"""The header of an SDNB file, the keys of its metadata, and the options of the format."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from asyncckpt.arguments import AtLeastOne, NotNegative, check_fields
from asyncckpt.errors import LayoutError, TruncatedError, UnsupportedVersionError
from asyncckpt.formats.sdnb.graph.build import UpdaterState
from asyncckpt.formats.sdnb.graph.read import MAX_GRAPH_BYTES
from asyncckpt.model.metadata import now

MAGIC = b"SDNB"
VERSION = 1
HEADER_BYTES = 32
ROOT_BYTES = 4
ALIGNMENT = 64
BLOCK_KEY = "asyncckpt"
FORMAT_VERSION_KEY = "nd4j.format.version"
FORMAT_TYPE_KEY = "nd4j.format.type"
CREATION_KEY = "creation.time"
SHARD_INDEX_KEY = "shard.index"
SHARD_TYPE_KEY = "shard.type"
RESERVED_KEYS = frozenset(
    {BLOCK_KEY, FORMAT_VERSION_KEY, FORMAT_TYPE_KEY, CREATION_KEY, SHARD_INDEX_KEY, SHARD_TYPE_KEY}
)
SHARD_SIZES_MEMBER = "shardSizes"
MAX_UPDATER_BYTES = 2**31 - 1
_LAYOUT = struct.Struct(">4siqqq")


@dataclass(frozen=True, slots=True)
class Header:
    """The first 32 bytes."""

    manifest_offset: int
    manifest_length: int

    def encode(self) -> bytes:
        return _LAYOUT.pack(MAGIC, VERSION, self.manifest_offset, self.manifest_length, HEADER_BYTES)

    @classmethod
    def decode(cls, data: memoryview) -> Header:
        """Raises FormatError subclasses."""
        if len(data) < HEADER_BYTES:
            raise TruncatedError(f"an SDNB header has {HEADER_BYTES} bytes, the file has {len(data)}")
        magic, version, offset, length, metadata = _LAYOUT.unpack(data[:HEADER_BYTES])
        if magic != MAGIC:
            raise LayoutError(f"not an SDNB file: it begins with {magic.hex(' ')}")
        if version != VERSION:
            raise UnsupportedVersionError(
                f"SDNB version {version} is not supported: upgrade asyncckpt to read it"
            )
        if offset == -1 or length == -1:
            raise LayoutError("the SDNB file was never finished: its header has no manifest")
        if metadata != HEADER_BYTES:
            raise LayoutError(
                f"the graph of an SDNB file begins at {HEADER_BYTES}, the header says {metadata}"
            )
        if offset < HEADER_BYTES + ROOT_BYTES or not 0 <= length <= MAX_GRAPH_BYTES:
            raise LayoutError(f"the manifest can't have {length} bytes at {offset}")
        return cls(offset, length)


@dataclass(frozen=True, slots=True)
class SdnbOptions:
    """How files are written, and whether updater state is listed among the tensors when they are read."""

    shards: AtLeastOne | None = None
    shard_limit_bytes: AtLeastOne = 1 << 30
    inline_below: NotNegative = 1 << 20
    inline_total: NotNegative = 16 << 20
    updater_state: UpdaterState | None = None
    load_updater_state: bool = True
    clock: Callable[[], datetime] = field(default=now)

    def __post_init__(self) -> None:
        check_fields(self)
