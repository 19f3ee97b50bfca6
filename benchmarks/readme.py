"""The README's figures, made from the results of the last run: `python -m benchmarks.readme`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders.base import INTO, LOAD, SAVE
from benchmarks.report import Run, with_results
from benchmarks.rounds import Result

README = Path(__file__).parents[1] / "README.md"
TARGET, STATE = "sink", "1024 MiB"
_WHO = {
    "asyncckpt": "asyncckpt, every byte verified",
    "obstore": "obstore, bare bytes, unverified",
    "s3fs": "s3fs, open and write, defaults, in a thread",
    "torch DCP": "torch.distributed.checkpoint, fsspec writer, in a thread",
}
_HEADER = ("", "save MB/s", "load MB/s", "load into arrays MB/s", "CPU s of a save", "worst loop gap, ms")


def figures(run: Run) -> str:
    """The README's table, and what it was measured with."""
    shown = [result for result in run.results if (result.target, result.state) == (TARGET, STATE)]
    rows = [_HEADER, *(_row(who, shown) for who in _WHO)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(_HEADER))
    measured = f"Medians of up to {run.rounds} rounds, of {run.when}; {run.machine['description']}."
    return "\n".join([*lines, "", measured, ""])


def _row(who: str, results: list[Result]) -> tuple[str, ...]:
    found = {result.operation: result for result in results if result.contender == who}
    speeds = [
        f"{found[name].megabytes_per_second.median:.0f}" if name in found else "–"
        for name in (SAVE, LOAD, INTO)
    ]
    worst = max(result.worst_gap_ms for result in found.values())
    return _WHO[who], *speeds, f"{found[SAVE].cpu_seconds:.2f}", f"{worst:.0f}"


def write_readme(run: Run, path: Path = README) -> None:
    """Replace the figures. Raises ValueError when the page has no place for them."""
    path.write_text(with_results(path.read_text(), figures(run)))


if __name__ == "__main__":
    write_readme(Run.read())
