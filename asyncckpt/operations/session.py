"""What all files of one save or conversion share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asyncckpt._aio import ByteBudget, WorkerThreads
from asyncckpt.operations.source import TensorSource
from asyncckpt.progress import ProgressReporter
from asyncckpt.storage.base import ObjectInfo

DEFAULT_MEMORY_BYTES = 128 * 1024 * 1024
"""How many bytes may be held in flight."""
WORKERS = 4
"""Threads that hash and plan."""


@dataclass(frozen=True, slots=True)
class WriteSession:
    """`names` are the tensors', by number.

    `committing` is called right before the commit of the last file, `committed` once it is visible, also when
    the caller was cancelled meanwhile.
    """

    source: TensorSource
    names: Sequence[str]
    threads: WorkerThreads
    budget: ByteBudget
    report: ProgressReporter
    committing: Callable[[], None]
    committed: Callable[[ObjectInfo], None]
