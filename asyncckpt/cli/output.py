"""What a command prints: JSON, tables, lines, sizes and a progress bar.

On a terminal rich draws them (the extra `cli`); without rich they are plain text, and a pipe or a file always gets
plain text, without escape codes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

import numpy as np

from asyncckpt.cli import plain
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.beyond_json import nearest_number
from asyncckpt.progress import ProgressCallback


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
    """Columns as wide as their content. Names come from files, so what is not printable is escaped."""
    shown = [tuple(plain.printable(cell) for cell in row) for row in rows]
    if _drawn_by_rich(sys.stdout):
        from asyncckpt.cli import pretty

        pretty.print_table(titles, shown)
    else:
        plain.print_table(titles, shown)


def print_line(text: str, style: str = "") -> None:
    """One line, in a style of rich's where rich draws. What is not printable is escaped."""
    line = plain.printable(text)
    if style and _drawn_by_rich(sys.stdout):
        from asyncckpt.cli import pretty

        pretty.print_line(line, style)
    else:
        print(line)


@contextmanager
def progress_bar(*, wanted: bool = True) -> Iterator[ProgressCallback | None]:
    """A callback that draws a bar on standard error; None where nobody would see it."""
    if not wanted or not _is_terminal(sys.stderr):
        yield None
        return
    with _bar() as bar:
        yield bar


def _bar() -> plain.Bar:
    if not _drawn_by_rich(sys.stderr):
        return plain.Bar(sys.stderr)
    from asyncckpt.cli import pretty

    return pretty.RichBar(sys.stderr)


def _drawn_by_rich(stream: TextIO) -> bool:
    return _is_terminal(stream) and _has_rich()


def _is_terminal(stream: TextIO) -> bool:
    """Whether a line can be drawn over: a dumb terminal, as in Emacs, takes text only."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _has_rich() -> bool:
    if "rich" in sys.modules:
        return sys.modules["rich"] is not None
    return find_spec("rich") is not None
