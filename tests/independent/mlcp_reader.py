"""MLCP read from docs/formats/mlcp.md alone, with the standard library alone."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

_ITEM_BYTES = {
    "Float16": 2, "Float32": 4, "Float64": 8, "Int8": 1, "Int16": 2, "Int32": 4, "Int64": 8, "UInt8": 1,
    "UInt16": 2, "UInt32": 4, "UInt64": 8, "Bool": 1, "BFloat16": 2, "Float8E4M3FN": 1, "Float8E5M2": 1,
    "Complex64": 8, "Complex128": 16,
}  # fmt: skip


def read(data: bytes) -> dict[str, Any]:
    """The metadata and each tensor as (dtype name, shape, bytes). Raises ValueError."""
    if data[:4] != b"PCLM":
        raise ValueError("not MLCP")
    version, at = _dotnet_string(data, 4)
    (size,) = struct.unpack_from("<i", data, at)
    metadata = json.loads(data[at + 4 : at + 4 + size])
    _check_shape_of(metadata)
    at += 4 + size
    tables = []
    for _ in metadata["shards"]:
        (count,) = struct.unpack_from("<i", data, at)
        at += 4
        for _ in range(count):
            row, at = _table_row(data, at)
            tables.append(row)
    listed = [tensor for shard in metadata["shards"] for tensor in shard["tensors"]]
    if version == "1.0.0":
        if at != len(data):
            raise ValueError("leftover bytes")
        return {"metadata": metadata, "tensors": {n: (dtype, shape, None) for n, dtype, shape, _ in tables}}
    block = metadata["customFields"]["asyncckpt"]
    start = -(-at // 64) * 64
    spans = [(start + tensor["offset"], tensor["size"]) for tensor in listed]
    _check_outside(data, block, spans)
    _check_chunks(data, block, spans)
    tensors = {}
    for (name, dtype, shape, size), (offset, length), tensor in zip(tables, spans, listed, strict=True):
        if (name, shape, size) != (tensor["name"], tensor["shape"], length):
            raise ValueError(f"{name}: table and metadata disagree")
        tensors[name] = (dtype, shape, data[offset : offset + length])
    return {"metadata": metadata, "tensors": tensors}


def _check_shape_of(metadata: dict[str, Any]) -> None:
    for tensor in (t for shard in metadata.get("shards", ()) for t in shard["tensors"]):
        if not {"name", "shape", "dataType", "offset", "size"} <= tensor.keys():
            raise ValueError("a tensor lacks a member")


def _dotnet_string(data: bytes, at: int) -> tuple[str, int]:
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return data[at : at + length].decode(), at + length


def _table_row(data: bytes, at: int) -> tuple[tuple[str, str, list[int], int], int]:
    (length,) = struct.unpack_from("<i", data, at)
    name = data[at + 4 : at + 4 + length].decode()
    dtype, at = _dotnet_string(data, at + 4 + length)
    (rank,) = struct.unpack_from("<i", data, at)
    *shape, size = struct.unpack_from(f"<{rank + 1}q", data, at + 4)
    items = 1
    for n in shape:
        items *= n
    if dtype in _ITEM_BYTES and items * _ITEM_BYTES[dtype] != size:
        raise ValueError(f"{name}: {shape} of {dtype} is not {size} bytes")
    return (name, dtype, shape, size), at + 4 + 8 * (rank + 1)


def _check_outside(data: bytes, block: dict[str, Any], spans: list[tuple[int, int]]) -> None:
    at = int(block["at"])
    if data[at : at + 8].decode() != block["outside"]:
        raise ValueError("the block is not where it says")
    rest = bytearray(data)
    rest[at : at + 8] = b"00000000"
    for offset, size in sorted(spans, reverse=True):
        del rest[offset : offset + size]
    if f"{crc32c(bytes(rest)):08x}" != block["outside"]:
        raise ValueError("the header is damaged")


def _check_chunks(data: bytes, block: dict[str, Any], spans: list[tuple[int, int]]) -> None:
    found = ""
    for offset, size in spans:
        tensor = data[offset : offset + size]
        found += "".join(
            f"{crc32c(tensor[i : i + block['chunk']]):08x}" for i in range(0, size, block["chunk"])
        )
    if found != block["crc32c"]:
        raise ValueError("a tensor is damaged")


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
    """CRC32C (Castagnoli), reflected, as iSCSI has it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC32C[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def read_set(metadata_json: bytes, files: dict[str, bytes]) -> dict[str, bytes]:
    """The tensors of a set by name: its metadata, and all files beside it. Raises ValueError."""
    metadata = json.loads(metadata_json)
    block = (metadata.get("customFields") or {}).get("asyncckpt")
    if block is not None:
        _check_outside(metadata_json, block, [])
    tensors, found = {}, ""
    for shard in metadata["shards"]:
        data = files[shard["filePath"]]
        magic, rank, digits = struct.unpack_from("<4sii", data)
        checksum = data[12 : 12 + digits].decode()
        count, size = struct.unpack_from("<ii", data, 12 + digits)
        payload = data[20 + digits :]
        if magic != b"RAHS" or rank != shard["rank"] or count != len(shard["tensors"]):
            raise ValueError("not the shard that the metadata names")
        if len(payload) != size or hashlib.sha256(payload).hexdigest() != checksum:
            raise ValueError(f"{shard['filePath']} is damaged")
        at = 0
        for tensor in shard["tensors"]:
            own = tensors[tensor["name"]] = payload[at : at + tensor["size"]]
            at += tensor["size"]
            step = block["chunk"] if block else 1 << 20
            found += "".join(f"{crc32c(own[i : i + step]):08x}" for i in range(0, len(own), step))
    if block is not None and found != block["crc32c"]:
        raise ValueError("a tensor is damaged")
    return tensors
