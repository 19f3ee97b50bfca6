"""Loading into a state that exists: which tensor of the checkpoint goes into which array."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncckpt.errors import MismatchError, UnsupportedDtypeError, UnsupportedStateError
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.flatten import Leaf, tie_key, walk_state
from asyncckpt.model.state.leaves import LEAVES, LeafRegistry
from asyncckpt.model.state.tree import Path, show_path, tree_leaves


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where the tensors of a checkpoint go. As in torch, the state is what counts as expected.

    `arrays` has, for each tensor, the writable arrays to fill: several when the checkpoint has one tensor
    where the state has several arrays. `replaced` are tensors whose place in the state holds something that
    can't change (a numpy scalar). `missing` are leaves of the state that the checkpoint lacks, `unexpected`
    tensors of the checkpoint that the state has no place for. `existing` is for `rebuild`: the state's own
    objects.
    """

    arrays: dict[str, tuple[np.ndarray, ...]]
    existing: dict[Path, Any]
    replaced: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def tensors_into(tree: Json, state: Any, *, registry: LeafRegistry = LEAVES) -> Destinations:
    """Match a checkpoint's tensors with a state's leaves: by position, and where that fails by name.

    Raises UnsupportedStateError, with the path, for a leaf that can't be filled, MismatchError when one array
    of the state would get two tensors, LayoutError for a malformed tree.
    """
    stored = tree_leaves(tree)
    places = walk_state(state, registry=registry).places
    matched, missing = _match({path: name for path, name, _ in stored}, places)
    arrays: dict[str, dict[Hashable, np.ndarray]] = {}
    existing: dict[Path, Any] = {}
    replaced: dict[str, None] = {}
    owners: dict[Hashable, tuple[str, Leaf]] = {}
    for path, name, place in matched:
        array = _destination(place)
        if array is None:
            replaced[name] = None
            continue
        key = tie_key(place)
        _check_owner(owners.setdefault(key, (name, place)), name, place)
        arrays.setdefault(name, {}).setdefault(key, array)
        existing[path] = place.value
    unexpected = dict.fromkeys(name for _, name, _ in stored if name not in arrays and name not in replaced)
    return Destinations(
        {name: tuple(targets.values()) for name, targets in arrays.items()},
        existing,
        tuple(replaced),
        tuple(missing),
        tuple(unexpected),
    )


def _match(stored: dict[Path, str], places: list[Leaf]) -> tuple[list[tuple[Path, str, Leaf]], list[str]]:
    """Triples of position in the checkpoint, tensor and leaf; and the names of leaves without a tensor."""
    taken = {stored[place.path] for place in places if place.path in stored}
    # A file of another tool is a flat dict: 'a.b' there is what is ['a']['b'] here.
    free = {name: path for path, name in stored.items() if name not in taken}
    matched: list[tuple[Path, str, Leaf]] = []
    missing: list[str] = []
    for place in places:
        if place.path in stored:
            matched.append((place.path, stored[place.path], place))
        elif place.name in free:
            matched.append((free[place.name], place.name, place))
        else:
            missing.append(place.name)
    return matched, missing


def _destination(place: Leaf) -> np.ndarray | None:
    try:
        array = place.adapter.destination(place.value)
        if (
            array is not None
            and array.size
            and any(step == 0 and length > 1 for step, length in zip(array.strides, array.shape, strict=True))
        ):
            raise UnsupportedStateError(
                "the array repeats its memory (it was broadcast) and can't be loaded into"
            )
    except (UnsupportedStateError, UnsupportedDtypeError) as error:
        raise UnsupportedStateError(f"{show_path(place.path)}: {error}") from error
    return array


def _check_owner(owner: tuple[str, Leaf], name: str, place: Leaf) -> None:
    if owner[0] != name:
        raise MismatchError(
            f"{show_path(owner[1].path)} and {show_path(place.path)} are one array, "
            f"but the checkpoint has two tensors for them: {owner[0]!r} and {name!r}"
        )
