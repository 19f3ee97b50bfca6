"""Capture: a state and its metadata as they are at one instant, before a save first suspends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from asyncckpt._aio import dismantle, gc_paused
from asyncckpt.formats.kit.metadata_json import encode_metadata
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.state.capture import CAPTURED, capture
from asyncckpt.model.state.flatten import FlatState, flatten


@dataclass(frozen=True, slots=True)
class Captured:
    """A state with containers of its own, and its metadata. The arrays are still the caller's."""

    state: Any
    metadata: CheckpointMetadata

    @classmethod
    def of(
        cls,
        state: Any,
        metadata: CheckpointMetadata | Mapping[str, Json] | None,
        clock: Callable[[], datetime],
    ) -> Captured:
        """The only walk over a state on the event loop.

        Raises UnsupportedStateError, with its path, for metadata that can't be kept.
        """
        with gc_paused():
            captured = capture(state)
        return cls(captured, _described(metadata, clock))

    def take_apart(self, payloads: bool) -> FlatState:
        """Named arrays, payloads (if the format has those) and a tree. Empties what was captured; for a worker thread.

        Raises UnsupportedStateError, with the path, for what can't be stored.
        """
        flat = flatten(self.state, payloads=payloads)
        dismantle(self.state, CAPTURED)
        return flat


def _described(
    metadata: CheckpointMetadata | Mapping[str, Json] | None, clock: Callable[[], datetime]
) -> CheckpointMetadata:
    """A copy of the caller's metadata, with the time of the save where it has none.

    Raises UnsupportedStateError, with its path, for a value that can't be kept.
    """
    if not isinstance(metadata, CheckpointMetadata):
        metadata = CheckpointMetadata(custom_fields=dict(metadata or {}))
    # Also before the copy: what can't be kept may not even be copied.
    bare = tuple(replace(shard, tensors=()) for shard in metadata.shards)
    encode_metadata(replace(metadata, shards=bare))
    described = deepcopy(metadata)
    return described if described.timestamp is not None else replace(described, timestamp=clock())
