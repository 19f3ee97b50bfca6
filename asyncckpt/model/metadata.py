"""What a checkpoint says about itself: frozen dataclasses, with the names of the first format's documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import prod
from typing import Any

from asyncckpt.model.boxes import Box, Shape
from asyncckpt.model.dtype import item_size

Json = Any
"""What `json` can hold: None, bool, int, float, str, lists and string-keyed dicts of these."""


@lru_cache(maxsize=4096)
def byte_size(dtype: str, shape: Shape) -> int:
    """The bytes of a tensor. Raises UnsupportedDtypeError. Of very many tensors most are alike."""
    return prod(shape) * item_size(dtype)


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One tensor: its type and shape, and where its bytes lie.

    A tensor may be a piece of a larger one; then `global_shape` and `origin` say which. A global tensor that
    was put together from such pieces lists them in `pieces`. Raises UnsupportedDtypeError for an unknown dtype.
    """

    name: str
    dtype: str
    shape: Shape
    offset: int = 0
    checksum: str | None = None
    global_shape: Shape | None = None
    origin: Shape | None = None
    pieces: tuple[TensorMetadata, ...] = ()
    size: int = field(init=False, compare=False)
    """The number of bytes, from dtype and shape."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", byte_size(self.dtype, self.shape))

    @property
    def box(self) -> Box | None:
        """The region of the global tensor that this piece covers; None for a whole tensor."""
        return None if self.origin is None else Box(self.origin, self.shape)


@dataclass(frozen=True, slots=True)
class ShardMetadata:
    """One shard: what one rank contributed."""

    rank: int = 0
    file_path: str = ""
    file_size: int = 0
    tensors: Sequence[TensorMetadata] = ()
    checksum: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardingMetadata:
    """How the state was cut over the ranks."""

    strategy: str = ""
    shard_count: int = 0
    precision: str = ""
    strategy_specific_info: Mapping[str, Json] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingMetadata:
    """Where the training stood."""

    epoch: int = 0
    step: int = 0
    learning_rate: float = 0.0
    optimizer_type: str = ""
    optimizer_state: Mapping[str, Json] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """The checkpoint as a whole. `extra` keeps members that this release does not know."""

    version: str = ""
    timestamp: datetime | None = None
    world_size: int = 1
    ddp_rank: int = 0
    sharding: ShardingMetadata | None = None
    shards: tuple[ShardMetadata, ...] = ()
    training: TrainingMetadata | None = None
    custom_fields: Mapping[str, Json] = field(default_factory=dict)
    format: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)


def now() -> datetime:
    """The default clock: the present moment, in UTC."""
    return datetime.now(UTC)


def moved(tensor: TensorMetadata, offset: int) -> TensorMetadata:
    """The tensor at another offset; much faster than `dataclasses.replace`, for files of very many."""
    return TensorMetadata(
        tensor.name,
        tensor.dtype,
        tensor.shape,
        offset,
        tensor.checksum,
        tensor.global_shape,
        tensor.origin,
        tensor.pieces,
    )
