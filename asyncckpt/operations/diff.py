"""`diff`: what is different between two checkpoints, of the same format or not, reading no more than it must."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from asyncckpt._aio import dismantle, gc_paused, run_in_thread
from asyncckpt.arguments import checked
from asyncckpt.cancellation import CancellationToken
from asyncckpt.model.checksums import MIN_CHUNK_BYTES
from asyncckpt.model.metadata import (
    CheckpointMetadata,
    Json,
    ShardingMetadata,
    TensorMetadata,
    TrainingMetadata,
)
from asyncckpt.model.state.beyond_json import JsonWriter
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint
from asyncckpt.operations.diff_state import Fingerprint, Values, state_changes
from asyncckpt.operations.location import Location, StorageOptions
from asyncckpt.operations.runtime import let_go, run_inline_or_threaded
from asyncckpt.progress import ProgressCallback

_NOT_COMPARED = frozenset({"shards", "timestamp", "format", "version", "extra"})


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that both have and that differs: `what` is 'dtype', 'shape' or 'bytes'."""

    name: str
    what: str
    before: str
    after: str
    largest: float | None = None
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class DiffReport:
    """`header`, `metadata` and `state` (the plain values) are one line for each difference; `same` is whether all
    but the header agrees."""

    header: tuple[str, ...]
    metadata: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[TensorChange, ...]
    unchanged: int
    state: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.metadata or self.added or self.removed or self.changed or self.state)


@checked
async def diff(
    a: Location,
    b: Location,
    *,
    values: bool = False,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> DiffReport:
    """Compare two checkpoints. With `values`, changed tensors are read for their largest and mean difference.

    Where both files have checksums of the same chunks, no tensor is read to find what changed. `storage_options`
    hold for both; give one that needs others as `asyncckpt.at(…)`. Raises as `open_checkpoint` does.
    """
    async with (
        open_checkpoint(
            a, cancellation=cancellation, progress=progress, storage_options=storage_options
        ) as first,
        open_checkpoint(b, storage_options=storage_options) as second,
    ):
        report = await _diff(first, second, values=values)
        remains = [*first.remains(), *second.remains()]
    if remains:
        del first, second
        await run_in_thread(dismantle, remains)
    return report


async def _diff(first: Checkpoint, second: Checkpoint, *, values: bool) -> DiffReport:
    tensors = len(first.tensors) + len(second.tensors)
    found = await run_inline_or_threaded(first.threads, tensors, _look, first, second, values)
    for name in found.unread:
        change = await _compare(name, first, second, values=values)
        if change is not None:
            found.changed[name] = change
    return DiffReport(
        header=tuple(_header(first, second)),
        metadata=tuple(await first.threads.run(_metadata, first.metadata, second.metadata)),
        added=found.added,
        removed=found.removed,
        changed=tuple(found.changed[name] for name in found.common if name in found.changed),
        unchanged=len(found.common) - len(found.changed),
        state=tuple(await _state(first, second)),
    )


async def _state(first: Checkpoint, second: Checkpoint) -> list[str]:
    """The differences of the plain values. Both trees are empty afterwards."""
    chunk_bytes = _chunk_bytes(first)
    before = Values(first.tree, await _fingerprints(first, chunk_bytes))
    after = Values(second.tree, await _fingerprints(second, chunk_bytes))
    lines = await first.threads.run(gc_paused()(state_changes), before, after, chunk_bytes)
    await let_go(first.threads, first.tree)
    await let_go(second.threads, second.tree)
    return lines


def _chunk_bytes(checkpoint: Checkpoint) -> int:
    """Those of its payloads, so that their checksums need not be computed anew."""
    stored = (checkpoint.stored(name) for name in checkpoint.payloads)
    return next((found.chunk_bytes for found in stored if found and found.chunk_bytes), MIN_CHUNK_BYTES)


async def _fingerprints(checkpoint: Checkpoint, chunk_bytes: int) -> dict[str, Fingerprint]:
    """Those of the payloads, which are read only where the file has no checksums of such chunks."""
    found = {}
    for name, payload in checkpoint.payloads.items():
        stored = checkpoint.stored(name)
        if stored and stored.checksums is not None and stored.chunk_bytes == chunk_bytes:
            found[name] = Fingerprint(payload.size, tuple(stored.checksums.tolist()))
        else:
            array = await checkpoint.read(name)
            found[name] = await checkpoint.threads.run(Fingerprint.of, array.data, chunk_bytes)
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known before a tensor is read: `unread` are those that have to be."""

    common: list[str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, TensorChange]
    unread: list[str]


def _look(first: Checkpoint, second: Checkpoint, values: bool) -> _Found:
    """Compare dtypes, shapes and checksums. For a worker thread, where there are many tensors."""
    common = [name for name in first.tensors if name in second.tensors]
    changed: dict[str, TensorChange] = {}
    unread = []
    for name in common:
        a, b = first.tensors[name], second.tensors[name]
        if a.dtype != b.dtype:
            changed[name] = TensorChange(name, "dtype", a.dtype, b.dtype)
        elif a.shape != b.shape:
            changed[name] = TensorChange(name, "shape", str(list(a.shape)), str(list(b.shape)))
        else:
            agree = _checksums_agree(name, first, second)
            if agree is None or (not agree and values):
                unread.append(name)
            elif not agree:
                changed[name] = TensorChange(name, "bytes", *_shown(name, first, second))
    return _Found(
        common,
        added=tuple(name for name in second.tensors if name not in first.tensors),
        removed=tuple(name for name in first.tensors if name not in second.tensors),
        changed=changed,
        unread=unread,
    )


def _header(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    for what, before, after in (
        ("format", first.format, second.format),
        ("version", first.version, second.version),
        ("size", first.size, second.size),
    ):
        if before != after:
            yield f"{what}: {before} -> {after}"


def _metadata(first: CheckpointMetadata, second: CheckpointMetadata) -> list[str]:
    lines = []
    for member in fields(CheckpointMetadata):
        before, after = getattr(first, member.name), getattr(second, member.name)
        if member.name in _NOT_COMPARED or _exactly(before) == _exactly(after):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            for key in sorted({*before, *after}):
                if _exactly(before.get(key)) != _exactly(after.get(key)):
                    lines.append(f"{member.name}.{key}: {before.get(key)!r} -> {after.get(key)!r}")
        else:
            lines.append(f"{member.name}: {before!r} -> {after!r}")
    return lines


def _exactly(value: Any) -> tuple[Json, Json]:
    """What is equal for two values that are the same to the bit: NaN is not equal to itself."""
    plain = asdict(value) if isinstance(value, ShardingMetadata | TrainingMetadata) else value
    writer = JsonWriter()
    return writer.value(dict(plain) if isinstance(plain, Mapping) else plain, (), "metadata"), writer.exact


async def _compare(name: str, first: Checkpoint, second: Checkpoint, *, values: bool) -> TensorChange | None:
    """Compare the bytes of a tensor whose dtype and shape are the same."""
    before, after = await first.read(name), await second.read(name)
    same = await run_in_thread(lambda: before.tobytes() == after.tobytes())
    if same:
        return None
    largest, mean = await run_in_thread(_distance, before, after) if values else (None, None)
    return TensorChange(name, "bytes", *_shown(name, first, second), largest, mean)


def _checksums_agree(name: str, first: Checkpoint, second: Checkpoint) -> bool | None:
    """None where the checksums do not tell: they are missing, or of other chunks."""
    a, b = first.stored(name), second.stored(name)
    if a is None or b is None or a.checksums is None or b.checksums is None:
        return None
    if a.chunk_bytes != b.chunk_bytes or a.order != b.order:
        return None
    return bool(np.array_equal(a.checksums, b.checksums))


def _shown(name: str, first: Checkpoint, second: Checkpoint) -> tuple[str, str]:
    return _fingerprint(first, name), _fingerprint(second, name)


def _fingerprint(checkpoint: Checkpoint, name: str) -> str:
    stored = checkpoint.stored(name)
    tensor: TensorMetadata = checkpoint.tensors[name]
    if stored is None or stored.checksums is None or not len(stored.checksums):
        return f"{tensor.dtype}{list(tensor.shape)}"
    return f"crc32c {int(stored.checksums[0]):08x}" + ("…" if len(stored.checksums) > 1 else "")


def _distance(before: np.ndarray, after: np.ndarray) -> tuple[float | None, float | None]:
    """The largest and the mean absolute difference; None for what can't be subtracted."""
    # bfloat16 and float8 have the kind of raw bytes, and are none.
    raw = before.dtype.kind in "SUmM" or before.dtype.type is np.void
    if raw or not before.size:
        return None, None
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(before.astype(wide) - after.astype(wide))
    return float(apart.max()), float(apart.mean())
