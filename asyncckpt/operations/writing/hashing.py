"""The bytes of a part, gathered from where they are, and their checksums, each byte of a large tensor hashed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncckpt.formats.kit.encode import ChunkDigests
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import crc32c, crc32c_of_zeros
from asyncckpt.operations.writing.cutting import Piece, Run, Span, zeros
from asyncckpt.operations.writing.source import RunBytes, TensorSource


def gather(pieces: Iterable[Piece], source: TensorSource, late: Sequence[bytes]) -> list[RunBytes]:
    """The bytes of each piece; `late` are the late regions, as far as they are needed. For a worker thread."""
    return [
        source.read_run(piece)
        if isinstance(piece, Run)
        else _at_hand(piece, late)
        if piece.tensor is None
        else _alone(source.read(piece.tensor, piece.start, piece.start + piece.size))
        for piece in pieces
    ]


async def fetch(pieces: Iterable[Piece], source: TensorSource, late: Sequence[bytes]) -> list[RunBytes]:
    """The same on the event loop, for a source that is not in memory."""
    gathered = []
    for piece in pieces:
        if isinstance(piece, Run):
            gathered.append(await source.fetch_run(piece))
        elif piece.tensor is None:
            gathered.append(_at_hand(piece, late))
        else:
            gathered.append(_alone(await source.fetch(piece.tensor, piece.start, piece.start + piece.size)))
    return gathered


def _at_hand(span: Span, late: Sequence[bytes]) -> RunBytes:
    if span.late is None:
        return RunBytes([], list(zeros(span.size)))
    return _alone(memoryview(late[span.late])[span.start : span.start + span.size])


def _alone(view: Buffer) -> RunBytes:
    return RunBytes([view], [view])


def hash_part(digests: ChunkDigests, pieces: Sequence[Piece], gathered: Sequence[RunBytes]) -> int:
    """Enter the tensors of a part into the digests; returns the CRC32C of all of it. For a worker thread."""
    total = 0
    for piece, found in zip(pieces, gathered, strict=True):
        if isinstance(piece, Run):
            digests.add_whole(piece.tensors, found.tensors)
            total = checksum(found.sent, total)
        elif piece.tensor is not None:
            total = digests.add(piece.tensor, piece.start, found.tensors[0], total)
        elif piece.late is not None:
            total = crc32c(found.tensors[0], total)
        else:
            total = crc32c_of_zeros(piece.size, total)
    return total


def hash_tensors(digests: ChunkDigests, pieces: Sequence[Piece], gathered: Sequence[RunBytes]) -> None:
    """The same where nobody wants the checksum of the part."""
    for piece, found in zip(pieces, gathered, strict=True):
        if isinstance(piece, Run):
            digests.add_whole(piece.tensors, found.tensors)
        elif piece.tensor is not None:
            digests.add(piece.tensor, piece.start, found.tensors[0])


def checksum(views: Iterable[Buffer], value: int = 0) -> int:
    """The CRC32C of bytes that lie in several views."""
    for view in views:
        value = crc32c(view, value)
    return value


def sent(gathered: Iterable[RunBytes]) -> list[Buffer]:
    """The views of a part, in order."""
    return [view for found in gathered for view in found.sent]


def last_tensor(pieces: Sequence[Piece]) -> int | None:
    """The number of the last tensor in a part; None where there is none."""
    for piece in reversed(pieces):
        if isinstance(piece, Run):
            return int(piece.tensors[-1])
        if piece.tensor is not None:
            return piece.tensor
    return None
