"""Payloads: large bytes and strings of a state, stored beside its tensors instead of in the tree's JSON.

A payload is a 1-d uint8 tensor of the file: the bytes themselves, or a string in UTF-8 (lone surrogates let
through). The tree has `{"pb": name}` or `{"ps": name}` in the value's place. A payload is not a tensor of the state:
`only` and `into` pass it by, and it comes back with the other plain values. As JSON such values would take several
times their size in memory, and one call to encode or decode them would hold the GIL for a second.
"""

from __future__ import annotations

import codecs
import io
from typing import Any, Final, NamedTuple

import numpy as np

from asyncckpt.errors import LayoutError
from asyncckpt.model.metadata import Json

PAYLOAD_BYTES: Final = 16 * 1024
"""Values from this length on are payloads, in formats that have bytes among their dtypes."""
PAYLOAD_DTYPE: Final = "uint8"
PAYLOAD_SUFFIXES: Final[dict[type, str]] = {bytes: "#bytes", str: "#str"}
"""What is added to the keys of a value to name its payload."""

_TAGS: Final[dict[type, str]] = {bytes: "pb", str: "ps"}
_KINDS: Final[dict[str, type]] = {tag: kind for kind, tag in _TAGS.items()}
# No single step holds the GIL for longer than a millisecond.
_STEP = 512 * 1024


def is_payload(value: Any) -> bool:
    return type(value) in _TAGS and len(value) >= PAYLOAD_BYTES


def payload_node(value: bytes | str, name: str) -> Json:
    return {_TAGS[type(value)]: name}


class Payload(NamedTuple):
    """A value that the tree only names."""

    name: str
    tag: str

    @property
    def kind(self) -> type:
        """bytes or str."""
        return _KINDS[self.tag]

    def decode(self, array: np.ndarray) -> bytes | str:
        """The value. Raises LayoutError for a tensor that is not a payload, or not UTF-8."""
        if array.dtype != np.uint8 or array.ndim != 1:
            raise LayoutError(
                f"payload {self.name[:80]!r} is {array.dtype} {list(array.shape)}, not uint8 with one dimension"
            )
        view = np.ascontiguousarray(array).data
        if self.kind is bytes:
            return _joined(view)
        try:
            return _decoded(view)
        except UnicodeDecodeError as error:
            raise LayoutError(f"payload {self.name[:80]!r} is not UTF-8") from error


def payload_of(node: Json) -> Payload | None:
    """The payload that a node speaks of; None for any other node. Raises LayoutError for a name that is none."""
    if type(node) is not dict or len(node) != 1:
        return None
    [(tag, name)] = node.items()
    if tag not in _KINDS:
        return None
    if type(name) is not str:
        raise LayoutError("a payload without a proper name")
    return Payload(name, tag)


def payload_names(tree: Json) -> set[str]:
    """The names of all payloads that a tree speaks of; malformed nodes are `rebuild`'s to refuse."""
    found: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        if type(node) is dict:
            for tag, value in node.items():
                if type(value) is list:
                    stack.append(value)
                elif tag in _KINDS and type(value) is str:
                    found.add(value)
        elif type(node) is list:
            stack += [item for item in node if type(item) is dict or type(item) is list]
    return found


# -- encode ----------------------------------------------------------------------------------------------------


def encode_payload(value: bytes | str) -> np.ndarray:
    """The payload's bytes: those of `bytes` themselves, which nobody can change, without a copy."""
    return np.frombuffer(value if isinstance(value, bytes) else _encoded(value), np.uint8)


def _encoded(text: str) -> bytearray:
    data = bytearray()
    for start in range(0, len(text), _STEP):
        data += text[start : start + _STEP].encode("utf-8", "surrogatepass")
    return data


# -- decode ----------------------------------------------------------------------------------------------------


def _joined(view: memoryview) -> bytes:
    # Hands its own buffer out in the end: nothing is copied twice.
    data = io.BytesIO()
    for start in range(0, len(view), _STEP):
        data.write(view[start : start + _STEP])
    return data.getvalue()


def _decoded(view: memoryview) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    text = ""
    for start in range(0, len(view), _STEP):
        # Python lets a string grow in place as long as it has one name only.
        text += decoder.decode(view[start : start + _STEP])
    return text + decoder.decode(b"", final=True)
