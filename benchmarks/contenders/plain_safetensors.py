"""safetensors' torch functions, on a local disk, with the fsync that a checkpoint needs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import crc32c
import numpy as np

from benchmarks.contenders.base import LOAD, SAVE, UNVERIFIED, Contender, Operation
from benchmarks.states import State


class PlainSafetensors(Contender):
    """`load` is its load and one pass over every byte (a CRC32C, compared with nothing); without it, unverified."""

    name = "safetensors"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model.safetensors"

    async def open(self, state: State) -> None:
        import torch

        await super().open(state)
        self._tensors = {name: torch.from_numpy(array) for name, array in state.arrays.items()}

    def operations(self) -> list[Operation]:
        return [
            Operation(SAVE, lambda: asyncio.to_thread(self._save)),
            Operation(LOAD, lambda: asyncio.to_thread(load_and_pass, self._path), fresh=True),
            Operation(UNVERIFIED, lambda: asyncio.to_thread(load_plainly, self._path), fresh=True),
        ]

    def _save(self) -> None:
        from safetensors.torch import save_file

        save_file(self._tensors, self._path)
        descriptor = os.open(self._path, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def forget(self) -> None:
        self._path.unlink(missing_ok=True)


def load_plainly(path: Path) -> dict[str, np.ndarray]:
    """The package's load alone: it maps the file."""
    from safetensors.torch import load_file

    return {name: tensor.numpy() for name, tensor in load_file(path).items()}


def load_numpy(path: Path) -> dict[str, np.ndarray]:
    """The package's load for numpy, which copies every byte into an array of its own."""
    from safetensors.numpy import load_file

    arrays: dict[str, np.ndarray] = load_file(path)
    return arrays


def load_and_pass(path: Path) -> dict[str, np.ndarray]:
    """The package's load and one pass over every byte."""
    arrays = load_plainly(path)
    for array in arrays.values():
        crc32c.crc32c(array.reshape(-1).view(np.uint8).data)
    return arrays
