"""What a command prints: JSON, tables, sizes, and a progress bar on a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import numpy as np

from asyncckpt.model.metadata import Json
from asyncckpt.model.state.beyond_json import nearest_number
from asyncckpt.progress import Phase, ProgressCallback, ProgressEvent

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BAR_CELLS = 28


def print_json(value: Json) -> None:
    """Strict JSON, which any reader takes: NaN is "NaN", and what JSON has no word for its text."""
    print(json.dumps(_strict(value), indent=2, default=str, allow_nan=False))


def _strict(value: Json) -> Json:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return nearest_number(value) if isinstance(value, float | np.generic) else value


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as their content, the last one ragged."""
    table = [tuple(titles), *map(tuple, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(titles))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def human_size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


@contextmanager
def progress_bar(*, wanted: bool = True, stream: TextIO | None = None) -> Iterator[ProgressCallback | None]:
    """A callback that draws a bar on standard error; None where nobody would see it."""
    target = stream or sys.stderr
    if not wanted or not target.isatty():
        yield None
        return
    bar = Bar(target)
    try:
        yield bar
    finally:
        bar.end()


class Bar:
    """One line that is drawn over itself: phase, bar, bytes, speed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._phase: Phase | None = None
        self._drawn = False

    def __call__(self, event: ProgressEvent) -> None:
        if event.phase != self._phase and not event.bytes_done:
            self._started = time.monotonic()
        self._phase = event.phase
        if event.phase in (Phase.DONE, Phase.FAILED):
            return
        self._draw(event)

    def _draw(self, event: ProgressEvent) -> None:
        total = event.bytes_total or 0
        share = min(1.0, event.bytes_done / total) if total else 0.0
        filled = round(share * _BAR_CELLS)
        bar = "█" * filled + "░" * (_BAR_CELLS - filled)
        elapsed = max(time.monotonic() - self._started, 1e-3)
        speed = f"{human_size(event.bytes_done / elapsed)}/s" if event.bytes_done else ""
        retries = f"  {event.retries} retries" if event.retries else ""
        amount = f"{human_size(event.bytes_done)} of {human_size(total)}" if total else ""
        line = f"{event.phase.value:>7} {bar} {share:4.0%}  {amount}  {speed}{retries}"
        self._stream.write(f"\r\x1b[2K{line}")
        self._stream.flush()
        self._drawn = True

    def end(self) -> None:
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
