"""A reader of GPTRSCHK and GPTRSTEN files and their asyncckpt block, written from docs/formats/gptrs.md alone.

It imports nothing but the standard library, so a mistake of ours can't hide in code that both sides share. BLAKE3 is
not in the standard library: base ids are handed out as they stand in the file.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

ITEM_BYTES = (4, 2, 2, 4)
DTYPES = ("F32", "F16", "BF16", "I32")


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    base_id: bytes
    requires_grad: bool
    offset: int
    data: bytes


class File(NamedTuple):
    version: int
    config: Any
    tensors: dict[str, Tensor]
    block: dict[str, Any] | None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if self.position + size > len(self.data):
            raise ValueError("the file is cut")
        self.position += size
        return self.data[self.position - size : self.position]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")


def read(data: bytes) -> File:
    """Everything in the file, with all checksums verified."""
    reader = _Reader(data)
    magic = reader.take(8)
    if magic not in (b"GPTRSCHK", b"GPTRSTEN"):
        raise ValueError("no such file")
    has_config = magic == b"GPTRSCHK"
    version = reader.u32()
    config = json.loads(reader.take(reader.u32())) if has_config else None
    index_end = 0
    if version == 2:
        index_bytes = reader.u32()
        index_end = reader.position + index_bytes
    tensors = {}
    for _ in range(reader.u32()):
        name = reader.take(reader.u32()).decode()
        base_id = reader.take(16) if has_config and version == 2 else bytes(16)
        shape = tuple(reader.u64() for _ in range(reader.u32()))
        dtype = reader.u32()
        grad = reader.take(1) != b"\0"
        offset = reader.u64() if version == 2 else reader.position + 8
        size = reader.u64()
        count = 1
        for side in shape:
            count *= side
        if size != count * ITEM_BYTES[dtype] or offset + size > len(data):
            raise ValueError(f"{name} does not fit")
        tensors[name] = Tensor(DTYPES[dtype], shape, base_id, grad, offset, data[offset : offset + size])
        if version == 1:
            reader.take(size)
    if version == 1:
        return File(version, config, tensors, None)
    if reader.position != index_end:
        raise ValueError("the index has another length")
    block = _block(reader, tensors)
    if block is not None and block["metadata"].get("endMark"):
        tensors = {}
    return File(version, config, tensors, block)


def _block(reader: _Reader, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    data = reader.data
    if data[reader.position : reader.position + 8] != b"ACKPTMET":
        return None
    reader.take(8)
    block: dict[str, Any] = json.loads(reader.take(reader.u32()))
    at = int(block["at"])
    outside = bytearray(data)
    outside[at : at + 8] = b"00000000"
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset, reverse=True):
        del outside[tensor.offset : tensor.offset + len(tensor.data)]
    if crc32c(bytes(outside)) != int(block["outside"], 16):
        raise ValueError("something outside the tensors is damaged")
    found = ""
    for tensor in tensors.values():
        for start in range(0, len(tensor.data), block["chunk"]):
            found += f"{crc32c(tensor.data[start : start + block['chunk']]):08x}"
    if found != block["crc32c"]:
        raise ValueError("a tensor is damaged")
    return block


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC32C[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def floats(data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // 4}f", data)
