"""The tensors that one rank contributes to a checkpoint: metadata, and read-only views of their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asyncckpt.errors import LayoutError, TensorNotFoundError
from asyncckpt.model.dtype import array_from, as_bytes_view, dtype_name
from asyncckpt.model.metadata import ShardMetadata, TensorMetadata


@dataclass(frozen=True, slots=True)
class ShardData:
    """A shard with its bytes: `views[i]` are the bytes of `metadata.tensors[i]`, in C order, little-endian."""

    metadata: ShardMetadata
    views: tuple[memoryview, ...]

    def __post_init__(self) -> None:
        if len(self.views) != len(self.metadata.tensors):
            raise LayoutError(
                f"shard {self.metadata.rank} lists {len(self.metadata.tensors)} tensors "
                f"but has {len(self.views)} buffers"
            )
        for tensor, view in zip(self.metadata.tensors, self.views, strict=True):
            if view.nbytes != tensor.size:
                raise LayoutError(
                    f"tensor {tensor.name!r} of shape {list(tensor.shape)} and dtype {tensor.dtype} has "
                    f"{tensor.size} bytes, its buffer {view.nbytes}"
                )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], rank: int = 0) -> ShardData:
        """Views of the arrays, without a copy where they are C-contiguous and little-endian.

        Raises UnsupportedDtypeError for arrays that can't be stored.
        """
        tensors, views = [], []
        for name, array in arrays.items():
            normal, view = as_bytes_view(array)
            tensors.append(TensorMetadata(name, dtype_name(normal.dtype), normal.shape))
            views.append(view)
        return cls(ShardMetadata(rank=rank, tensors=tuple(tensors)), tuple(views))

    @property
    def rank(self) -> int:
        return self.metadata.rank

    @property
    def tensor_info(self) -> Sequence[TensorMetadata]:
        return self.metadata.tensors

    def __iter__(self) -> Iterator[tuple[TensorMetadata, memoryview]]:
        return iter(zip(self.metadata.tensors, self.views, strict=True))

    def array(self, name: str) -> np.ndarray:
        """The tensor as an array over the same bytes. Raises TensorNotFoundError."""
        for tensor, view in self:
            if tensor.name == name:
                return array_from(view, tensor.dtype, tensor.shape)
        raise TensorNotFoundError(f"shard {self.rank} has no tensor {name!r}")

    def arrays(self) -> dict[str, np.ndarray]:
        return {tensor.name: array_from(view, tensor.dtype, tensor.shape) for tensor, view in self}
