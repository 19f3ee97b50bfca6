"""Checks that run along while a file's bytes pass by in order: checksums of chunks, zeros, the format's digests."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from asyncckpt.errors import MissingExtraError
from asyncckpt.formats.kit.index import Extent, Index, RegionDigest, StoredTensor
from asyncckpt.model.checksums import crc32, crc32c
from asyncckpt.operations.passing import PassingTensor

Finding = tuple[str, str | None]
"""What is wrong, and the tensor whose bytes they are, where that is known."""
_ZEROS = memoryview(bytes(64 * 1024))


class Check(ABC):
    """Watches bytes [start, end) of a file; gets them in order, in pieces."""

    def __init__(self, start: int, end: int, tensor: str | None = None) -> None:
        self.start = start
        self.end = end
        self.tensor = tensor

    @abstractmethod
    def update(self, view: memoryview, position: int) -> None:
        """The next piece, which begins at `position` of the file."""

    @abstractmethod
    def problem(self) -> str | None:
        """What is wrong, once all pieces have come; None when nothing is."""

    def findings(self) -> list[Finding]:
        """All that is wrong, once all pieces have come. May take its time."""
        message = self.problem()
        return [] if message is None else [(message, self.tensor)]


class ChunkCheck(Check):
    """One checksum chunk of a tensor."""

    def __init__(self, stored: StoredTensor, chunk: int, start: int, end: int) -> None:
        super().__init__(start, end, stored.name)
        assert stored.checksums is not None
        self._expected = int(stored.checksums[chunk])
        self._value = 0

    def update(self, view: memoryview, position: int) -> None:
        self._value = crc32c(view, self._value)

    def problem(self) -> str | None:
        if self._value == self._expected:
            return None
        return (
            f"tensor {self.tensor!r} is damaged: bytes [{self.start}, {self.end}) of the file have the CRC32C "
            f"{self._value:08x}, the file says {self._expected:08x}"
        )


class RunCheck(Check):
    """A run of stored bytes of tensors that pass by. A frame, which several may share, is collected once."""

    def __init__(self, extent: Extent) -> None:
        super().__init__(extent.offset, extent.end)
        self._frame = bytearray()
        self._tensors: list[tuple[PassingTensor, int]] = []
        self._found: list[Finding] = []

    def add(self, tensor: PassingTensor, number: int) -> None:
        self._tensors.append((tensor, number))

    def update(self, view: memoryview, position: int) -> None:
        plain = [tensor for tensor, _ in self._tensors if tensor.stored.frames is None]
        if len(plain) < len(self._tensors):
            self._frame += view
        for tensor in plain:
            self._note(tensor, tensor.take(view))

    def findings(self) -> list[Finding]:
        for tensor, number in self._tensors:
            if tensor.stored.frames is not None:
                self._note(tensor, tensor.take_frame(number, self._frame))
            if number + 1 == len(tensor.stored.runs):
                self._note(tensor, tensor.finish())
        self._frame = bytearray()
        return self._found

    def _note(self, tensor: PassingTensor, problem: str | None) -> None:
        if problem is not None:
            self._found.append((problem, tensor.stored.name))

    def problem(self) -> str | None:
        return None


class ZeroCheck(Check):
    """Padding, which must be zeros."""

    _found: int | None = None

    def update(self, view: memoryview, position: int) -> None:
        for offset in range(0, len(view), len(_ZEROS)):
            piece = view[offset : offset + len(_ZEROS)]
            if self._found is None and piece != _ZEROS[: len(piece)]:
                self._found = position + offset + next(i for i, byte in enumerate(piece) if byte)

    def problem(self) -> str | None:
        return None if self._found is None else f"byte {self._found} is padding and should be zero"


class DigestCheck(Check):
    """A digest that the format itself keeps."""

    def __init__(self, digest: RegionDigest) -> None:
        super().__init__(digest.extent.offset, digest.extent.end)
        self._digest = digest
        self._hash = _new_hash(digest.algorithm)

    def update(self, view: memoryview, position: int) -> None:
        for zeroed in self._digest.zeroed:
            start, end = max(zeroed.offset - position, 0), min(zeroed.end - position, len(view))
            if start < end:
                changed = bytearray(view)
                changed[start:end] = bytes(end - start)
                view = memoryview(changed)
        self._hash.update(view)

    def problem(self) -> str | None:
        value: bytes = self._hash.digest()[: len(self._digest.expected)]
        if value == self._digest.expected:
            return None
        return (
            f"{self._digest.what} is damaged: its {self._digest.algorithm} is {value.hex()}, "
            f"the file says {self._digest.expected.hex()}"
        )


class _Sum:
    """zlib's and our CRC with the interface of a hash; the digest is big-endian."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._value = 0

    def update(self, view: memoryview) -> None:
        self._value = self._function(view, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _new_hash(algorithm: str) -> Any:
    if algorithm == "crc32":
        return _Sum(crc32)
    if algorithm == "crc32c":
        return _Sum(crc32c)
    if algorithm == "sha256":
        return hashlib.sha256()
    try:
        return import_module("blake3").blake3()
    except ImportError as error:
        raise MissingExtraError(
            "verifying this file needs blake3: pip install 'asyncckpt[bundle]'"
        ) from error


def checks_of(index: Index, file: int, size: int) -> list[Check]:
    """All checks of one file of a checkpoint, by their start. Tensors that do not pass in order are left out."""
    checks: list[Check] = []
    runs: dict[Extent, RunCheck] = {}
    for stored in index.tensors:
        if stored.absent is not None or not stored.runs or stored.runs[0].file != file:
            continue
        if is_simple(stored):
            checks += _chunk_checks(stored)
        elif needs_decoding(stored) and passes_in_order(stored):
            passing = PassingTensor(stored)
            for number, extent in enumerate(stored.runs):
                runs.setdefault(extent, RunCheck(extent)).add(passing, number)
    checks += runs.values()
    checks += [DigestCheck(digest) for digest in index.digests if digest.extent.file == file]
    if index.header_extents is not None:
        checks += (ZeroCheck(start, end) for start, end in _padding(index, file, size))
    return sorted(checks, key=lambda check: check.start)


def is_simple(stored: StoredTensor) -> bool:
    """Whether its chunks lie in a file one after another, as they are."""
    return stored.checksums is not None and stored.frames is None and len(stored.extents) == 1


def needs_decoding(stored: StoredTensor) -> bool:
    """Whether its checks need its bytes as they were before they were stored."""
    return not is_simple(stored) and (stored.frames is not None or stored.checksums is not None)


def passes_in_order(stored: StoredTensor) -> bool:
    """Whether all that is stored of it lies in one file, in its order."""
    runs = stored.runs
    return all(a.file == b.file and a.end <= b.offset for a, b in pairwise(runs))


def _chunk_checks(stored: StoredTensor) -> Iterator[Check]:
    extent = stored.extents[0]
    for chunk, start in enumerate(range(0, extent.size, stored.chunk_bytes)):
        end = min(extent.size, start + stored.chunk_bytes)
        yield ChunkCheck(stored, chunk, extent.offset + start, extent.offset + end)


def _padding(index: Index, file: int, size: int) -> Iterator[tuple[int, int]]:
    extents = [e for e in index.header_extents or () if e.file == file]
    for stored in index.tensors:
        extents += [run for run in stored.runs if run.file == file]
    position = 0
    for start, end in sorted((e.offset, e.end) for e in extents):
        if start > position:
            yield position, start
        position = max(position, end)
    if position < size:
        yield position, size


class FileScan:
    """Feeds the checks of a file with its bytes, front to back."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._waiting = iter(checks)
        self._next = next(self._waiting, None)
        self._active: list[Check] = []

    def feed(self, view: memoryview, position: int) -> list[Finding]:
        """The next bytes of the file; returns what is wrong, each with whose bytes it is."""
        end = position + len(view)
        while self._next is not None and self._next.start < end:
            self._active.append(self._next)
            self._next = next(self._waiting, None)
        for check in self._active:
            start, stop = max(check.start, position), min(check.end, end)
            if start < stop:
                check.update(view[start - position : stop - position], start)
        done = [check for check in self._active if check.end <= end]
        self._active = [check for check in self._active if check.end > end]
        return _problems(done)

    def rest(self) -> list[Finding]:
        """The same for checks of nothing, at the very end."""
        return _problems([check for check in (self._next, *self._waiting) if check is not None])


def _problems(done: Iterable[Check]) -> list[Finding]:
    return [finding for check in done for finding in check.findings()]
