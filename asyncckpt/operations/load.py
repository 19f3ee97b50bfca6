"""`load`: a whole state, or a part of it, as it was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from asyncckpt._aio import dismantle, gc_paused, run_in_thread
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken
from asyncckpt.errors import MismatchError, TensorNotFoundError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.state.fill import Destinations, tensors_into
from asyncckpt.model.state.leaves import Framework
from asyncckpt.model.state.tree import flat_tree, is_small, needs_framework, rebuild
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint
from asyncckpt.operations.location import Location, StorageOptions
from asyncckpt.operations.runtime import DEFAULT_MEMORY_BYTES, INLINE_TENSORS, run_inline_or_threaded
from asyncckpt.progress import ProgressCallback

Only = str | Iterable[str] | Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A loaded state, and what did not fit: leaves of `into` that the checkpoint lacks, and tensors of the checkpoint
    that had no place in it."""

    state: Any
    metadata: CheckpointMetadata
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


@checked
async def load(
    location: Location,
    *,
    only: Only | None = None,
    into: Any = None,
    verify: bool = True,
    map: bool = True,
    framework: Framework | None = None,
    format: str | ICheckpointFormat | None = None,
    memory_bytes: AtLeastOne = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> Any:
    """The state, as it was saved; from a foreign file a flat dict of arrays.

    `only` is a glob, names or a predicate: other tensors are left out, plain values are not. `into` is a state
    whose arrays are filled in place: what comes back is the saved state, made of those arrays, which must fit
    exactly (`load_with_report` takes what fits and reports the rest). With a `framework` all arrays come back as its
    own, else each as what it was saved from.

    A file on a local disk is mapped: its bytes stay there until they are needed. asyncckpt replaces files and never
    changes one, but if another program writes into this very file later, arrays that nobody has changed yet show
    what it wrote, and if it shortens the file, the operating system ends this process (SIGBUS). With `map=False`
    the arrays are read into memory of their own, which nobody else can reach.

    Raises InvalidArgumentError, CheckpointNotFoundError, FormatError subclasses (ChecksumMismatchError names the
    tensor), MismatchError, TensorNotFoundError, StorageError subclasses, OperationCancelledError. When it fails, the
    arrays of `into` may have been changed in part.
    """
    opening = open_checkpoint(
        location,
        format=format,
        verify=verify,
        map=map,
        memory_bytes=memory_bytes,
        cancellation=cancellation,
        progress=progress,
        storage_options=storage_options,
    )
    return await _load_from(opening, only, into, framework=framework, strict=True)


@checked
async def load_with_report(
    location: Location,
    *,
    only: Only | None = None,
    into: Any = None,
    verify: bool = True,
    map: bool = True,
    framework: Framework | None = None,
    format: str | ICheckpointFormat | None = None,
    memory_bytes: AtLeastOne = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> LoadReport:
    """As `load`, with what else there is to say: the metadata, and what of `into` and the checkpoint did not fit.

    Leaves of `into` that the checkpoint lacks stay as they are. Raises as `load` does, MismatchError only for
    an array whose shape or dtype is another.
    """
    opening = open_checkpoint(
        location,
        format=format,
        verify=verify,
        map=map,
        memory_bytes=memory_bytes,
        cancellation=cancellation,
        progress=progress,
        storage_options=storage_options,
    )
    report: LoadReport = await _load_from(opening, only, into, framework=framework, strict=False)
    return report


async def _load_from(
    opening: AbstractAsyncContextManager[Checkpoint],
    only: Only | None,
    into: Any,
    *,
    framework: Framework | None,
    strict: bool,
) -> Any:
    """The state, or unless `strict` the report: its metadata would keep what is freed here in a thread."""
    async with opening as checkpoint:
        state, missing, unexpected = await _load(checkpoint, only, into, framework=framework, strict=strict)
        result = state if strict else LoadReport(state, checkpoint.metadata, missing, unexpected)
        remains = checkpoint.remains()
    if remains:
        del checkpoint
        await run_in_thread(dismantle, remains)
    return result


_Loaded = tuple[Any, tuple[str, ...], tuple[str, ...]]
"""A state, what of `into` is missing from the checkpoint, and what of the checkpoint has no place there."""


async def _load(
    checkpoint: Checkpoint, only: Only | None, into: Any, *, framework: Framework | None, strict: bool
) -> _Loaded:
    names, tree = await run_inline_or_threaded(
        checkpoint.threads, len(checkpoint.tensors), _wanted, checkpoint, only
    )
    partial = only is not None
    if into is None:
        arrays = await checkpoint.read_many([*names, *checkpoint.payloads])
        state = await _rebuild(checkpoint, tree, arrays, framework=framework, partial=partial)
        return state, (), ()
    return await _load_into(checkpoint, tree, names, into, strict=strict, partial=partial)


def _wanted(checkpoint: Checkpoint, only: Only | None) -> tuple[list[str], Json]:
    """The tensors to load, and the tree to place them in."""
    names = select_names(checkpoint.tensors, only)
    tree = checkpoint.tree
    return names, tree if tree is not None else flat_tree(list(checkpoint.tensors))


async def _load_into(
    checkpoint: Checkpoint, tree: Json, names: list[str], into: Any, *, strict: bool, partial: bool
) -> _Loaded:
    wanted = set(names)
    places = await checkpoint.threads.run(gc_paused()(tensors_into), tree, into)
    unexpected = tuple(name for name in places.unexpected if name in wanted)
    missing = () if partial else places.missing
    if strict and (missing or unexpected):
        raise MismatchError(
            f"the state to fill does not fit: missing from the checkpoint {list(missing[:5])}, "
            f"without a place in the state {list(unexpected[:5])}; load_with_report takes what fits"
        )
    loaded = [name for name in names if name in places.arrays]
    arrays = await checkpoint.read_many(
        [*loaded, *(name for name in places.replaced if name in wanted), *checkpoint.payloads],
        into={name: places.arrays[name][0] for name in loaded},
    )
    state = await checkpoint.threads.run(gc_paused()(_fill), tree, places, arrays, loaded)
    return state, missing, unexpected


async def _rebuild(
    checkpoint: Checkpoint,
    tree: Json,
    arrays: Mapping[str, np.ndarray],
    *,
    framework: Framework | None,
    partial: bool,
) -> Any:
    def make() -> Any:
        return rebuild(tree, arrays, framework=framework, partial=partial)

    def make_and_let_go() -> Any:
        state = make()
        dismantle(tree)
        return state

    few = len(arrays) <= INLINE_TENSORS and not checkpoint.payloads and is_small(tree)
    # Leaves of a framework may have to import it first, which takes seconds.
    if few and framework != "torch" and not needs_framework(tree):
        return make()
    return await checkpoint.threads.run(gc_paused()(make_and_let_go))


def _fill(tree: Json, places: Destinations, arrays: Mapping[str, np.ndarray], loaded: list[str]) -> Any:
    """The state as it was saved, made of the arrays that were given; each place of a shared tensor is filled."""
    for name in loaded:
        for other in places.arrays[name][1:]:
            np.copyto(other, arrays[name])
    state = rebuild(tree, arrays, partial=True, existing=places.existing)
    dismantle(tree)
    return state


def select_names(tensors: Iterable[str], only: Only | None) -> list[str]:
    """The names that `only` means, in their order. Raises TensorNotFoundError for a name that is not there."""
    names = list(tensors)
    if only is None:
        return names
    if isinstance(only, str):
        chosen = [name for name in names if fnmatchcase(name, only)]
        if not chosen:
            raise TensorNotFoundError(f"no tensor matches {only!r}; the first of {len(names)} is {names[:1]}")
        return chosen
    if callable(only):
        return [name for name in names if only(name)]
    asked = list(only)
    absent = sorted(set(asked) - set(names))
    if absent:
        raise TensorNotFoundError(
            f"{len(absent)} tensors are not in the checkpoint, {absent[0]!r} among them"
        )
    wanted = set(asked)
    return [name for name in names if name in wanted]
