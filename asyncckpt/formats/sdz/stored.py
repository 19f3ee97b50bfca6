"""An SDZ archive of entries as they are: laid out before a byte is written, every tensor readable by range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from asyncckpt.formats.kit.plan import Digests, FilePlan, Payload, TensorBytes
from asyncckpt.formats.kit.zip import STORED, ZipEntry
from asyncckpt.formats.sdz.seal import entry_header, sealed_directory
from asyncckpt.model.checksums import crc32, crc32_of_region
from asyncckpt.model.ranges import ByteRange

# -- plan ------------------------------------------------------------------------------------------------------


class _Placed(NamedTuple):
    """A STORED entry: its header's place and its data's."""

    plan: FilePlan
    header_offset: int
    data_offset: int

    def entry(self, crc32: int = 0) -> ZipEntry:
        size = self.plan.size
        return ZipEntry(
            self.plan.name, STORED, crc32, size, size, self.header_offset, data_offset=self.data_offset
        )


def plan_stored(plans: Sequence[FilePlan], name: str) -> FilePlan:
    """An archive of entries as they are: every tensor stays readable by range."""
    placed = []
    position = 0
    for plan in plans:
        header_bytes = len(entry_header(_Placed(plan, position, 0).entry()))
        placed.append(_Placed(plan, position, position + header_bytes))
        position += header_bytes + plan.size
    payloads: list[Payload] = []
    late: list[ByteRange] = []
    for item in placed:
        at = item.data_offset
        payloads += (replace(p, offset=p.offset + at) for p in item.plan.payloads)
        late.append(ByteRange(item.header_offset, at))
        late += (ByteRange(r.start + at, r.end + at) for r in item.plan.deferred)
    size = position + len(sealed_directory([item.entry() for item in placed], position))
    late.append(ByteRange(position, size))

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        regions: list[bytes] = []
        entries = []
        for item in placed:
            inner = item.plan.finish(digests, read)
            crc = file_crc32(item.plan, inner, digests.crc32)
            entries.append(item.entry(crc))
            regions += [entry_header(entries[-1]), *inner]
        return [*regions, sealed_directory(entries, position)]

    return FilePlan(name, size, tuple(payloads), tuple(late), plans[0].chunking, finish, needs_crc32=True)


# -- encode ----------------------------------------------------------------------------------------------------


def file_crc32(plan: FilePlan, late: Sequence[bytes], sums: Sequence[int]) -> int:
    """The CRC32 of a whole planned file, from those of its parts; `sums` are those of the content's tensors."""
    runs = [(r.start, r.end, crc32(data)) for r, data in zip(plan.deferred, late, strict=True)]
    runs += [(p.offset, p.end, sums[p.tensor]) for p in plan.payloads if p.size]
    return crc32_of_region(runs, 0, plan.size)
