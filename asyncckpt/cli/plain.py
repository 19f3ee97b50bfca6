"""The command line without rich: columns of text, and a progress bar that is one line, drawn over itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from asyncckpt.progress import Phase, ProgressEvent

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BAR_CELLS = 28
_LEAST_SECONDS = 1e-3


def human_size(count: float) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def printable(text: str) -> str:
    """The text with all that is not printable escaped: a name in a file must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their content, the last one ragged."""
    table = [tuple(titles), *map(tuple, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(titles))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@dataclass(frozen=True)
class Status:
    """What a bar says of an event: how far it is, and at what speed."""

    phase: str
    share: float
    amount: str


class Bar:
    """Phase, bar, bytes and speed of an operation; a callback for `progress`, and a context that ends the line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._phase: Phase | None = None
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __call__(self, event: ProgressEvent) -> None:
        if event.phase != self._phase and not event.bytes_done:
            self._started = time.monotonic()
        self._phase = event.phase
        if event.phase not in (Phase.DONE, Phase.FAILED):
            self.draw(self._status(event))

    def _status(self, event: ProgressEvent) -> Status:
        total = event.bytes_total or 0
        elapsed = max(time.monotonic() - self._started, _LEAST_SECONDS)
        words = [f"{human_size(event.bytes_done)} of {human_size(total)}" if total else ""]
        words.append(f"{human_size(event.bytes_done / elapsed)}/s" if event.bytes_done else "")
        words.append(f"{event.retries} retries" if event.retries else "")
        share = min(1.0, event.bytes_done / total) if total else 0.0
        return Status(event.phase.value, share, "  ".join(word for word in words if word))

    def draw(self, status: Status) -> None:
        """Show it in place of the last one."""
        filled = round(status.share * _BAR_CELLS)
        bar = "█" * filled + "░" * (_BAR_CELLS - filled)
        self._stream.write(f"\r\x1b[2K{status.phase:>7} {bar} {status.share:4.0%}  {status.amount}")
        self._stream.flush()
        self._drawn = True

    def end(self) -> None:
        """Leave the last status where it is, and go to the next line."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
