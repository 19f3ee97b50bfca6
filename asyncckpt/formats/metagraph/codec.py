"""How stored bytes are made and read back: zstd, AES-256-GCM, or both (compressed first).

An encrypted run is a random nonce of 12 bytes ‖ ciphertext ‖ tag of 16 bytes. Its associated data are bundle_id u64 ‖
section type u32 ‖ frame number u64, little-endian, so no run can stand in for another. Frames of STORE are numbered
through the bundle; every other section is one run with the number 0.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

from asyncckpt.errors import DecryptionError, LayoutError, LimitExceededError
from asyncckpt.formats.metagraph.hashing import require
from asyncckpt.formats.metagraph.header import Flag, Section, SectionType
from asyncckpt.model.checksums import Buffer

RandomBytes = Callable[[int], bytes]
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
LEVEL = 3
_ASSOCIATED = struct.Struct("<QIQ")
_FREE_BYTES = 1 << 20
_FREE_TENSOR_BYTES = 64 << 20
"""Up to so many bytes of tensors any ratio is fine: a fresh optimiser is nothing but zeros."""
_MAX_RATIO = 200
"""A section that would shrink more is stored as it is, so that a reader can refuse anything that grows more."""


class Codec:
    """The two ways of one bundle. Safe to use from several threads. Never shows its key."""

    def __init__(self, *, compress: bool, key: bytes | None, bundle_id: int = 0) -> None:
        self._compress = compress
        self._bundle_id = bundle_id
        self._cipher: Any = None if key is None else _cipher(key)
        self._local = threading.local()
        if compress:
            require("zstandard")

    @property
    def flags(self) -> int:
        return Flag.COMPRESSED * self._compress | Flag.ENCRYPTED * (self._cipher is not None)

    def encode_frame(self, number: int, raw: Buffer, random: RandomBytes) -> bytes:
        data = self._compressor().compress(raw) if self._compress else raw
        return self._encrypt(data, random, SectionType.STORE, number)

    def decode_frame(self, number: int, stored: Buffer, *, raw_size: int, what: str) -> bytes:
        """Raises DecryptionError, LayoutError, LimitExceededError."""
        data = self._decrypt(stored, SectionType.STORE, number, what)
        if self._compress:
            return self._expand(data, raw_size, what)
        if len(data) != raw_size:
            raise LayoutError(f"{what} has {len(data)} bytes, {raw_size} were expected")
        return bytes(data)

    def encode_section(self, number: int, raw: bytes, random: RandomBytes) -> tuple[int, bytes]:
        """The section's flags and its stored bytes."""
        flags, data = self.flags, raw
        if self._compress:
            data = self._compressor().compress(raw)
            if len(raw) > _most_raw_bytes(len(data)):
                flags, data = flags & ~Flag.COMPRESSED, raw
        return flags, self._encrypt(data, random, number, 0)

    def decode_section(self, section: Section, stored: memoryview) -> memoryview:
        """Raises DecryptionError, LayoutError, LimitExceededError."""
        what = f"section {section.name}"
        data = self._decrypt(stored, section.type, 0, what) if section.flags & Flag.ENCRYPTED else stored
        if not section.flags & Flag.COMPRESSED:
            return memoryview(data)
        zstd = require("zstandard")
        try:
            size = zstd.get_frame_parameters(data).content_size
        except zstd.ZstdError:
            raise LayoutError(f"{what} is not valid zstd") from None
        if size > _most_raw_bytes(len(data)):
            raise LimitExceededError(
                f"{what} would grow from {len(data)} to {size} bytes, beyond what is allowed"
            )
        return memoryview(self._expand(data, size, what))

    def _encrypt(self, data: Buffer, random: RandomBytes, section: int, number: int) -> bytes:
        if self._cipher is None:
            return bytes(data)
        nonce = random(NONCE_BYTES)
        sealed: bytes = self._cipher.encrypt(nonce, data, _ASSOCIATED.pack(self._bundle_id, section, number))
        return nonce + sealed

    def _decrypt(self, stored: Buffer, section: int, number: int, what: str) -> Buffer:
        if self._cipher is None:
            return stored
        if len(stored) < NONCE_BYTES + TAG_BYTES:
            raise DecryptionError(f"{what} is too short to be encrypted: it has {len(stored)} bytes")
        associated = _ASSOCIATED.pack(self._bundle_id, section, number)
        view = memoryview(stored)
        try:
            raw: bytes = self._cipher.decrypt(bytes(view[:NONCE_BYTES]), view[NONCE_BYTES:], associated)
        except require("cryptography.exceptions").InvalidTag:
            raise DecryptionError(
                f"{what} can't be decrypted: the key is another one, or the bundle was changed"
            ) from None
        return raw

    def _expand(self, data: Buffer, size: int, what: str) -> bytes:
        """Exactly `size` bytes, or an error before more than that is allocated."""
        zstd = require("zstandard")
        try:
            declared = zstd.get_frame_parameters(data).content_size
            if declared != size:
                raise LayoutError(f"{what} says that it grows to {declared} bytes, {size} were expected")
            raw: bytes = self._decompressor().decompress(data, max_output_size=size, allow_extra_data=False)
        except zstd.ZstdError:
            raise LayoutError(f"{what} is not valid zstd") from None
        except MemoryError:
            raise LimitExceededError(f"{what} needs {size} bytes of memory, which are not there") from None
        if len(raw) != size:
            raise LayoutError(f"{what} grew to {len(raw)} bytes, {size} were expected")
        return raw

    def _compressor(self) -> Any:
        # Contexts are costly to make and belong to one thread at a time.
        if not hasattr(self._local, "compressor"):
            self._local.compressor = require("zstandard").ZstdCompressor(level=LEVEL)
        return self._local.compressor

    def _decompressor(self) -> Any:
        if not hasattr(self._local, "decompressor"):
            self._local.decompressor = require("zstandard").ZstdDecompressor()
        return self._local.decompressor


def require_modest(raw_size: int, stored_size: int) -> None:
    """What a reader bears of tensors that nothing vouches for but the bundle itself. Raises LimitExceededError."""
    if raw_size > _FREE_TENSOR_BYTES and raw_size > _MAX_RATIO * stored_size:
        raise LimitExceededError(
            f"{stored_size} bytes of the bundle's tensors would grow to {raw_size}, beyond 1:{_MAX_RATIO}"
        )


def stored_bound(raw_size: int, flags: int) -> int:
    """The most that `raw_size` bytes can take when stored in one run."""
    size = raw_size
    if flags & Flag.COMPRESSED:
        size += raw_size // 128 + 512
    if flags & Flag.ENCRYPTED:
        size += NONCE_BYTES + TAG_BYTES
    return size


def require_key(key: bytes | None) -> None:
    """Raises DecryptionError for a key that AES-256 can't use."""
    if key is not None and (not isinstance(key, bytes) or len(key) != KEY_BYTES):
        raise DecryptionError(f"a bundle's key is {KEY_BYTES} bytes long")


def _cipher(key: bytes) -> Any:
    return require("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


def _most_raw_bytes(stored: int) -> int:
    return _FREE_BYTES + _MAX_RATIO * stored
