"""A run's results as tables for the terminal and for the docs, and as JSON, from which they can be made again."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.rounds import Result, Spread

RESULTS = Path(__file__).parent / "results" / "latest.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
_BEGIN, _END = "<!-- results: written by python -m benchmarks -->", "<!-- end of results -->"
_PACKAGES = ("numpy", "torch", "s3fs", "obstore", "safetensors", "crc32c")


def this_machine() -> dict[str, str]:
    """What the numbers were measured with; nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "description": f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}",
        **{package: version(package) for package in _PACKAGES},
    }


@dataclass(frozen=True)
class Run:
    """Everything one run measured."""

    when: str
    seconds: float
    rounds: int
    results: Sequence[Result]
    goals: Sequence[Figure]
    figures: Sequence[Figure]
    formats: Mapping[str, Sequence[Figure]]
    machine: Mapping[str, str] = field(default_factory=this_machine)

    @classmethod
    def read(cls, path: Path = RESULTS) -> Run:
        """The run that was written last."""
        values = json.loads(path.read_text())
        return cls(
            **{name: values[name] for name in ("when", "seconds", "rounds", "machine")},
            results=[_read_result(result) for result in values["results"]],
            goals=[_read_figure(figure) for figure in values["goals"]],
            figures=[_read_figure(figure) for figure in values["figures"]],
            formats={title: [_read_figure(f) for f in found] for title, found in values["formats"].items()},
        )

    def write(self, path: Path = RESULTS) -> None:
        """Write the JSON."""
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self._values(), indent=1, ensure_ascii=False) + "\n")

    def _values(self) -> dict[str, Any]:
        return {
            "when": self.when,
            "seconds": round(self.seconds),
            "rounds": self.rounds,
            "machine": dict(self.machine),
            "results": [_rounded(asdict(result)) for result in self.results],
            "goals": [_figure(figure) for figure in self.goals],
            "figures": [_figure(figure) for figure in self.figures],
            "formats": {
                title: [_figure(figure) for figure in found] for title, found in self.formats.items()
            },
        }

    def text(self) -> str:
        """Tables for the terminal."""
        blocks = [render(header, rows) for _, header, rows in self._tables()]
        return "\n\n".join(blocks)

    def markdown(self) -> str:
        """The same tables for the docs."""
        lines = [f"Of {self.when}, {self.rounds} timed rounds, {self.machine['description']}.", ""]
        for title, header, rows in self._tables():
            lines += [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
            lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
        return "\n".join(lines)

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables = [("Beside the others", _RESULT_HEADER, [_result_row(result) for result in self.results])]
        tables.append(("What was asked for", _FIGURE_HEADER, [_figure_row(figure) for figure in self.goals]))
        if self.figures:
            rows = [_figure_row(figure) for figure in self.figures]
            tables.append(("Counts and times", _FIGURE_HEADER, rows))
        tables += [(title, *_matrix(found)) for title, found in self.formats.items()]
        return [table for table in tables if table[2]]


def write_document(run: Run, path: Path = DOCUMENT) -> None:
    """Replace the results in the docs page. Raises ValueError when it has no place for them."""
    path.write_text(with_results(path.read_text(), run.markdown()))


def with_results(page: str, results: str) -> str:
    """The page with other results between its marks. Raises ValueError when it has none."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the page lacks the lines between which the results go")
    return f"{before}{_BEGIN}\n\n{results}\n{_END}{after}"


_RESULT_HEADER = [
    "target",
    "state",
    "who",
    "what",
    "MB/s (min–max)",
    "CPU s",
    "gap p99 / worst / own ms",
    "extra MiB",
    "requests",
]
_FIGURE_HEADER = ["what", "value", "asked", ""]


def _result_row(result: Result) -> list[str]:
    speed = result.megabytes_per_second
    return [
        result.target,
        result.state,
        result.contender,
        result.operation,
        f"{speed.median:.0f} ({speed.low:.0f}–{speed.high:.0f})",
        f"{result.cpu_seconds:.2f}",
        _gaps(result),
        "" if result.extra_mib is None else f"{result.extra_mib:.0f}",
        "" if result.requests is None else str(result.requests),
    ]


def _gaps(result: Result) -> str:
    gaps = (result.p99_gap_ms, result.worst_gap_ms, result.worst_own_gap_ms)
    return " / ".join("–" if gap is None else f"{gap:.0f}" for gap in gaps)


def _figure_row(figure: Figure) -> list[str]:
    verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
    return [figure.what, f"{_number(figure.value)} {figure.unit}".strip(), figure.asked, verdict]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _matrix(figures: Sequence[Figure]) -> tuple[list[str], list[list[str]]]:
    """One row for each format: figures are named `format: what`. What missed its limit is marked."""
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for figure in figures:
        name, _, what = figure.what.partition(": ")
        column = f"{what}, {figure.unit}" if figure.unit else what
        columns[column] = None
        cells.setdefault(name, {})[column] = _number(figure.value) + (
            " MISSED" if figure.met is False else ""
        )
    rows = [[name, *(found.get(column, "") for column in columns)] for name, found in cells.items()]
    return ["format", *columns], rows


def render(header: list[str], rows: list[list[str]]) -> str:
    """Columns of equal width."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [header, *rows]
    ]
    return "\n".join(line.rstrip() for line in [lines[0], "-" * len(lines[0]), *lines[1:]])


def _figure(figure: Figure) -> dict[str, Any]:
    return _rounded({**asdict(figure), "met": figure.met})


def _read_figure(values: dict[str, Any]) -> Figure:
    return Figure(**{name: value for name, value in values.items() if name != "met"})


def _read_result(values: dict[str, Any]) -> Result:
    return Result(**{**values, "megabytes_per_second": Spread(**values["megabytes_per_second"])})


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4)
        if isinstance(value, float)
        else _rounded(value)
        if isinstance(value, dict)
        else value
        for name, value in values.items()
    }
