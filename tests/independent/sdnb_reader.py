"""Reads SDNB files as docs/formats/sdnb.md describes them, with the standard library alone."""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

ITEM_BYTES = {1: 1, 3: 2, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 1, 12: 2, 13: 4, 14: 8, 17: 2}


class Array(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    data: bytes


class SdnbFile(NamedTuple):
    arrays: dict[str, Array]
    stubs: list[str]
    metadata: dict[str, str]
    block: Any


def read(data: bytes) -> SdnbFile:
    magic, version, offset, length, graph_at = struct.unpack_from(">4siqqq", data)
    assert (magic, version, graph_at) == (b"SDNB", 1, 32), "not SDNB version 1"
    assert offset + length == len(data), "the file must end with the manifest"
    manifest = read_manifest(data[offset:])
    graph = Table(data, 32 + struct.unpack_from("<I", data, 32)[0])
    metadata = dict(zip(graph.strings(9), graph.strings(10), strict=True))
    arrays, stubs = {}, []
    for variable in graph.tables(1):
        name, dtype, shape = variable.string(1), variable.byte(2), variable.longs(3)
        if name in manifest:
            at, size = manifest[name]
            arrays[name] = Array(dtype, shape, data[at : at + size])
        elif (inline := variable.table(4)) is not None:
            arrays[name] = Array(inline.byte(2), inline.longs(0), inline.bytes(1))
        else:
            stubs.append(name)
    for name, array in arrays.items():
        count = 1
        for n in array.shape:
            count *= n
        assert len(array.data) == count * ITEM_BYTES[array.dtype], name
    block = json.loads(metadata["asyncckpt"]) if "asyncckpt" in metadata else None
    return SdnbFile(arrays, stubs, metadata, block)


class Table:
    """A FlatBuffers table: fields by slot, through the vtable."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        vtable = position - struct.unpack_from("<i", data, position)[0]
        size = struct.unpack_from("<H", data, vtable)[0]
        self.offsets = struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)

    def field(self, slot: int) -> int:
        offset = self.offsets[slot] if slot < len(self.offsets) else 0
        return self.position + offset if offset else 0

    def byte(self, slot: int) -> int:
        at = self.field(slot)
        return self.data[at] if at else 0

    def vector(self, slot: int) -> tuple[int, int]:
        at = self.field(slot)
        if not at:
            return 0, 0
        start = at + struct.unpack_from("<I", self.data, at)[0]
        return start + 4, struct.unpack_from("<I", self.data, start)[0]

    def bytes(self, slot: int) -> bytes:
        start, count = self.vector(slot)
        return self.data[start : start + count]

    def string(self, slot: int) -> str:
        return self.bytes(slot).decode()

    def longs(self, slot: int) -> tuple[int, ...]:
        start, count = self.vector(slot)
        return struct.unpack_from(f"<{count}q", self.data, start)

    def _targets(self, slot: int) -> list[int]:
        start, count = self.vector(slot)
        fields = range(start, start + 4 * count, 4)
        return [field + struct.unpack_from("<I", self.data, field)[0] for field in fields]

    def table(self, slot: int) -> Table | None:
        at = self.field(slot)
        return Table(self.data, at + struct.unpack_from("<I", self.data, at)[0]) if at else None

    def tables(self, slot: int) -> list[Table]:
        return [Table(self.data, target) for target in self._targets(slot)]

    def strings(self, slot: int) -> list[str]:
        texts = []
        for target in self._targets(slot):
            size = struct.unpack_from("<I", self.data, target)[0]
            texts.append(self.data[target + 4 : target + 4 + size].decode())
        return texts


def read_manifest(data: bytes) -> dict[str, tuple[int, int]]:
    """The Java map. Only what the page shows can stand here, so the descriptors are skipped by their lengths."""
    at = data.index(b"\x77\x08") + 6
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    handles: list[Any] = ["LinkedHashMap", "HashMap", "the map"]
    seen_pair = seen_long = False
    entries = {}

    def long_value() -> int:
        nonlocal at, seen_long
        if data[at] == 0x71:
            value = handles[struct.unpack_from(">i", data, at + 1)[0] - 0x7E0000]
            at += 5
            return int(value)
        assert data[at] == 0x73
        if not seen_long:
            seen_long = True
            handles.extend(["Long", "Number"])
            at = data.index(b"\x78\x70", data.index(b"java.lang.Number", at)) + 2
        else:
            at += 6
        (value,) = struct.unpack_from(">q", data, at)
        handles.append(value)
        at += 8
        return int(value)

    for _ in range(count):
        assert data[at] == 0x74
        (size,) = struct.unpack_from(">H", data, at + 1)
        name = data[at + 3 : at + 3 + size].decode()
        handles.append(name)
        at += 3 + size
        assert data[at] == 0x73
        if not seen_pair:
            seen_pair = True
            handles.extend(["Pair", "Object"])
            at = data.index(b"\x78\x70", at) + 2
        else:
            at += 6
        handles.append("a pair")
        entries[name] = (long_value(), long_value())
    assert data[at:] == b"\x78\x00", "the map must be the end"
    return entries
