"""The states that are saved: a gigabyte of large tensors, or twenty thousand small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

MIB = 1024 * 1024


@dataclass(frozen=True)
class State:
    """Named arrays, and a second set of the same shapes, already touched, for loads into existing arrays."""

    name: str
    arrays: dict[str, np.ndarray]
    targets: dict[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def require_equal(self, loaded: Mapping[str, object], contender: str) -> None:
        """A contender that brings back other bytes is not measured. Raises AssertionError."""
        for name, array in self.arrays.items():
            found = np.asarray(loaded[name])
            if found.shape != array.shape or found.tobytes() != array.tobytes():
                raise AssertionError(f"{contender} brought back another {name!r}")


def large_tensors(total_bytes: int = 1024 * MIB, tensor_bytes: int = 16 * MIB) -> State:
    """64 random float32 tensors of 16 MiB by default."""
    generator = np.random.default_rng(0)
    shape = (tensor_bytes // 4096, 1024)
    count = total_bytes // tensor_bytes
    return _state(
        f"{total_bytes // MIB} MiB",
        {f"layers.{i}.weight": generator.random(shape, np.float32) for i in range(count)},
    )


def small_tensors(count: int = 20_000) -> State:
    """Many float32 tensors of 1 KiB."""
    values = np.random.default_rng(1).random((count, 16, 16), np.float32)
    return _state(f"{count} tensors", {f"blocks.{i}.bias": values[i].copy() for i in range(count)})


def _state(name: str, arrays: dict[str, np.ndarray]) -> State:
    targets = {key: np.zeros_like(array) for key, array in arrays.items()}
    for target in targets.values():
        target.fill(1)
    return State(name, arrays, targets)
