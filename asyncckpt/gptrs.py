"""The parameters of gpt-rs's models: their ids and keys, and parameters that load when they are first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from asyncckpt.errors import TensorNotFoundError
from asyncckpt.formats.gptrs.ids import base_param_id, base_param_ids, new_namespace, param_key

__all__ = ["LazyParams", "base_param_id", "base_param_ids", "new_namespace", "param_key"]


class ParameterSource(Protocol):
    """An open checkpoint, as far as it is needed here."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...

    async def read(self, name: str, /) -> np.ndarray: ...


class LazyParams:
    """The parameters of an open checkpoint, read when first asked for and then kept, by name or by base id."""

    def __init__(self, checkpoint: ParameterSource, namespace: int) -> None:
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
