"""MLDF read from docs/formats/mldf.md alone, with the standard library alone."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from tests.independent.mlcp_reader import crc32c

_CELLS = {
    1: "<q", 2: "<d", 4: "<QQQ", 10: "<QIHHBB6x", 11: "<QIHHBB6x", 12: "<QIHHBB6x", 20: "<QIIIHBB",
    21: "<QIIIHBB", 22: "<QIIIHBB", 23: "<QIIIHBB", 40: "<QIHBx", 41: "<QIHBx",
}  # fmt: skip


def read(data: bytes) -> dict[str, Any]:
    """The samples as dicts; an NDARRAY is (dtype, shape, bytes). Raises ValueError."""
    if data[:9] != b"\x89MLDF\r\n\x1a\n":
        raise ValueError("not MLDF")
    major, _, flags, samples, count, _, _, at, table, start, end, crc, structure = struct.unpack_from(
        "<HHIQHHIQQQQII", data, 9
    )
    if major != 1 or flags & 10 or not flags & 1:
        raise ValueError("not readable")
    if flags & 4 and zlib.crc32(data[start:end]) != crc:
        raise ValueError("the data is damaged")
    fields = [_descriptor(data, at + 204 * i) for i in range(count)]
    width = sum(struct.calcsize(_CELLS.get(kind, "<QI4x")) for _, kind, _ in fields)
    if structure:
        _check_tree(data, at, count, table, samples * width, end, structure)
    rows = [_row(data, table + width * i, fields) for i in range(samples)]
    if rows and "__asyncckpt__" in rows[0]:
        _check_block(data, rows, fields)
    schema = json.loads(rows[0]["__schema__"][1]) if rows and "__schema__" in rows[0] else {}
    return {"samples": [_values(row, fields, schema) for row in rows], "fields": fields}


def _descriptor(data: bytes, at: int) -> tuple[str, int, bytes]:
    name, kind, _, size, _, arguments = struct.unpack_from("<64sHHII128s", data, at)
    if size != struct.calcsize(_CELLS.get(kind, "<QI4x")):
        raise ValueError("a cell of the wrong size")
    return name.rstrip(b"\0").decode(), kind, arguments.rstrip(b"\0")


def _row(data: bytes, at: int, fields: list[tuple[str, int, bytes]]) -> dict[str, Any]:
    row = {}
    for name, kind, _ in fields:
        layout = _CELLS.get(kind, "<QI4x")
        cell = struct.unpack_from(layout, data, at)
        at += struct.calcsize(layout)
        if kind in (1, 2):
            row[name] = (cell, cell[0])
        elif cell[0]:
            payload = data[cell[0] : cell[0] + cell[1]]
            if kind == 4 and zlib.crc32(payload) != cell[2]:
                raise ValueError(f"{name} is damaged")
            row[name] = (cell, payload)
    return row


def _check_block(data: bytes, rows: list[dict[str, Any]], fields: list[tuple[str, int, bytes]]) -> None:
    """The CRC32C of every chunk, in the order of the fields, and of all bytes outside the tensors."""
    block = json.loads(rows[0]["__asyncckpt__"][1])
    found, spans = "", []
    for name, kind, _ in fields:
        for cell, payload in (row[name] for row in rows if kind == 4 and name in row):
            spans.append((cell[0], cell[1]))
            step = block["chunk"]
            found += "".join(f"{crc32c(payload[i : i + step]):08x}" for i in range(0, len(payload), step))
    if found != block["crc32c"]:
        raise ValueError("a tensor is damaged")
    rest = bytearray(data)
    rest[65:69] = bytes(4)
    at = int(block["at"])
    rest[at : at + 8] = b"00000000"
    for start, size in sorted(spans, reverse=True):
        del rest[start : start + size]
    if f"{crc32c(bytes(rest)):08x}" != block["outside"]:
        raise ValueError("the structure is damaged")


def _check_tree(
    data: bytes, descriptors: int, count: int, table: int, table_bytes: int, alloc: int, expected: int
) -> None:
    """Tables: header without its two checksums, descriptors, metadata table, allocation table."""
    value = zlib.crc32(data[:65] + bytes(8))
    value = zlib.crc32(data[descriptors : descriptors + 204 * count], value)
    value = zlib.crc32(data[table : table + table_bytes], value)
    if zlib.crc32(data[alloc:], value) != expected:
        raise ValueError("the structure is damaged")


def _values(
    row: dict[str, Any], fields: list[tuple[str, int, bytes]], schema: dict[str, Any]
) -> dict[str, Any]:
    values = {}
    for stored, kind, arguments in fields:
        if stored not in row:
            continue
        spilled = schema.get(stored, {})
        value = row[stored][1]
        if kind == 4:
            array = spilled.get("arguments") or json.loads(arguments)
            value = (array["dtype"], array["shape"], value)
        values[spilled.get("name", stored)] = value
    return values
