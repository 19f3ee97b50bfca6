"""Plain METAGRAPH bundles read from docs/formats/metagraph.md alone, with the standard library alone."""

from __future__ import annotations

import json
import struct
from typing import Any

_MASK = 0xFFFFFFFF
_IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_LANES = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8


def read(data: bytes) -> dict[str, Any]:
    """The metadata, the shards and each tensor as (dtype, shape, bytes). Raises ValueError."""
    fields = struct.unpack_from("<8s16s4I5Q2I", data)
    magic, uuid, version, _, flags, more_flags, total, _, _, checksum, root_checksum, count, _ = fields
    if magic not in (b"METAGRAP", b"HYPERDAG") or uuid.hex() != "550e8400e29b41d4a716446655440000":
        raise ValueError("not a bundle")
    if version != 1 or flags or more_flags or total != len(data):
        raise ValueError("not a plain bundle of version 1")
    if checksum != _short(blake3(data[:64] + bytes(8) + data[72:104])):
        raise ValueError("the header is damaged")
    index = data[104 : 104 + 40 * count]
    sections, hashes = {}, []
    for kind, _, offset, size, section_checksum, items, _ in struct.iter_unpack("<2I3Q2I", index):
        content = data[offset : offset + size]
        hashes.append(blake3(content))
        if len(content) != size or _short(hashes[-1]) != section_checksum:
            raise ValueError(f"section {kind} is damaged")
        sections[kind] = (content, items)
    if _short(blake3(index + b"".join(hashes))) != root_checksum:
        raise ValueError("the section index is damaged")
    metadata = json.loads(sections[5][0])
    nodes = _nodes(*sections[1])
    places = {row[0]: row[1:] for row in struct.iter_unpack("<16s3Q2I", sections[4][0])}
    tensors = {}
    for number, (node, digest, dtype, shape, name) in enumerate(nodes):
        offset, stored, raw, _, frames = places[node]
        content = data[offset : offset + stored]
        if frames or stored != raw or blake3(content) != digest or blake3(name.encode())[:16] != node:
            raise ValueError(f"tensor {number} is damaged")
        tensors[name] = (dtype, shape, content)
    names = list(tensors)
    shards = [
        names[first : first + members]
        for kind, _, first, members in struct.iter_unpack("<4I", sections[2][0])
        if kind == 1
    ]
    return {"metadata": metadata, "tensors": tensors, "shards": shards}


def _nodes(section: bytes, count: int) -> list[tuple[bytes, bytes, str, tuple[int, ...], str]]:
    found = []
    for row in struct.iter_unpack("<16s32sQI2H2I", section[: 72 * count]):
        node, digest, at, name_size, dtype_size, rank, _, _ = row
        shape = struct.unpack_from(f"<{rank}Q", section, at)
        at += 8 * rank
        dtype = section[at : at + dtype_size].decode()
        name = section[at + dtype_size : at + dtype_size + name_size].decode()
        found.append((node, digest, dtype, shape, name))
    return found


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


# -- BLAKE3, from its paper --------------------------------------------------------------------------------------


def blake3(data: bytes) -> bytes:
    """The first 32 bytes of the hash."""
    chunks = [data[i : i + 1024] for i in range(0, len(data), 1024)] or [b""]
    values = [_chunk(chunk, number, root=len(chunks) == 1) for number, chunk in enumerate(chunks)]
    return struct.pack("<8I", *_tree(values, root=True)[:8])


def _tree(values: list[list[int]], *, root: bool) -> list[int]:
    if len(values) == 1:
        return values[0]
    left = 1 << (len(values) - 1).bit_length() - 1
    block = _tree(values[:left], root=False)[:8] + _tree(values[left:], root=False)[:8]
    return _compress(_IV, block, 0, 64, _PARENT | (_ROOT if root else 0))


def _chunk(chunk: bytes, number: int, *, root: bool) -> list[int]:
    value: list[int] = list(_IV)
    blocks = [chunk[i : i + 64] for i in range(0, len(chunk), 64)] or [b""]
    for position, block in enumerate(blocks):
        last = position == len(blocks) - 1
        flags = (_CHUNK_START if position == 0 else 0) | (_CHUNK_END if last else 0)
        flags |= _ROOT if root and last else 0
        words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
        value = _compress(value[:8], words, number, len(block), flags)
    return value


def _compress(
    value: list[int] | tuple[int, ...], words: list[int], counter: int, size: int, flags: int
) -> list[int]:
    state = [*value, *_IV[:4], counter & _MASK, counter >> 32, size, flags]
    for _ in range(7):
        for lane, (a, b, c, d) in enumerate(_LANES):
            for word, turns in ((words[2 * lane], (16, 12)), (words[2 * lane + 1], (8, 7))):
                state[a] = (state[a] + state[b] + word) & _MASK
                state[d] = _rotated(state[d] ^ state[a], turns[0])
                state[c] = (state[c] + state[d]) & _MASK
                state[b] = _rotated(state[b] ^ state[c], turns[1])
        words = [words[i] for i in _PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def _rotated(word: int, count: int) -> int:
    return (word >> count | word << 32 - count) & _MASK
