"""How deep metadata may be nested: as deep as a state, so that whatever writes or reads it as JSON can."""

from __future__ import annotations

from collections.abc import Mapping

from asyncckpt.errors import LimitExceededError
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.structure import MAX_DEPTH


def require_shallow(metadata: CheckpointMetadata | Mapping[str, Json]) -> None:
    """Raises LimitExceededError for free members that are nested deeper than a state may be."""
    free = _free_members(metadata) if isinstance(metadata, CheckpointMetadata) else [metadata]
    stack: list[tuple[Json, int]] = [(value, 1) for value in free]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, Mapping):
            children = list(value.values())
        elif isinstance(value, list | tuple):
            children = list(value)
        else:
            continue
        if depth > MAX_DEPTH:
            raise LimitExceededError(f"the metadata is nested deeper than {MAX_DEPTH} levels")
        stack.extend((child, depth + 1) for child in children)


def _free_members(metadata: CheckpointMetadata) -> list[Json]:
    members: list[Json] = [metadata.custom_fields, metadata.extra]
    if metadata.sharding is not None:
        members += [metadata.sharding.strategy_specific_info, metadata.sharding.extra]
    if metadata.training is not None:
        members += [metadata.training.optimizer_state, metadata.training.extra]
    return members + [shard.extra for shard in metadata.shards]
