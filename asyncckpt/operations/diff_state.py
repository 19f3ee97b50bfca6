"""What is different between the plain values of two states, and between their containers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.strict_json import json_pieces
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import chunk_checksums
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.payloads import Payload, encode_payload, is_payload
from asyncckpt.model.state.plain import decode_plain, encode_plain
from asyncckpt.model.state.tree import Path, clipped, show_path, tree_values

_LONGEST = 80


class Fingerprint(NamedTuple):
    """Stands for a payload's bytes: how many they are, and the CRC32C of each chunk of them."""

    size: int
    chunks: tuple[int, ...]

    @classmethod
    def of(cls, data: Buffer, chunk_bytes: int) -> Fingerprint:
        return cls(len(data), tuple(chunk_checksums(data, chunk_bytes).tolist()))

    def __str__(self) -> str:
        first = f"{self.chunks[0]:08x}" if self.chunks else ""
        return f"{self.size} bytes, crc32c {first}" + ("…" if len(self.chunks) > 1 else "")


class Values(NamedTuple):
    """The plain values of one checkpoint: its tree, and its payloads by name."""

    tree: Json
    payloads: Mapping[str, Fingerprint]


def state_changes(before: Values, after: Values, chunk_bytes: int) -> list[str]:
    """One line for each plain value or container that differs, by its path. For a worker thread.

    `chunk_bytes` is that of the fingerprints. Nothing for a file without a tree. Raises LayoutError for a tree
    that is malformed, or that names a payload that is not there.
    """
    if before.tree is None or after.tree is None:
        return []
    # The same text is the same tree: that takes a tenth of the time of the walk.
    pieces = zip_longest(json_pieces(before.tree), json_pieces(after.tree))
    if before.payloads == after.payloads and all(a == b for a, b in pieces):
        return []
    old, new = _leaves(before, chunk_bytes), _leaves(after, chunk_bytes)
    lines = []
    for path in {**old, **new}:
        a, b = old.get(path), new.get(path)
        if a != b and not _is_container_alone(a, b):
            lines.append(f"{show_path(path)}: {_shown(a)} -> {_shown(b)}")
    return lines


def _leaves(values: Values, chunk_bytes: int) -> dict[Path, tuple[str, Any]]:
    """Every plain value, as what encodes it to the bit, and every container's type, by path.

    A large value has the same fingerprint wherever it is stored: not every format has payloads.
    """
    found: dict[Path, tuple[str, Any]] = {}
    for path, value in tree_values(values.tree):
        if isinstance(value, type):
            found[path] = (value.__name__, None)
        elif isinstance(value, Payload):
            fingerprint = values.payloads.get(value.name)
            if fingerprint is None:
                raise LayoutError(f"{show_path(path)}: there is no payload {value.name[:80]!r}")
            found[path] = ("", (value.kind, fingerprint))
        elif is_payload(value):
            found[path] = ("", (type(value), Fingerprint.of(encode_payload(value).data, chunk_bytes)))
        else:
            # With the type, because True == 1 == 1.0.
            found[path] = ("", (type(value), encode_plain(value)))
    return found


def _is_container_alone(a: tuple[str, Any] | None, b: tuple[str, Any] | None) -> bool:
    """A container that only one of them has: what is in it is told already."""
    return (a is None and b is not None and b[0] != "") or (b is None and a is not None and a[0] != "")


def _shown(leaf: tuple[str, Any] | None) -> str:
    if leaf is None:
        return "nothing"
    if leaf[0]:
        return leaf[0]
    kind, content = leaf[1]
    if isinstance(content, Fingerprint):
        return f"{kind.__name__} of {content}"
    return clipped(repr(decode_plain(content)), _LONGEST)
