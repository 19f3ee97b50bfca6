"""From a plan to bytes: the hashing of payloads, and whole files in memory for small ones and `serialize`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncckpt.formats.kit.plan import AnyPlan, Digests, FilePlan, Payload, StreamPlan, TensorBytes
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import Checksums, Chunking, crc32_combine, crc32c, crc32c_combine
from asyncckpt.model.checksums import crc32 as crc32_of

_HASH_AGAIN_BELOW = 16 * 1024
"""Hashing so few bytes a second time is cheaper than combining two checksums."""


class ChunkDigests:
    """Collects the checksums of pieces of tensors, in any order and from several threads, into those of chunks."""

    def __init__(self, chunking: Chunking, *, crc32: bool = False) -> None:
        self._chunking = chunking
        self._checksums = np.zeros(chunking.count, np.uint32)
        # Different threads set different items; a list's append is atomic. So they need no lock.
        self._broken: list[tuple[int, int, int, int]] = []
        self._crc32 = np.zeros(len(chunking.sizes), np.uint32) if crc32 else None
        self._crc32_pieces: list[tuple[int, int, int, int]] = []

    def add(self, tensor: int, start: int, view: Buffer, total: int | None = None) -> int:
        """Hash the bytes of a tensor from `start` on; returns the CRC32C of all of them, continued from `total`.

        Without a `total`, nobody wants that, and it is 0.
        """
        view = memoryview(view)
        value = 0 if total is None else total
        for chunk, begin, end in self._chunking.cut(tensor, start, start + view.nbytes):
            piece = view[begin - start : end - start]
            own = crc32c(piece)
            if total is not None:
                size = end - begin
                value = crc32c(piece, value) if size < _HASH_AGAIN_BELOW else crc32c_combine(value, own, size)
            self._enter(tensor, chunk, begin, end, own)
            if self._crc32 is not None:
                self._crc32_pieces.append((tensor, begin, end - begin, crc32_of(piece)))
        return value

    def add_whole(self, tensors: NDArray[np.int64], views: Iterable[Buffer]) -> None:
        """Hash tensors that have one chunk each, given whole."""
        # One turn of a comprehension for each: of small tensors there may be very many.
        positions = self._chunking.positions[tensors]
        if self._crc32 is None:
            self._checksums[positions] = [crc32c(view) for view in views]
        else:
            both = np.array([(crc32c(view), crc32_of(view)) for view in views], np.uint32).reshape(-1, 2)
            self._checksums[positions], self._crc32[tensors] = both[:, 0], both[:, 1]

    def add_payloads(self, payloads: Iterable[Payload], read: TensorBytes) -> None:
        """Hash whole tensors, read one chunk at a time."""
        small: list[Payload] = []
        for payload in payloads:
            if payload.size > self._chunking.chunk_bytes:
                for _, start, end in self._chunking.cut(payload.tensor, 0, payload.size):
                    self.add(payload.tensor, start, read(payload.tensor, start, end))
            elif payload.size:
                small.append(payload)
        numbers = np.array([payload.tensor for payload in small], np.int64)
        self.add_whole(numbers, (read(payload.tensor, 0, payload.size) for payload in small))

    def set_known(self, tensor: int, checksums: Checksums) -> None:
        """Take over the checksums of a tensor that need not be hashed."""
        self._chunking.of_tensor(tensor, self._checksums)[:] = checksums

    def _enter(self, tensor: int, chunk: int, start: int, end: int, value: int) -> None:
        position = self._chunking.first[tensor] + chunk
        if (start, end) == self._chunking.chunk_range(tensor, chunk):
            self._checksums[position] = value
        else:
            self._broken.append((position, start, end - start, value))

    def digests(self, own: Any = None) -> Digests:
        """The checksums of all chunks, once every piece was hashed; `own` is what the plan's `format_digest` gave."""
        combined: dict[int, int] = {}
        for position, _, size, value in sorted(self._broken):
            combined[position] = crc32c_combine(combined.get(position, 0), value, size)
        for position, value in combined.items():
            self._checksums[position] = value
        return Digests(self._checksums, self._tensor_crc32(), own)

    def _tensor_crc32(self) -> tuple[int, ...]:
        if self._crc32 is None:
            return ()
        sums: list[int] = self._crc32.tolist()
        for tensor, _, size, value in sorted(self._crc32_pieces):
            sums[tensor] = crc32_combine(sums[tensor], value, size)
        return tuple(sums)


def digest_file(plan: FilePlan, read: TensorBytes) -> Digests:
    """Hash the tensors of one file; the checksums of all others are zero."""
    digests = ChunkDigests(plan.chunking, crc32=plan.needs_crc32)
    digests.add_payloads((*plan.payloads, *plan.inline), read)
    return digests.digests(format_digest(plan, read))


def format_digest(plan: FilePlan, read: TensorBytes) -> Any:
    """What only the format itself knows how to hash; None where there is no such thing."""
    return None if plan.format_digest is None else plan.format_digest(read)


def digest_content(chunking: Chunking, read: TensorBytes, *, crc32: bool = False) -> Digests:
    """Hash every tensor of a content."""
    digests = ChunkDigests(chunking, crc32=crc32)
    digests.add_payloads((Payload(number, 0, size) for number, size in enumerate(chunking.sizes)), read)
    return digests.digests()


class SetDigests:
    """What the files of a set that are there already say to the one that is written last."""

    def __init__(self) -> None:
        self._checksums: Checksums | None = None
        self._formats: dict[str, Any] = {}

    def add(self, name: str, digests: Digests) -> None:
        """Note the digests of a file. They are values: it may have been written by another process."""
        self._formats[name] = digests.format
        self._checksums = self._joined(digests.checksums)

    def with_earlier(self, own: Digests) -> Digests:
        """The digests of the last file, which has everybody's."""
        return replace(own, checksums=self._joined(own.checksums), earlier=dict(self._formats))

    def _joined(self, checksums: Checksums) -> Checksums:
        # No tensor lies in two files, so what is not zero in one is zero in all others.
        return checksums if self._checksums is None else self._checksums | checksums


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
