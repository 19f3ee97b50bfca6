"""Parameter identity as gpt-rs has it: base ids, namespaces and keys.

A base id is made of a parameter's name alone, so it is the same in every file. A namespace is a number that tells
loaded models apart; a key, made of both, is what caches go by. All of them are unsigned integers of 128 bits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from asyncckpt.errors import LayoutError, MissingExtraError

ID_BYTES = 16
_KEY_DOMAIN = b"gpt-rs:param-key:v1"


def base_param_id(name: str) -> int:
    """The first 16 bytes of the name's BLAKE3, little-endian.

    Raises LayoutError for names that are not ASCII, which gpt-rs has no id for, and MissingExtraError.
    """
    return base_param_ids([name])[name]


def base_param_ids(names: Iterable[str]) -> dict[str, int]:
    """The base id of every name. Raises as `base_param_id` does."""
    hashed = _blake3()
    ids = {}
    for name in names:
        if not name.isascii():
            raise LayoutError(f"parameter {name[:80]!a} is not ASCII, so gpt-rs has no id for it")
        ids[name] = int.from_bytes(hashed(name.encode("ascii")).digest(ID_BYTES), "little")
    return ids


def param_key(namespace: int, base_id: int) -> int:
    """The key of a parameter in a namespace. Raises LayoutError beyond 128 bits, MissingExtraError."""
    parts = [_KEY_DOMAIN]
    for what, value in (("namespace", namespace), ("base id", base_id)):
        if not 0 <= value < 1 << 8 * ID_BYTES:
            raise LayoutError(f"the {what} {value:#x} does not fit 128 bits")
        parts.append(value.to_bytes(ID_BYTES, "little"))
    return int.from_bytes(_blake3()(b"".join(parts)).digest(ID_BYTES), "little")


def new_namespace(*, randomness: Callable[[int], int] = secrets.randbits) -> int:
    """A namespace that no other model has."""
    return randomness(8 * ID_BYTES)


def _blake3() -> Callable[[bytes], Any]:
    try:
        from blake3 import blake3
    except ImportError as error:
        raise MissingExtraError(
            "gpt-rs's parameter ids need blake3: pip install 'asyncckpt[gptrs]'"
        ) from error
    return blake3
