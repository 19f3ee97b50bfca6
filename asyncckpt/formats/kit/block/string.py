"""The `asyncckpt` block where it stands as a string in a JSON header: safetensors and the index of its sets."""

from __future__ import annotations

from collections.abc import Iterable

from asyncckpt.errors import ChecksumMismatchError, LayoutError
from asyncckpt.formats.kit.block.text import Block, has_traces
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.model.metadata import Json

BLOCK_KEY = "asyncckpt"


def decode_block(value: Json, raw: memoryview) -> Block | None:
    """The block that stands as a string in the JSON of `raw`, the file's first bytes; None for a foreign file.

    Raises LayoutError when it is malformed or has lost its name.
    """
    if value is None:
        if has_traces(raw, escaped=True):
            raise LayoutError(f"the header is damaged: it has an asyncckpt block, but not as {BLOCK_KEY!r}")
        return None
    if not isinstance(value, str) or not value.isascii():
        raise LayoutError(f"the entry {BLOCK_KEY!r} is not an asyncckpt block")
    return Block.decode(load_json(value, "the asyncckpt block"))


def check_block(block: Block, raw: memoryview, payloads: Iterable[tuple[int, int]], *, size: int) -> None:
    """Compare the block with the header it came from. Raises ChecksumMismatchError.

    Programs that copy the metadata of one file into another are common enough for a hint.
    """
    try:
        block.check_outside([(0, raw)], payloads, size=size)
    except ChecksumMismatchError as error:
        raise ChecksumMismatchError(
            f"{error} (if another program copied its metadata here, remove the entry {BLOCK_KEY!r} to load the "
            "tensors unverified)"
        ) from None
