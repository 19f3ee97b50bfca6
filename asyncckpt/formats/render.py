"""From a plan to bytes, in memory and in one thread: hashing, small files, `serialize`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from asyncckpt.formats.plan import AnyPlan, Digests, FilePlan, Payload, StreamPlan, TensorBytes
from asyncckpt.model.digests import Buffer, Chunking, crc32c


class Digesting:
    """Hashes payloads into one set of digests; several threads may hash different payloads at a time.

    Checksums of tensors that are never hashed here stay zero.
    """

    def __init__(self, chunking: Chunking, *, crc32: bool = False) -> None:
        self._chunking = chunking
        self.checksums = np.zeros(chunking.count, np.uint32)
        self._crc32 = [0] * len(chunking.sizes) if crc32 else None

    def hash(self, payloads: Iterable[Payload], read: TensorBytes) -> None:
        for payload in payloads:
            first = self._chunking.first[payload.tensor]
            total = 0
            for chunk, start, end in self._chunking.pieces(payload.tensor, 0, payload.size):
                piece = read(payload.tensor, start, end)
                self.checksums[first + chunk] = crc32c(piece)
                if self._crc32 is not None:
                    total = zlib.crc32(piece, total)
            if self._crc32 is not None:
                self._crc32[payload.tensor] = total

    def digests(self) -> Digests:
        return Digests(self.checksums, tuple(self._crc32 or ()))


def digest_payloads(
    chunking: Chunking, payloads: Iterable[Payload], read: TensorBytes, *, crc32: bool = False
) -> Digests:
    """Hash the payloads' bytes. Checksums of tensors that are no payload here stay zero."""
    digesting = Digesting(chunking, crc32=crc32)
    digesting.hash(payloads, read)
    return digesting.digests()


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
