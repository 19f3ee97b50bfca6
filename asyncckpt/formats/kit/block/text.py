"""The `asyncckpt` block: the one JSON object that every file we write carries, wherever its format has room.

It holds what the format itself does not: the state's tree, boxes, the CRC32C of every chunk of every tensor, and
`outside`, the CRC32C over all bytes of the file outside the payloads (its own eight digits counted as '0').
Its length does not depend on the values of the checksums, so a header can be planned first and written last.

======== ==========================================================================================================
member   value
======== ==========================================================================================================
block    1, the version of this block
at       where the digits of `outside` begin in the file, 16 decimal digits
outside  8 hex digits, "--------" where the format has its own hashes over all of it
chunk    bytes in a checksum chunk, counted from the start of each tensor
crc32c   8 hex digits for each chunk of each tensor, in the order of the file's index
tree     the structure of the state; absent for bare tensors
boxes    name -> [global shape, origin] of tensors that are pieces of larger ones
metadata the checkpoint's metadata, where the format has no place of its own for it
exact    what the metadata in the format's own place does not say exactly (see beyond_json.py); absent if nothing
======== ==========================================================================================================

Where a header is JSON of strings only (safetensors, the index of its sets) the block stands there as a string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncckpt.errors import ChecksumMismatchError, LayoutError
from asyncckpt.formats.kit.block.seal import outside_crc32c
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.model.boxes import Shape
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import Checksums, Chunking
from asyncckpt.model.metadata import Json, TensorMetadata

BLOCK_VERSION = 1
BLOCK_KEY = "asyncckpt"
"""The name of the block where a format keeps it under one."""
EXACT = "exact"
_AT_DIGITS = 16
_NO_OUTSIDE = "--------"
_MAX_CHUNK_BYTES = 1 << 62
_TRACES = (b'{"block":', b'"outside":"', b'"crc32c":"')
# Programs that copy the strings of one file's header into another's are common enough for a hint.
_COPIED_ADVICE = (
    "if another program copied its metadata here, remove the entry 'asyncckpt' to load it unverified"
)
_MANY_NAMES = 256
_ESCAPED_AT_ONCE = 256 * 1024


def has_traces(data: Buffer, *, escaped: bool = False) -> bool:
    """Whether members of a block stand here, or, `escaped`, inside a JSON string.

    A file of ours that lost its block must not look foreign: it would be read without checksums and tree.
    """
    found = bytes(data)
    return any((trace.replace(b'"', b'\\"') if escaped else trace) in found for trace in _TRACES)


@dataclass(frozen=True, slots=True)
class BlockTemplate:
    """The block as text whose checksums are still open. All of it is ASCII: one character is one byte."""

    before_at: str
    before_outside: str
    before_crc32c: str
    rest: str
    chunks: int
    has_outside: bool = True

    @classmethod
    def build(
        cls,
        content: Content,
        chunking: Chunking,
        *,
        metadata: Json = None,
        exact: Json = None,
        outside: bool = True,
    ) -> BlockTemplate:
        """The block of a content whose tensors are stored in the order of `chunking`.

        Raises ValueError when the tree or the metadata is not JSON.
        """
        members: dict[str, Json] = {}
        table = content.table()
        boxes = (
            {name: table.boxes[name] for name in table.names if name in table.boxes} if table.boxes else {}
        )
        if boxes:
            members["boxes"] = boxes
        if metadata is not None:
            members["metadata"] = metadata
        if exact is not None:
            members[EXACT] = exact
        texts = [] if content.tree is None else [f'"tree":{content.tree_text}']
        texts += [dump_json(members)[1:-1]] if members else []
        return cls(
            before_at=f'{{"block":{BLOCK_VERSION},"at":"',
            before_outside='","outside":"',
            before_crc32c=f'","chunk":{chunking.chunk_bytes},"crc32c":"',
            rest=f'",{",".join(texts)}}}' if texts else '"}',
            chunks=chunking.count,
            has_outside=outside,
        )

    def escaped(self) -> BlockTemplate:
        """The same block as the inside of a JSON string."""
        return replace(
            self,
            before_at=_escape(self.before_at),
            before_outside=_escape(self.before_outside),
            before_crc32c=_escape(self.before_crc32c),
            rest=_escape(self.rest),
        )

    @property
    def outside_position(self) -> int:
        """Where the digits of `outside` begin, counted from the block's first byte."""
        return len(self.before_at) + _AT_DIGITS + len(self.before_outside)

    @property
    def size(self) -> int:
        return self.outside_position + 8 + len(self.before_crc32c) + 8 * self.chunks + len(self.rest)

    def render(self, start: int, checksums: Checksums) -> bytes:
        """The block, to be stored at byte `start` of the file, with `outside` still '00000000'."""
        if len(checksums) != self.chunks:
            raise LayoutError(f"the block has room for {self.chunks} checksums, {len(checksums)} were given")
        at = start + self.outside_position if self.has_outside else 0
        return "".join(
            (
                self.before_at,
                f"{at:0{_AT_DIGITS}d}",
                self.before_outside,
                "00000000" if self.has_outside else _NO_OUTSIDE,
                self.before_crc32c,
                checksums.astype(">u4").tobytes().hex(),
                self.rest,
            )
        ).encode("ascii")


def _escape(text: str) -> str:
    """In steps: a tree may have megabytes, and one call would hold the GIL for all of it."""
    steps = range(0, len(text), _ESCAPED_AT_ONCE)
    return "".join(json.dumps(text[start : start + _ESCAPED_AT_ONCE])[1:-1] for start in steps)


@dataclass(frozen=True, slots=True)
class Block:
    """A block that was read from a file, checked for its own sense."""

    at: int
    outside: int | None
    chunk_bytes: int
    checksums: Checksums
    tree: Json
    boxes: dict[str, tuple[Shape, Shape]]
    metadata: Json
    advice: str | None = None
    """What to do when the file is not the one that the block speaks of."""

    @classmethod
    def decode(cls, value: Json) -> Block:
        """Raises LayoutError for anything that `BlockTemplate` would not have written."""
        if not isinstance(value, dict):
            raise LayoutError(f"the asyncckpt block is {type(value).__name__}, not an object")
        if value.get("block") != BLOCK_VERSION:
            raise LayoutError(f"the asyncckpt block has version {value.get('block')!r}, this release reads 1")
        outside = value.get("outside")
        chunk = value.get("chunk")
        if type(chunk) is not int or not 0 < chunk <= _MAX_CHUNK_BYTES:
            raise LayoutError(f"the asyncckpt block has chunks of {chunk!r} bytes")
        return cls(
            at=_decimal(value.get("at")),
            outside=None if outside == _NO_OUTSIDE else int.from_bytes(_from_hex(outside, 8), "big"),
            chunk_bytes=chunk,
            checksums=np.frombuffer(_from_hex(value.get("crc32c")), ">u4").astype(np.uint32),
            tree=value.get("tree"),
            boxes=_boxes(value.get("boxes", {})),
            metadata=value.get("metadata"),
        )

    @classmethod
    def decode_string(cls, value: Json, raw: memoryview) -> Block | None:
        """The block that stands as a string in the JSON of `raw`, the file's first bytes; None for a foreign file.

        Raises LayoutError when it is malformed or has lost its name.
        """
        if value is None:
            if has_traces(raw, escaped=True):
                raise LayoutError(
                    f"the header is damaged: it has an asyncckpt block, but not as {BLOCK_KEY!r}"
                )
            return None
        if not isinstance(value, str) or not value.isascii():
            raise LayoutError(f"the entry {BLOCK_KEY!r} is not an asyncckpt block")
        return replace(cls.decode(load_json(value, "the asyncckpt block")), advice=_COPIED_ADVICE)

    def chunking(self, sizes: Sequence[int]) -> Chunking:
        """How the tensors are cut. Raises LayoutError when there are more or fewer checksums than chunks."""
        chunking = Chunking.of(self.chunk_bytes, sizes)
        if chunking.count != len(self.checksums):
            raise LayoutError(f"the file has {len(self.checksums)} checksums for {chunking.count} chunks")
        return chunking

    def share_names(self, names: Sequence[str]) -> None:
        """Let the tree hold these very strings, not copies: a tensor's name stands in it up to twice.

        For a few names the walk costs more than the memory is worth.
        """
        if len(names) < _MANY_NAMES:
            return
        known = {name: name for name in names}
        stack = [[self.tree]]
        while stack:
            nodes = stack.pop()
            nodes[:] = [known.get(node, node) if type(node) is str else node for node in nodes]
            for node in nodes:
                if type(node) is list:
                    stack.append(node)
                elif type(node) is dict:
                    for key, value in node.items():
                        if type(value) is list:
                            stack.append(value)
                        elif type(value) is str:
                            node[key] = known.get(value, value)

    def boxed(self, tensor: TensorMetadata) -> TensorMetadata:
        """The tensor, with its place in a larger one where it has any. Raises LayoutError."""
        place = self.boxes.get(tensor.name)
        if place is None:
            return tensor
        shape, origin = place
        if len(shape) != len(tensor.shape) or any(
            o + n > whole for o, n, whole in zip(origin, tensor.shape, shape, strict=True)
        ):
            raise LayoutError(
                f"tensor {tensor.name!r} of shape {tensor.shape} lies outside its global {shape}"
            )
        return replace(tensor, global_shape=shape, origin=origin)

    def check_outside(
        self,
        regions: Sequence[tuple[int, Buffer]],
        payloads: Iterable[tuple[int, int]],
        *,
        size: int,
        masks: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Compare `outside` with the bytes that were read; unread gaps count as zeros.

        Raises ChecksumMismatchError.
        """
        if self.outside is None:
            return
        masks = [*masks, (self.at, b"00000000")]
        value = outside_crc32c(regions, payloads, size=size, masks=masks)
        if value != self.outside:
            error = ChecksumMismatchError(
                f"the header is damaged: its CRC32C is {value:08x}, the file says {self.outside:08x}"
            )
            error.advice = self.advice
            raise error


def _decimal(value: Json) -> int:
    if not isinstance(value, str) or len(value) != _AT_DIGITS or not (value.isascii() and value.isdigit()):
        raise LayoutError(f"the asyncckpt block has a bad position {value!r}")
    return int(value)


def _from_hex(value: Json, length: int | None = None) -> bytes:
    if not isinstance(value, str) or len(value) % 8 or (length is not None and len(value) != length):
        raise LayoutError("the asyncckpt block has a checksum of the wrong length")
    try:
        data = bytes.fromhex(value)
    except ValueError:
        data = b""
    # Python also takes capitals and spaces.
    if data.hex() != value:
        raise LayoutError("the asyncckpt block has a checksum that is not lower-case hexadecimal")
    return data


def _boxes(value: Json) -> dict[str, tuple[Shape, Shape]]:
    if not isinstance(value, dict):
        raise LayoutError("the boxes of the asyncckpt block are not an object")
    boxes = {}
    for name, pair in value.items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(_is_shape(part) for part in pair)):
            raise LayoutError(f"tensor {name!r} has a malformed box")
        shape, origin = map(tuple, pair)
        if len(shape) != len(origin):
            raise LayoutError(
                f"tensor {name!r} has a box of rank {len(shape)} with an origin of {len(origin)}"
            )
        boxes[name] = (shape, origin)
    return boxes


def _is_shape(value: Json) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)
