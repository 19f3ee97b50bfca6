"""BLAKE3 as METAGRAPH uses it: of sections, of tensors, of names, and the root over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from asyncckpt.errors import MissingExtraError
from asyncckpt.model.buffers import Buffer

HASH_BYTES = 32
ID_BYTES = 16


def require(module: str) -> Any:
    """An optional package of the extra `bundle`. Raises MissingExtraError with the line that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"this METAGRAPH bundle needs {package}: pip install 'asyncckpt[bundle]'"
        ) from error


def new_hasher() -> Any:
    """A hasher for much data; it spreads large updates over all cores."""
    blake3 = require("blake3").blake3
    return blake3(max_threads=blake3.AUTO)


def hash_of(data: Buffer) -> bytes:
    """All 32 bytes of the BLAKE3."""
    digest: bytes = require("blake3").blake3(data).digest()
    return digest


def short_hash(digest: bytes) -> int:
    """The u64 that headers have room for: the first 8 bytes, little-endian."""
    return int.from_bytes(digest[:8], "little")


def node_ids(names: Iterable[bytes]) -> list[bytes]:
    """The id of each node: the first 16 bytes of the BLAKE3 of its name."""
    blake3 = require("blake3").blake3
    return [blake3(name).digest(ID_BYTES) for name in names]


def root_of(section_index: Buffer, hashes: Sequence[bytes]) -> bytes:
    """The hash that stands for the whole bundle: section index, then each section's hash, SIGNATURE left out."""
    return hash_of(bytes(section_index) + b"".join(hashes))
