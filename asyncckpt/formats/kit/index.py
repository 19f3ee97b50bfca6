"""What parsing a file yields: the index, which says where every tensor's bytes are and how they are verified.

A parser does no I/O. It is a generator that asks for byte ranges by yielding `Need` and is sent the bytes, so that
the same code serves memory, a mapped file and an object store, and runs in a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from asyncckpt.errors import TruncatedError
from asyncckpt.model.checksums import Buffer, Checksums
from asyncckpt.model.metadata import CheckpointMetadata, Json, TensorMetadata

Algorithm = Literal["crc32", "crc32c", "sha256", "blake3"]
Seal = Literal["encrypted", "signed"]
"""How a file is protected from others than its owner."""


MAX_AHEAD = 256
"""A set may name very many files, and the first of them may be missing."""


class Need(NamedTuple):
    """A parser's wish: bytes [start, start + size) of `file` ("" is the file that is being parsed).

    A negative `start` counts from the file's end. The answer is shorter only where the file ends. A `file` that
    is missing raises IncompleteCheckpointError into the parser. `ahead` are files that it is going to ask for next:
    they may be opened along with this one.
    """

    start: int
    size: int
    file: str = ""
    ahead: tuple[str, ...] = ()


class FileInfo(NamedTuple):
    """What is known of a file before parsing: its name (without folders) and its size."""

    name: str
    size: int


class DeclaredFile(NamedTuple):
    """What an index says of a file that nobody has opened: its size, and its version where it must be that one."""

    size: int
    version: str | None = None


class Extent(NamedTuple):
    """A run of stored bytes; `file` counts in `Index.files`."""

    offset: int
    size: int
    file: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.size

    def cut(self, size: int) -> Iterator[Extent]:
        """The same bytes in runs of that size, the last one shorter."""
        for offset in range(self.offset, self.end, size):
            yield Extent(offset, min(size, self.end - offset), self.file)


class Vouch(Protocol):
    """Says whether all the frames of a tensor, together, are those that were meant."""

    @property
    def passed(self) -> bool:
        """Whether all of them were seen once: from then on `decode` knows each by itself."""

    def begin(self) -> Vouching:
        """One pass over the raw bytes of all frames, in order."""


class Vouching(Protocol):
    """One such pass."""

    def update(self, raw: Buffer) -> None:
        """The raw bytes of the next frame."""

    def finish(self) -> None:
        """All frames were given. Raises ChecksumMismatchError."""


@dataclass(frozen=True, slots=True)
class Frames:
    """A tensor stored in frames, each made from `raw_bytes` bytes (the last from fewer); it begins `skip` bytes into
    the first.

    `decode(number, stored)` gives the raw bytes of one frame, in any thread; raises FormatError subclasses. With a
    `vouch`, frames that nobody has vouched for yet may be handed out only after it has seen all of them.
    """

    raw_bytes: int
    extents: tuple[Extent, ...]
    decode: Callable[[int, Buffer], Buffer]
    skip: int = 0
    vouch: Vouch | None = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Its bytes are the `extents` joined, or what `frames` decode to. `checksums` are the CRC32C of its chunks of
    `chunk_bytes`, None in foreign files. `order` is F where the bytes are in Fortran order. `absent` says why there
    are not bytes.
    """

    metadata: TensorMetadata
    extents: tuple[Extent, ...] = ()
    checksums: Checksums | None = None
    frames: Frames | None = None
    order: Literal["C", "F"] = "C"
    absent: str | None = None
    chunk_bytes: int = 0

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def runs(self) -> tuple[Extent, ...]:
        """The runs of stored bytes that it is made of, framed or not."""
        return self.extents if self.frames is None else self.frames.extents


@dataclass(frozen=True, slots=True)
class RegionDigest:
    """A digest that the format itself keeps over a run of stored bytes; `verify` checks it.

    `zeroed` are spans, relative to the file, that count as zeros.
    """

    what: str
    algorithm: Algorithm
    extent: Extent
    expected: bytes
    zeroed: tuple[Extent, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    """A parsed file, or a set of files: `files[0]` is "" (the one that was opened), the others lie beside or below it.

    `files` are keys relative to the folder of the first. Those that are `declared` are opened when their bytes are
    wanted, the others at once.

    `header_extents` are the runs of bytes outside the tensors that mean something (headers, tables); in a file of ours
    everything else is zeros, which `verify` checks; None where that is not known. `details` is what `inspect`
    shows: JSON, format by format. `seals` are what a copy without them would lose.
    """

    format: str
    version: str
    metadata: CheckpointMetadata
    tensors: Sequence[StoredTensor]
    tree: Json = None
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ("",)
    digests: tuple[RegionDigest, ...] = ()
    header_extents: tuple[Extent, ...] | None = None
    details: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))
    seals: frozenset[Seal] = frozenset()
    declared: Mapping[str, DeclaredFile] = field(default_factory=lambda: MappingProxyType({}))


ParseSteps = Generator[Need, memoryview, Index]


def open_ahead(files: Iterable[str]) -> Generator[Need, memoryview, None]:
    """Tell the driver which files are asked for next, so that they are opened side by side; none need exist."""
    yield Need(0, 0, ahead=tuple(islice(files, MAX_AHEAD)))


def need_exactly(
    start: int, size: int, what: str, *, file: str = ""
) -> Generator[Need, memoryview, memoryview]:
    """Ask for a range that must be there whole. Raises TruncatedError."""
    data = yield Need(start, size, file)
    if len(data) != size:
        raise TruncatedError(
            f"{what} needs bytes [{start}, {start + size}), the file has {start + len(data)}"
        )
    return data
