"""What all files of one checkpoint share while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncckpt._aio import ByteBudget, WorkerThreads
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.model.metadata import TensorMetadata
from asyncckpt.operations.location import ObjectLocation
from asyncckpt.operations.runtime import Operation
from asyncckpt.operations.writing.source import TensorSource
from asyncckpt.progress import ProgressReporter


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a checkpoint goes, in which format, and whether it may replace what is there."""

    location: ObjectLocation
    format: ICheckpointFormat
    overwrite: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class FileWriting:
    """Where the bytes come from, and the means of the operation. `tensors` are the content's, by number."""

    source: TensorSource
    tensors: Sequence[TensorMetadata]
    operation: Operation

    @property
    def threads(self) -> WorkerThreads:
        return self.operation.threads

    @property
    def budget(self) -> ByteBudget:
        return self.operation.budget

    @property
    def report(self) -> ProgressReporter:
        return self.operation.report

    def count_request(self) -> None:
        self.operation.meter.request()
