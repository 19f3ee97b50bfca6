"""METADATA, the JSON section of a METAGRAPH bundle.

================= ==========================================================================================
member            value
================= ==========================================================================================
encoding          1, the version of the records in NODES, EDGES and INDEX
creator           who wrote it
description       free text
modification_time seconds since 1970
target_platform   0, any
compression_type  0 none, 1 zstd
frame_bytes       raw bytes in a frame of STORE, where it has frames; the last one of a tensor has fewer
delta_base        of a delta: `bundle_id` (16 hex digits), `root` (64), `file` (a plain name beside this one)
hashes            section type -> BLAKE3 of its stored bytes, 64 hex digits; METADATA and SIGNATURE left out
asyncckpt         the block, the last member
================= ==========================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncckpt.errors import LayoutError, LimitExceededError, UnsupportedVersionError
from asyncckpt.formats.kit.block.text import Block, BlockTemplate
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.metagraph.delta import BaseReference
from asyncckpt.formats.metagraph.hashing import HASH_BYTES
from asyncckpt.model.checksums import Checksums
from asyncckpt.model.metadata import Json

ENCODING = 1
MAX_FRAME_BYTES = 1 << 30
_BLOCK = "asyncckpt"
_DESCRIPTIVE = ("creator", "description", "modification_time", "target_platform", "compression_type")
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class MetadataText:
    """METADATA whose hashes and checksums are still open; its size does not depend on them."""

    members: dict[str, Json]
    hashed: tuple[int, ...]
    block: BlockTemplate

    @classmethod
    def build(
        cls,
        block: BlockTemplate,
        hashed: Sequence[int],
        *,
        creator: str,
        description: str,
        modification_time: int,
        compressed: bool,
        frame_bytes: int,
        base: BaseReference | None,
    ) -> MetadataText:
        members: dict[str, Json] = {
            "encoding": ENCODING,
            "creator": creator,
            "description": description,
            "modification_time": modification_time,
            "target_platform": 0,
            "compression_type": int(compressed),
            "frame_bytes": frame_bytes,
        }
        if base is not None:
            members["delta_base"] = base.encode()
        return cls(members, tuple(hashed), block)

    @property
    def size(self) -> int:
        return len(self._before(dict.fromkeys(self.hashed, bytes(HASH_BYTES)))) + self.block.size + 1

    def render(self, hashes: Mapping[int, bytes], checksums: Checksums) -> bytes:
        # The block's position counts for nothing here: BLAKE3 covers what its own `outside` would.
        return self._before(hashes) + self.block.render(0, checksums) + b"}"

    def _before(self, hashes: Mapping[int, bytes]) -> bytes:
        listed = {str(number): hashes[number].hex() for number in self.hashed}
        text = dump_json({**self.members, "hashes": listed, _BLOCK: None})
        return text.removesuffix("null}").encode("ascii")


@dataclass(frozen=True, slots=True)
class BundleMetadata:
    """METADATA as it was read. `block` is None in a foreign bundle; `described` is what is meant for people."""

    frame_bytes: int
    hashes: dict[int, bytes]
    base: BaseReference | None
    block: Block | None
    described: dict[str, Json]


def decode_bundle_metadata(data: memoryview | bytes) -> BundleMetadata:
    """Raises LayoutError, LimitExceededError, UnsupportedVersionError."""
    members = load_json(data, "METADATA")
    if not isinstance(members, dict):
        raise LayoutError("METADATA is not a JSON object")
    encoding = members.get("encoding")
    if type(encoding) is not int or encoding < 1:
        raise LayoutError(f"METADATA has the encoding {str(encoding)[:40]}")
    if encoding > ENCODING:
        raise UnsupportedVersionError(
            f"the bundle's tables have encoding {encoding}, this release reads {ENCODING}: upgrade asyncckpt"
        )
    block, base = members.get(_BLOCK), members.get("delta_base")
    return BundleMetadata(
        frame_bytes=_frame_bytes(members.get("frame_bytes", 0)),
        hashes=_hashes(members.get("hashes")),
        base=None if base is None else BaseReference.decode(base),
        block=None if block is None else Block.decode(block),
        described={name: members[name] for name in _DESCRIPTIVE if name in members},
    )


def _frame_bytes(value: Json) -> int:
    if type(value) is not int or value < 0:
        raise LayoutError(f"METADATA has frames of {str(value)[:40]} bytes")
    if value > MAX_FRAME_BYTES:
        raise LimitExceededError(f"frames of {value} bytes are too large: at most {MAX_FRAME_BYTES} are read")
    return value


def _hashes(value: Json) -> dict[int, bytes]:
    if not isinstance(value, dict):
        raise LayoutError("METADATA has no hashes of the sections")
    hashes = {}
    for number, text in value.items():
        if not (number.isascii() and number.isdigit() and len(number) <= 10):
            raise LayoutError(f"METADATA has a hash for the section {number[:40]!a}")
        if not isinstance(text, str) or not _HASH.fullmatch(text):
            raise LayoutError(f"METADATA has a hash for section {number} that is not 64 hex digits")
        hashes[int(number)] = bytes.fromhex(text)
    return hashes
