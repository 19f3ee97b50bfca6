"""From a plan to bytes, in memory and in one thread: hashing, small files, `serialize`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncckpt.formats.kit.plan import AnyPlan, Digests, FilePlan, Payload, StreamPlan, TensorBytes
from asyncckpt.model.checksums import Buffer, Checksums, Chunking, crc32, crc32c


class Digesting:
    """Hashes payloads into one set of digests; several threads may hash different payloads at a time.

    `checksums`, where given, get those of the tensors that are hashed here; the others stay as they are.
    """

    def __init__(
        self, chunking: Chunking, *, crc32: bool = False, checksums: Checksums | None = None
    ) -> None:
        self._chunking = chunking
        self.checksums = np.zeros(chunking.count, np.uint32) if checksums is None else checksums
        self._crc32 = [0] * len(chunking.sizes) if crc32 else None

    def hash(self, payloads: Iterable[Payload], read: TensorBytes) -> None:
        for payload in payloads:
            first = self._chunking.first[payload.tensor]
            total = 0
            for chunk, start, end in self._chunking.cut(payload.tensor, 0, payload.size):
                piece = read(payload.tensor, start, end)
                self.checksums[first + chunk] = crc32c(piece)
                if self._crc32 is not None:
                    total = crc32(piece, total)
            if self._crc32 is not None:
                self._crc32[payload.tensor] = total

    def digests(self, own: Any = None) -> Digests:
        return Digests(self.checksums, tuple(self._crc32 or ()), own)


def digest_file(plan: FilePlan, read: TensorBytes, checksums: Checksums | None = None) -> Digests:
    """Hash the payloads of one file. `checksums` are those of the files of its set so far; this file's are added."""
    digesting = Digesting(plan.chunking, crc32=plan.needs_crc32, checksums=checksums)
    digesting.hash(plan.payloads, read)
    return digesting.digests(format_digest(plan, read))


def format_digest(plan: FilePlan, read: TensorBytes) -> Any:
    """What only the format itself knows how to hash; None where there is no such thing."""
    return None if plan.format_digest is None else plan.format_digest(read)


def digest_content(chunking: Chunking, read: TensorBytes, *, crc32: bool = False) -> Digests:
    """Hash every tensor of a content."""
    digesting = Digesting(chunking, crc32=crc32)
    digesting.hash((Payload(number, 0, size) for number, size in enumerate(chunking.sizes)), read)
    return digesting.digests()


def segments(plan: FilePlan, late: Sequence[bytes], read: TensorBytes) -> list[Buffer]:
    """The whole file as a list of buffers, tensors as views."""
    parts: list[tuple[int, Buffer]] = [(r.start, data) for r, data in zip(plan.deferred, late, strict=True)]
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
        hashed = digest_content(plan.chunking, read, crc32=plan.needs_crc32)
        digests = replace(hashed, format=format_digest(plan, read))
    return b"".join(segments(plan, plan.finish(digests, read), read))
