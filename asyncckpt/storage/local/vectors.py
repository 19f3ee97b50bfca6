"""Lists of views for the vectored system calls, which take a limited number and may move fewer bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from asyncckpt.model.buffers import Buffer, as_bytes

MAX_VIEWS_PER_CALL = min(1024, os.sysconf("SC_IOV_MAX"))


def batches(views: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """The views that are not empty, as bytes, in groups that one system call takes."""
    for start in range(0, len(views), MAX_VIEWS_PER_CALL):
        group = map(as_bytes, views[start : start + MAX_VIEWS_PER_CALL])
        yield [view for view in group if view.nbytes]


def rest(batch: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the batch after so many bytes of it were moved."""
    for position, view in enumerate(batch):
        if done < view.nbytes:
            return [view[done:], *batch[position + 1 :]]
        done -= view.nbytes
    return []
