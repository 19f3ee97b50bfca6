"""From a plan to bytes, in memory and in one thread: hashing, small files, `serialize`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from asyncckpt.formats.plan import AnyPlan, Digests, FilePlan, Payload, StreamPlan, TensorBytes
from asyncckpt.model.digests import Buffer, Chunking, crc32c


def digest_payloads(
    chunking: Chunking, payloads: Iterable[Payload], read: TensorBytes, *, crc32: bool = False
) -> Digests:
    """Hash the payloads' bytes. Checksums of tensors that are no payload here stay zero."""
    checksums = np.zeros(chunking.count, np.uint32)
    sums = [0] * len(chunking.sizes) if crc32 else []
    for payload in payloads:
        for chunk, start, end in chunking.pieces(payload.tensor, 0, payload.size):
            piece = read(payload.tensor, start, end)
            checksums[chunking.first[payload.tensor] + chunk] = crc32c(piece)
            if crc32:
                sums[payload.tensor] = zlib.crc32(piece, sums[payload.tensor])
    return Digests(checksums, tuple(sums))


def digest_content(chunking: Chunking, read: TensorBytes, *, crc32: bool = False) -> Digests:
    """Hash every tensor of a content."""
    everything = [Payload(number, 0, size) for number, size in enumerate(chunking.sizes)]
    return digest_payloads(chunking, everything, read, crc32=crc32)


def segments(plan: FilePlan, late: Sequence[bytes], read: TensorBytes) -> list[Buffer]:
    """The whole file as a list of buffers, tensors as views."""
    parts: list[tuple[int, Buffer]] = [(r.start, data) for r, data in zip(plan.late, late, strict=True)]
    parts += [(p.offset, read(p.tensor, 0, p.size)) for p in plan.payloads if p.size]
    buffers: list[Buffer] = []
    position = 0
    for offset, data in sorted(parts, key=lambda part: part[0]):
        if offset > position:
            buffers.append(bytes(offset - position))
        buffers.append(data)
        position = offset + len(data)
    if plan.size > position:
        buffers.append(bytes(plan.size - position))
    return buffers


def render(plan: AnyPlan, read: TensorBytes, digests: Digests | None = None) -> bytes:
    """The whole file in one piece. For small files, tests and `serialize`."""
    if isinstance(plan, StreamPlan):
        body = b"".join(plan.chunks(read))
        return plan.head() + body
    if digests is None:
        digests = digest_content(plan.chunking, read, crc32=plan.needs_crc32)
    return b"".join(segments(plan, plan.finish(digests, read), read))
