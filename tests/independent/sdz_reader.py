"""Reads SDZ archives as docs/formats/sdz.md describes them, with the standard library alone."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple


class Entry(NamedTuple):
    name: str
    method: int
    crc32: int
    data: bytes
    data_offset: int
    extra: dict[int, bytes]


def read(data: bytes) -> dict[str, bytes]:
    """The SDNB files of an archive by the names of their entries, checked against ZIP's own CRC32."""
    files = {}
    for entry in entries(data):
        content = entry.data if entry.method == 0 else zlib.decompress(entry.data, -15)
        assert zlib.crc32(content) == entry.crc32, entry.name
        files[entry.name] = content
    return files


def entries(data: bytes) -> list[Entry]:
    end = data.rindex(b"PK\x05\x06")
    _, _, _, _, count, _, offset, comment = struct.unpack_from("<4sHHHHIIH", data, end)
    assert end + 22 + comment == len(data)
    found = []
    at = offset
    for _ in range(count):
        fields = struct.unpack_from("<4sHHHHHHIIIHHHHHII", data, at)
        assert fields[0] == b"PK\x01\x02"
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        name = data[at + 46 : at + 46 + name_bytes].decode()
        extra = _extra(data[at + 46 + name_bytes : at + 46 + name_bytes + extra_bytes])
        header = fields[16]
        local = struct.unpack_from("<4sHHHHHIIIHH", data, header)
        assert local[0] == b"PK\x03\x04"
        start = header + 30 + local[9] + local[10]
        found.append(Entry(name, fields[4], fields[7], data[start : start + fields[8]], start, extra))
        at += 46 + name_bytes + extra_bytes + comment_bytes
    return found


def frames(data: bytes) -> dict[str, list[tuple[int, int, int, int]]]:
    """Of each DEFLATE entry of ours: (raw start, raw bytes, place in the archive, stored bytes) of its frames."""
    found = {}
    for entry in entries(data):
        offset, length, number, _ = struct.unpack("<QIII", entry.extra[0x4B41])
        record = data[offset : offset + length]
        signature, inner, magic, version, count = struct.unpack_from("<4sI8sII", record)
        assert (signature, inner, magic, version) == (b"PK\x06\x08", length - 8, b"ACKPTFRM", 1)
        at = 24
        for index in range(count):
            (size,) = struct.unpack_from("<I", record, at)
            sizes = struct.unpack_from(f"<{2 * size}I", record, at + 4)
            at += 4 + 8 * size
            if index == number:
                table, raw, place = [], 0, entry.data_offset
                for raw_bytes, stored in zip(sizes[::2], sizes[1::2], strict=True):
                    table.append((raw, raw_bytes, place, stored))
                    raw += raw_bytes
                    place += stored
                found[entry.name] = table
    return found


def inflate_frame(data: bytes, place: int, stored: int) -> bytes:
    """One frame, on its own."""
    return zlib.decompressobj(-15).decompress(data[place : place + stored])


def _extra(data: bytes) -> dict[int, bytes]:
    fields = {}
    at = 0
    while at + 4 <= len(data):
        identifier, size = struct.unpack_from("<HH", data, at)
        fields[identifier] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return fields
