"""A reader of the block's tree, written from docs/formats.md alone. It imports nothing but the standard library."""

from __future__ import annotations

import base64
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


def read_tree(node: Any, tensor: Callable[[str, str], Any], payload: Callable[[str], bytes]) -> Any:
    """The state. `tensor` gives what belongs in the place of a name and a kind, `payload` the bytes of one."""

    def value(node: Any) -> Any:
        if isinstance(node, list):
            return [value(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "t" in node:
            return tensor(node["t"], node.get("k", "numpy"))
        [(tag, content)] = node.items()
        if tag == "u":
            return tuple(value(item) for item in content)
        if tag in ("d", "o"):
            pairs = [(value(key), value(item)) for key, item in zip(content[::2], content[1::2], strict=True)]
            return dict(pairs) if tag == "d" else OrderedDict(pairs)
        return scalar(tag, content)

    def scalar(tag: str, content: str) -> Any:
        if tag == "n":
            return None
        if tag == "i":
            return int(content, 16)
        if tag == "f":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        if tag == "c":
            return complex(*struct.unpack(">dd", bytes.fromhex(content)))
        data = payload(content) if tag in ("pb", "ps") else base64.b64decode(content, validate=True)
        return data if tag in ("pb", "b") else data.decode("utf-8", "surrogatepass")

    return value(node)
