"""A reader of safetensors files and their asyncckpt block, written from docs/formats/safetensors.md alone.

It imports nothing but the standard library, so a mistake of ours can't hide in code that both sides share.
"""

from __future__ import annotations

import json
import struct
from typing import Any

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def read(data: bytes) -> tuple[dict[str, tuple[str, list[int], bytes]], dict[str, Any] | None]:
    """Each tensor as (dtype, shape, bytes), and the block, with all its checksums verified."""
    (length,) = struct.unpack_from("<Q", data)
    start = 8 + length
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        count = 1
        for side in entry["shape"]:
            count *= side
        if begin != position or end - begin != count * ITEM_BYTES[entry["dtype"]]:
            raise ValueError(f"{name} is misplaced")
        tensors[name] = (entry["dtype"], entry["shape"], data[start + begin : start + end])
        position = end
    if start + position != len(data):
        raise ValueError("bytes are missing or left over")
    if "asyncckpt" not in metadata:
        return tensors, None
    block = json.loads(metadata["asyncckpt"])
    at = int(block["at"])
    if data[at : at + 8].decode() != block["outside"]:
        raise ValueError("the block is not where it says")
    if crc32c(data[:at] + b"00000000" + data[at + 8 : start]) != int(block["outside"], 16):
        raise ValueError("the header is damaged")
    checksums = block["crc32c"]
    for name, (_, _, content) in tensors.items():
        for chunk in range(0, len(content), block["chunk"]):
            expected, checksums = checksums[:8], checksums[8:]
            if crc32c(content[chunk : chunk + block["chunk"]]) != int(expected, 16):
                raise ValueError(f"{name} is damaged")
    if checksums:
        raise ValueError("checksums are left over")
    return tensors, block
