"""What the parts of `FormatContract` share: the format under test, a small state, and its files in memory."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.storage.memory import MemoryStorage

CLOCK = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Files = dict[str, bytes]


class FormatFiles:
    """Override `make_format`; the rest where the format needs something else."""

    same_bytes = True
    """Whether the same state gives the same bytes; with False, it must never: encrypted files use fresh nonces."""
    stem = "ckpt"
    sweep_seed = 20250907
    """Where only a sample of a file's positions is tried."""
    pytestmark = pytest.mark.asyncio

    def make_format(self) -> ICheckpointFormat:
        """The format, with the options to be tested."""
        raise TypeError(f"{type(self).__name__} must override make_format")

    def reading_format(self) -> ICheckpointFormat | None:
        """How files are opened again: None for "by their bytes", a format where a key is needed."""
        return None

    def dtypes(self) -> list[str]:
        """The dtypes that the format stores."""
        own = self.make_format().dtypes
        every = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"]
        every += ["uint8", "uint16", "uint32", "uint64", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"]
        return [name for name in every if own is None or name in own]

    def small_state(self) -> dict[str, Any]:
        """A state with a bit of everything, in dtypes that every format has."""
        shared = np.arange(6, dtype="<f4").reshape(2, 3)
        return {
            "model": OrderedDict(weight=shared, tied=shared, bias=np.array([1, -2, 3], "<i4")),
            "optimizer": {0: {"step": 7, "moment": np.full((2, 2), -0.5, "<f4")}, "lr": 1e-3},
            "empty": np.zeros((0, 3), "<f4"),
            "scalar": np.array(2.5, "<f4"),
            "plain": (None, True, "text", b"\x00\xff", float("inf"), 2**70, [1.5, -0.0]),
        }

    def large_state(self) -> dict[str, Any]:
        """A state whose file has several parts."""
        rng = np.random.default_rng(7)
        return {
            "big": rng.random((1500, 1000), np.float32),
            "odd": rng.random(1_234_567, np.float32),
            "small": [np.arange(i, dtype="<i4") for i in range(20)],
        }

    @property
    def key(self) -> str:
        return f"run/{self.stem}{self.make_format().extension}"

    async def save(self, state: Any, storage: asyncckpt.ICheckpointStorage, **options: Any) -> str:
        """Save to memory; returns the key to open."""
        result = await asyncckpt.save(
            state, (storage, self.key), format=self.make_format(), clock=lambda: CLOCK, **options
        )
        return result.key

    async def load(self, storage: asyncckpt.ICheckpointStorage, key: str, **options: Any) -> Any:
        return await asyncckpt.load((storage, key), format=self.reading_format(), **options)

    async def files_of(self, state: Any) -> tuple[str, Files]:
        """The key to open, and all files that saving the state makes."""
        storage = MemoryStorage()
        key = await self.save(state, storage)
        return key, {info.key: await storage.read(info.key) async for info in storage.list()}

    async def storage_with(self, files: Files) -> MemoryStorage:
        storage = MemoryStorage()
        for key, data in files.items():
            await storage.write(key, data)
        return storage


def array_of(dtype: str) -> np.ndarray:
    """A few items with every byte in use."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([[True, False, True], [False, True, True]])
    raw = bytes((i * 37 + 11) % 251 for i in range(6 * kind.itemsize))
    return np.frombuffer(bytearray(raw), kind).reshape(2, 3)
