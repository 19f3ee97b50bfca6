"""STORE, the section that holds the tensors' bytes: hashed as it lies, or made frame by frame.

In a plain bundle every tensor lies at a multiple of 64, as it is. In a compressed or encrypted one every checksum chunk
of a tensor is a frame, and the frames lie back to back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from asyncckpt.formats.kit.encode import ChunkDigests
from asyncckpt.formats.kit.parallel import map_in_order
from asyncckpt.formats.kit.plan import Payload, TensorBytes, aligned
from asyncckpt.formats.metagraph.codec import Codec, RandomBytes
from asyncckpt.formats.metagraph.hashing import hash_of, new_hasher
from asyncckpt.formats.metagraph.records import Entry, Frame
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import Checksums, Chunking

ALIGNMENT = 64
_PIECE_BYTES = 4 * 1024 * 1024
_MAX_THREADS = 4


def hash_store(payloads: Sequence[Payload], start: int, read: TensorBytes) -> tuple[bytes, list[bytes]]:
    """The hash of a plain STORE that begins at `start`, and that of each tensor, in one pass over the bytes."""
    whole, position, hashes = new_hasher(), start, []
    for payload in payloads:
        whole.update(bytes(payload.offset - position))
        position = payload.end
        if payload.size <= _PIECE_BYTES:
            piece = read(payload.tensor, 0, payload.size)
            whole.update(piece)
            hashes.append(hash_of(piece))
            continue
        tensor = new_hasher()
        for begin in range(0, payload.size, _PIECE_BYTES):
            piece = read(payload.tensor, begin, min(payload.size, begin + _PIECE_BYTES))
            whole.update(piece)
            tensor.update(piece)
        hashes.append(tensor.digest())
    return whole.digest(), hashes


@dataclass(slots=True)
class StoreStream:
    """Makes a STORE whose size is not known before.

    `known` are the base's hashes of the tensors, None where it has none.
    When `chunks` is through, the other fields say what was made.
    """

    ids: Sequence[bytes]
    chunking: Chunking
    codec: Codec
    start: int
    known: Sequence[bytes | None]
    random: RandomBytes

    entries: list[Entry] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    in_base: set[int] = field(default_factory=set)
    hashes: list[bytes] = field(default_factory=list)
    digest: bytes = b""
    end: int = 0
    _digests: ChunkDigests = field(init=False, repr=False)

    @property
    def checksums(self) -> Checksums:
        """Those of all tensors, in the base or not."""
        return self._digests.digests().checksums

    def chunks(self, read: TensorBytes) -> Iterator[bytes]:
        """The section's bytes, in order. Threads of its own do the work; they end with the generator."""
        self.entries, self.frames, self.in_base = [], [], set()
        self.hashes = [b""] * len(self.ids)
        self._digests = ChunkDigests(self.chunking)
        self.end = self.start
        whole = new_hasher()
        for data in self._framed(read) if self.codec.flags else self._plain(read):
            whole.update(data)
            self.end += len(data)
            yield data
        self.digest = whole.digest()

    def _plain(self, read: TensorBytes) -> Iterator[bytes]:
        position = self.start
        for number in self._changed(read):
            offset, size = aligned(position, ALIGNMENT), self.chunking.sizes[number]
            self.entries.append(Entry(self.ids[number], offset, size, size))
            if offset > position:
                yield bytes(offset - position)
            yield from map(bytes, self._pieces(number, read))
            position = offset + size

    def _framed(self, read: TensorBytes) -> Iterator[bytes]:
        threads = min(_MAX_THREADS, os.cpu_count() or 1)
        counts: list[tuple[int, int, int]] = []
        raw = self._raw_frames(read, counts)
        with closing(map_in_order(self._make_frame, raw, threads=threads, name="metagraph-store")) as made:
            for stored, digest in made:
                offset = self.frames[-1].end if self.frames else self.start
                self.frames.append(Frame(offset, len(stored), digest))
                yield stored
        self.entries = [self._framed_entry(*count) for count in counts]

    def _raw_frames(
        self, read: TensorBytes, counts: list[tuple[int, int, int]]
    ) -> Iterator[tuple[int, Buffer]]:
        """The frames with their numbers. `counts` gets of each tensor: its number, its first frame, the next one's."""
        number = 0
        for tensor in self._changed(read):
            first = number
            for raw in self._pieces(tensor, read):
                yield number, raw
                number += 1
            counts.append((tensor, first, number))

    def _make_frame(self, numbered: tuple[int, Buffer]) -> tuple[bytes, bytes]:
        number, raw = numbered
        stored = self.codec.encode_frame(number, raw, self.random)
        return stored, hash_of(stored)

    def _framed_entry(self, tensor: int, first: int, end: int) -> Entry:
        offset = self.frames[first].offset if end > first else self.start
        size = self.frames[end - 1].end - offset if end > first else 0
        return Entry(self.ids[tensor], offset, size, self.chunking.sizes[tensor], first, end - first)

    def _changed(self, read: TensorBytes) -> Iterator[int]:
        """The tensors that the base does not have, one by one; the others are noted."""
        for number, known in enumerate(self.known):
            if known is not None:
                for _ in self._pieces(number, read):
                    pass
                if self.hashes[number] == known:
                    self.in_base.add(number)
                    continue
            yield number

    def _pieces(self, number: int, read: TensorBytes) -> Iterator[Buffer]:
        """The tensor's chunks, hashed on the way."""
        hasher = new_hasher()
        for _, start, end in self.chunking.cut(number, 0, self.chunking.sizes[number]):
            piece = read(number, start, end)
            self._digests.add(number, start, piece)
            hasher.update(piece)
            yield piece
        self.hashes[number] = hasher.digest()
