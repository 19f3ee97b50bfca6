"""`python -m benchmarks.revisions OTHER`: this tree beside another one of asyncckpt, alternating, in one run.

OTHER is a checkout of the other revision. Each round is a process of its own; what is compared are medians. More than
1.00 means that this tree is faster, or takes less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.targets import LOCAL, TARGETS, open_target

HERE = Path(__file__).resolve().parents[1]
STATES = {"large": (64, 16 << 20), "small": (20_000, 1 << 10), "many": (1_000_000, 1 << 10)}
CALLS = ("save", "open", "load", "into")
COLUMNS = ("seconds", "cpu_seconds", "worst_gap", "p99_gap", "extra_bytes")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the other revision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--state", action="append", choices=STATES)
    chosen = parser.parse_args(arguments)
    for name in chosen.target or TARGETS:
        with _place(name) as place:
            for state in chosen.state or ("large", "small"):
                tensors, tensor_bytes = STATES[state]
                asked = {**place, "tensors": tensors, "tensor_bytes": tensor_bytes}
                _compare(f"{name}, {state}", asked, chosen.other.resolve(), chosen.rounds)
    return 0


@contextmanager
def _place(name: str) -> Iterator[dict[str, Any]]:
    """The URL and the options of a target, while it is there."""
    if name == LOCAL:
        with tempfile.TemporaryDirectory(prefix="asyncckpt-bench-") as folder:
            yield {"url": folder, "options": None}
        return
    with open_target(name) as target:
        assert target.bucket is not None
        yield {"url": target.bucket.url, "options": target.bucket.storage_options}


def _compare(title: str, asked: dict[str, Any], other: Path, rounds: int) -> None:
    samples: dict[Path, list[dict[str, Any]]] = {HERE: [], other: []}
    for _ in range(rounds):
        for tree, found in samples.items():
            found.append(_one(tree, asked))
    print(f"\n{title}: medians of {rounds}, other | this | other / this")
    for call in CALLS:
        cells = []
        for column in COLUMNS:
            old, new = (median(each[call][column] or 0 for each in samples[tree]) for tree in (other, HERE))
            scale, unit = (2**20, " MiB") if column == "extra_bytes" else (1e-3, " ms")
            cells.append(
                f"{column} {old / scale:.0f} | {new / scale:.0f}{unit} | {old / new if new else 0:.2f}"
            )
        print(f"  {call:5} {'; '.join(cells)}", flush=True)


def _one(tree: Path, asked: dict[str, Any]) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, str(HERE / "benchmarks" / "revision_process.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    found: dict[str, Any] = json.loads(process.stdout)
    assert Path(found.pop("package")).is_relative_to(tree), "another asyncckpt was measured"
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
