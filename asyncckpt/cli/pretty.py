"""The command line drawn by rich. Imported only where rich is installed and a terminal is there.

Colours follow rich's rules: none with NO_COLOR set. Nothing is read as rich's markup, for names hold brackets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from asyncckpt.cli.plain import Bar, Status

_BAR_CELLS = 28
_FRAME_SECONDS = 0.05


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that folds long cells at the terminal's edge: no character of a name is left out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        table.add_column(Text(title), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_line(line: str, style: str) -> None:
    """One line in a style; the terminal wraps it."""
    Console().print(Text(line, style), soft_wrap=True)


class RichBar(Bar):
    """rich's progress bar, drawn by whoever reports progress: it needs no thread of its own."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        columns = (
            TextColumn("{task.description:>7}", markup=False),
            BarColumn(_BAR_CELLS),
            TaskProgressColumn(),
        )
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[amount]}", markup=False),
            console=Console(file=stream),
            auto_refresh=False,
        )
        self._task: TaskID | None = None
        self._shown: Status | None = None
        self._drawn_at = 0.0

    def draw(self, status: Status) -> None:
        """Show it, at most twenty times a second; a new phase at once."""
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(status.phase, total=1.0, amount=status.amount)
        now = time.monotonic()
        new_phase = self._shown is None or status.phase != self._shown.phase
        self._shown = status
        if new_phase or now - self._drawn_at >= _FRAME_SECONDS:
            self._drawn_at = now
            self._refresh(status)

    def _refresh(self, status: Status) -> None:
        assert self._task is not None
        self._progress.update(
            self._task,
            completed=status.share,
            description=status.phase,
            amount=status.amount,
            refresh=True,
        )

    def end(self) -> None:
        """Show the last status, and give the cursor back."""
        if self._task is not None and self._shown is not None:
            self._refresh(self._shown)
            self._progress.stop()
