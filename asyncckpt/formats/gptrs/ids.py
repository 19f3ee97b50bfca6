"""Parameter identity as gpt-rs has it: base ids, namespaces and keys, and parameters that load when first asked for.

A base id is made of a parameter's name alone, so it is the same in every file. A namespace is a number that tells
loaded models apart; a key, made of both, is what caches go by. All of them are unsigned integers of 128 bits.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from asyncckpt.errors import LayoutError, MissingExtraError, TensorNotFoundError

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


class TensorSource(Protocol):
    """An open checkpoint, as far as it is needed here."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...

    async def read(self, name: str, /) -> np.ndarray: ...


class LazyParams:
    """The parameters of an open checkpoint, read when first asked for and then kept, by name or by base id."""

    def __init__(self, checkpoint: TensorSource, namespace: int) -> None:
        """Raises LayoutError for names without an id, MissingExtraError."""
        self._checkpoint = checkpoint
        self._namespace = namespace
        self._names = {base_id: name for name, base_id in base_param_ids(checkpoint.tensors).items()}
        self._loaded: dict[int, np.ndarray] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    @property
    def loaded(self) -> Mapping[int, np.ndarray]:
        """What has been read so far, by key."""
        return self._loaded

    def name_of(self, base_id: int) -> str:
        """Raises TensorNotFoundError."""
        name = self._names.get(base_id)
        if name is None:
            raise TensorNotFoundError(f"the checkpoint has no parameter with the base id {base_id:#034x}")
        return name

    def key_of(self, base_id: int) -> int:
        """The parameter's key in this namespace. Raises TensorNotFoundError."""
        self.name_of(base_id)
        return param_key(self._namespace, base_id)

    async def load(self, parameter: int | str) -> np.ndarray:
        """The parameter with that base id or name; read once, however many ask at the same time.

        Raises TensorNotFoundError, and what reading raises.
        """
        base_id = base_param_id(parameter) if isinstance(parameter, str) else parameter
        name, key = self.name_of(base_id), self.key_of(base_id)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._loaded:
                self._loaded[key] = await self._checkpoint.read(name)
            return self._loaded[key]
