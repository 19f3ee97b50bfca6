"""`verify`: every byte of a checkpoint, in one pass over each file, with every problem reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from asyncckpt._aio import WorkerThreads, run_in_thread
from asyncckpt.arguments import AtLeastOne, checked
from asyncckpt.cancellation import CancellationToken
from asyncckpt.errors import FormatError, IncompleteCheckpointError, LayoutError, UnknownFormatError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import Index, StoredTensor
from asyncckpt.model.ranges import ByteRange
from asyncckpt.model.state.tree import check_tree
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint
from asyncckpt.operations.checks import Check, FileScan, checks_of, is_simple
from asyncckpt.operations.location import Location, StorageOptions
from asyncckpt.operations.reading.files import OpenFile
from asyncckpt.operations.runtime import DEFAULT_MEMORY_BYTES, reporting_retries_to
from asyncckpt.progress import Phase, ProgressCallback, ProgressReporter

Level = Literal["header", "full"]
_WINDOW_BYTES = 8 * 1024 * 1024
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
                await _verify_files(checkpoint, findings)
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


async def _verify_files(checkpoint: Checkpoint, findings: _Findings) -> None:
    index = checkpoint.index
    # Those are read a second time: the pass over the file can't tell where their chunks are.
    decoded = [s for s in index.tensors if s.absent is None and not is_simple(s) and _is_checked(s, index)]
    checkpoint.report.phase(
        Phase.VERIFY, bytes_total=checkpoint.size + sum(stored.metadata.size for stored in decoded)
    )
    async with WorkerThreads(2, name="verify") as threads:
        for number, file in enumerate(checkpoint.files):
            checks = await threads.run(checks_of, index, number, file.size)
            await _verify_file(file, FileScan(checks), threads, findings, checkpoint.report)
    for stored in index.tensors:
        if stored.absent is not None:
            findings.unchecked.append(f"tensor {stored.name!r} has no bytes: {stored.absent}")
        elif not _is_checked(stored, index):
            findings.unchecked.append(f"tensor {stored.name!r} has no checksum")
    for stored in decoded:
        await _verify_tensor(checkpoint, stored.name, findings)


def _is_checked(stored: StoredTensor, index: Index) -> bool:
    return stored.checksums is not None or bool(index.digests)


async def _verify_tensor(checkpoint: Checkpoint, name: str, findings: _Findings) -> None:
    """A tensor that has to be joined or decoded first."""
    try:
        array = await checkpoint.read_stored(name)
    except FormatError as error:
        findings.add(str(error), name)
    else:
        findings.bytes_checked += array.nbytes


async def _verify_file(
    file: OpenFile, run: FileScan, threads: WorkerThreads, findings: _Findings, report: ProgressReporter
) -> None:
    """One pass over a file, in windows whose buffers are used again and again."""
    buffers = [memoryview(bytearray(_WINDOW_BYTES)) for _ in range(0 if file.mapped else _WINDOWS_AT_ONCE)]
    for start in range(0, file.size, _WINDOW_BYTES * _WINDOWS_AT_ONCE):
        stop = min(file.size, start + _WINDOW_BYTES * _WINDOWS_AT_ONCE)
        ranges = [ByteRange(at, min(stop, at + _WINDOW_BYTES)) for at in range(start, stop, _WINDOW_BYTES)]
        if file.mapped is not None:
            views = [file.mapped[r.start : r.end] for r in ranges]
        else:
            views = [buffer[: r.size] for buffer, r in zip(buffers, ranges, strict=False)]
            with reporting_retries_to(report):
                await file.reader.read_ranges(ranges, views)
        for wanted, view in zip(ranges, views, strict=True):
            _note(await threads.run(run.feed, view, wanted.start), findings)
            report.advance(wanted.size)
        findings.bytes_checked += stop - start
    _note(list(run.rest()), findings)


def _note(done: list[Check], findings: _Findings) -> None:
    for check in done:
        message = check.problem()
        if message is not None:
            findings.add(message, check.tensor)
