"""Where the bytes of tensors come from while a checkpoint is written: memory, or another checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from asyncckpt.model.checksums import Buffer, Checksums


class TensorSource(ABC):
    """Bytes of tensors by number, in ranges."""

    in_memory: bool = True
    """Whether the bytes are there already; others count against the byte budget while they are held."""

    @abstractmethod
    async def fetch(self, tensor: int, start: int, end: int) -> Buffer:
        """Bytes [start, end) of a tensor."""

    @abstractmethod
    def read(self, tensor: int, start: int, end: int) -> Buffer:
        """The same from a worker thread. Blocks."""

    def known_checksums(self, tensor: int, chunk_bytes: int) -> Checksums | None:
        """The CRC32C of the tensor's chunks, where it is known without reading the bytes."""
        return None


class MemorySource(TensorSource):
    """Views of arrays that will not change."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = views

    async def fetch(self, tensor: int, start: int, end: int) -> Buffer:
        return self._views[tensor][start:end]

    def read(self, tensor: int, start: int, end: int) -> Buffer:
        return self._views[tensor][start:end]
