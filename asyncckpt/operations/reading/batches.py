"""What a read has to decode, or to take apart: its stored bytes, in batches that a byte budget can bear."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from asyncckpt.formats.kit.decode import Decoder, check_chunk, needed_extents
from asyncckpt.formats.kit.index import Extent
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.reading.placement import Placement
from asyncckpt.operations.reading.runs import portions

_MOST_PORTIONS = 4096
Progress = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Errand:
    """Portions of one tensor, in order, and where they go."""

    placement: Placement
    portions: list[ByteRange]


@dataclass(slots=True)
class Batch:
    """Errands that are run as one; `extents` are the stored bytes that they need, `cost` the memory."""

    errands: list[Errand] = field(default_factory=list)
    extents: dict[Extent, None] = field(default_factory=dict)
    cost: int = 0
    portions: int = 0

    def cost_of(self, placement: Placement, extents: Iterable[Extent]) -> int:
        """What some more extents would cost: their stored bytes, and what their frames become."""
        frames = placement.stored.frames
        raw = 0 if frames is None else frames.raw_bytes
        return sum(extent.size + raw for extent in extents if extent not in self.extents)

    def add(self, placement: Placement, portion: ByteRange, extents: Iterable[Extent], cost: int) -> None:
        if not self.errands or self.errands[-1].placement is not placement:
            self.errands.append(Errand(placement, []))
        self.errands[-1].portions.append(portion)
        self.extents.update(dict.fromkeys(extents))
        self.cost += cost
        self.portions += 1


def plan_batches(placements: Iterable[Placement], *, verify: bool, limit_bytes: int) -> Iterator[Batch]:
    """Batches that cost no more than the limit each, unless a single portion does."""
    batch = Batch()
    for placement in placements:
        stored = placement.stored
        for portion in portions(stored, placement.runs, verify=verify):
            extents = needed_extents(stored, *portion)
            cost = batch.cost_of(placement, extents)
            if (
                batch.errands
                and cost
                and (batch.cost + cost > limit_bytes or batch.portions >= _MOST_PORTIONS)
            ):
                yield batch
                batch = Batch()
                cost = batch.cost_of(placement, extents)
            batch.add(placement, portion, extents, cost)
    if batch.errands:
        yield batch


def run_batch(
    batch: Batch,
    found: Mapping[Extent, memoryview],
    *,
    verify: bool,
    progress: Progress,
    stop: threading.Event,
    seen: Callable[[Buffer], None] | None = None,
) -> None:
    """Decode, verify and place everything, until `stop` is set. Blocks. Raises FormatError subclasses."""
    for errand in batch.errands:
        placement = errand.placement
        stored = placement.stored
        decoder = Decoder(stored, found.__getitem__, seen)
        for portion in errand.portions:
            if stop.is_set():
                return
            raw = decoder.read(*portion)
            if verify and stored.checksums is not None:
                check_chunk(stored, portion.start // stored.chunk_bytes, raw)
            placement.put(portion.start, raw)
            progress(portion.size, stored.name)
