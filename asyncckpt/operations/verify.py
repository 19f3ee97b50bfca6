"""`verify`: every byte of a checkpoint, in one pass over each file, with every problem reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncckpt._aio import WorkerThreads, run_in_thread
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken
from asyncckpt.errors import FormatError, IncompleteCheckpointError, LayoutError, UnknownFormatError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.ranges import ByteRange
from asyncckpt.model.state.tree import check_tree
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint
from asyncckpt.operations.checks import FileScan, Finding, checks_of, needs_decoding, passes_in_order
from asyncckpt.operations.location import Location, StorageOptions
from asyncckpt.operations.reading.open_file import OpenFile, open_all
from asyncckpt.operations.runtime import DEFAULT_MEMORY_BYTES, reporting_retries_to
from asyncckpt.progress import Phase, ProgressCallback, ProgressReporter

Level = Literal["header", "full"]
_WINDOW_BYTES = 8 * 1024 * 1024
_LEAST_WINDOW_BYTES = 64 * 1024
_WINDOWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong; `tensor` is whose bytes they are, where that is known."""

    message: str
    tensor: str | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`ok` is whether nothing is wrong; `unchecked` says what the file has no checksums for."""

    format: str
    version: str
    tensors: int
    bytes_checked: int
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


@checked
async def verify(
    location: Location,
    *,
    level: Level = "full",
    format: str | ICheckpointFormat | None = None,
    memory_bytes: AtLeastOne = DEFAULT_MEMORY_BYTES,
    cancellation: CancellationToken | None = None,
    progress: ProgressCallback | None = None,
    storage_options: StorageOptions | None = None,
) -> VerifyReport:
    """Check a checkpoint and report all that is wrong with it. `level="header"` reads no tensor.

    Damage is in the report, not raised. Raises InvalidArgumentError, CheckpointNotFoundError, UnknownFormatError for
    what is not a checkpoint, StorageError subclasses, OperationCancelledError.
    """
    findings = _Findings()
    try:
        async with open_checkpoint(
            location,
            format=format,
            memory_bytes=memory_bytes,
            cancellation=cancellation,
            progress=progress,
            storage_options=storage_options,
        ) as checkpoint:
            await _verify_tree(checkpoint, findings)
            if level == "full":
                await _verify_files(checkpoint, findings, memory_bytes)
            return findings.report(checkpoint)
    except UnknownFormatError:
        raise
    except (FormatError, IncompleteCheckpointError) as error:
        # The file could not even be opened: that is the one problem there is to report.
        return VerifyReport("", "", 0, 0, (Problem(str(error)),))


@dataclass(slots=True)
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    bytes_checked: int = 0
    unchecked: list[str] = field(default_factory=list)

    def add(self, message: str, tensor: str | None = None) -> None:
        self.problems.append(Problem(message, tensor))

    def report(self, checkpoint: Checkpoint) -> VerifyReport:
        return VerifyReport(
            format=checkpoint.format,
            version=checkpoint.version,
            tensors=len(checkpoint.tensors),
            bytes_checked=self.bytes_checked,
            problems=tuple(self.problems),
            warnings=checkpoint.warnings,
            unchecked=tuple(self.unchecked),
        )


async def _verify_tree(checkpoint: Checkpoint, findings: _Findings) -> None:
    """Checksums say that the tree is as it was written, not that a state can be made of it."""
    try:
        await run_in_thread(check_tree, checkpoint.tree)
    except LayoutError as error:
        findings.add(str(error))


async def _verify_files(checkpoint: Checkpoint, findings: _Findings, memory_bytes: int) -> None:
    index = checkpoint.index
    await open_all(checkpoint.files)
    # Those are read a second time: a pass over one file does not have their bytes in order.
    apart = [s for s in index.tensors if s.absent is None and needs_decoding(s) and not passes_in_order(s)]
    checkpoint.report.phase(
        Phase.VERIFY, bytes_total=checkpoint.size + sum(stored.metadata.size for stored in apart)
    )
    async with WorkerThreads(2, name="verify") as threads:
        for number, file in enumerate(checkpoint.files):
            checks = await threads.run(checks_of, index, number, file.size)
            await _Pass(file, FileScan(checks), threads, findings, checkpoint.report).run(memory_bytes)
    for stored in index.tensors:
        if stored.absent is not None:
            findings.unchecked.append(f"tensor {stored.name!r} has no bytes: {stored.absent}")
        elif stored.checksums is None and not index.digests:
            findings.unchecked.append(f"tensor {stored.name!r} has no checksum")
    for stored in apart:
        await _verify_tensor(checkpoint, stored, findings)


async def _verify_tensor(checkpoint: Checkpoint, stored: StoredTensor, findings: _Findings) -> None:
    """A tensor whose parts lie in several files, or not in its order."""
    try:
        await checkpoint.check_stored(stored.name)
    except FormatError as error:
        findings.add(str(error), stored.name)
    else:
        findings.bytes_checked += stored.metadata.size


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass over a file, in windows whose buffers are used again and again."""

    file: OpenFile
    scan: FileScan
    threads: WorkerThreads
    findings: _Findings
    report: ProgressReporter

    async def run(self, memory_bytes: int) -> None:
        file = self.file
        window = max(_LEAST_WINDOW_BYTES, min(_WINDOW_BYTES, memory_bytes // _WINDOWS_AT_ONCE))
        buffers = [memoryview(bytearray(window)) for _ in range(0 if file.mapped else _WINDOWS_AT_ONCE)]
        for start in range(0, file.size, window * _WINDOWS_AT_ONCE):
            stop = min(file.size, start + window * _WINDOWS_AT_ONCE)
            ranges = [ByteRange(at, min(stop, at + window)) for at in range(start, stop, window)]
            for wanted, view in zip(ranges, await self._views(ranges, buffers), strict=True):
                self._note(await self.threads.run(self.scan.feed, view, wanted.start))
                self.report.advance(wanted.size)
            self.findings.bytes_checked += stop - start
        self._note(await self.threads.run(self.scan.rest))

    async def _views(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> list[memoryview]:
        if self.file.mapped is not None:
            return [self.file.mapped[wanted.start : wanted.end] for wanted in ranges]
        views = [buffer[: wanted.size] for buffer, wanted in zip(buffers, ranges, strict=False)]
        with reporting_retries_to(self.report):
            await self.file.reader.read_ranges(ranges, views)
        return views

    def _note(self, problems: list[Finding]) -> None:
        for message, tensor in problems:
            self.findings.add(message, tensor)
