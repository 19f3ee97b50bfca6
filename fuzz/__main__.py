"""`python -m fuzz`: every target in turn; `python -m fuzz mlcp --seconds 600`; `--reproduce FILE` for a finding."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from fuzz.seeds import seeds
from fuzz.targets import TARGETS

SECONDS_FOR_ONE_INPUT = 5
MEMORY_MIB = 1024
LONGEST_INPUT = 16 * 1024
MOST_FINDINGS = 20
_RUNS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all, or some of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default 600)")
    parser.add_argument(
        "--corpus", type=Path, default=default_corpus(), help="where inputs and findings are kept"
    )
    parser.add_argument("--reproduce", type=Path, help="feed this one file to the target, without the fuzzer")
    chosen = parser.parse_args(arguments)
    if not chosen.targets or chosen.targets == ["all"]:
        chosen.targets = list(TARGETS)
    unknown = [name for name in chosen.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target is named {unknown[0]!r}; there are {', '.join(TARGETS)}")
    return chosen


def default_corpus() -> Path:
    """Outside the repository, and kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncckpt" / "fuzz"


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    if arguments.reproduce is not None:
        return reproduce(arguments.targets[0], arguments.reproduce)
    failed = [name for name in arguments.targets if not fuzz(name, arguments.corpus, arguments.seconds)]
    if failed:
        print(f"findings in {', '.join(failed)}: see the folders findings under {arguments.corpus}")
    return 1 if failed else 0


def reproduce(target: str, path: Path) -> int:
    """In a process of its own, because checksums are forgiven before anything is imported."""
    code = (
        "import sys; from pathlib import Path; from fuzz import forgiving; forgiving.install(); "
        "from fuzz.targets import run_target; run_target(sys.argv[1], Path(sys.argv[2]).read_bytes())"
    )
    return subprocess.run([sys.executable, "-c", code, target, str(path)], check=False).returncode


def fuzz(target: str, corpus: Path, seconds: int) -> bool:
    """Whether the target came through. Prints a line with the seconds and the number of inputs.

    A finding ends libFuzzer's process, not the run: it goes on with the time that is left.
    """
    folder = corpus / target
    inputs, findings = folder / "inputs", folder / "findings"
    inputs.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for data in seeds(target):
        (inputs / hashlib.sha256(data).hexdigest()[:32]).write_bytes(data)
    started = time.monotonic()
    runs = found = 0
    while found < MOST_FINDINGS and (left := seconds - round(time.monotonic() - started)) > 0:
        log = folder / f"log-{found}"
        with log.open("wb") as output:
            command = worker_command(target, inputs, findings, left)
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        runs += max((int(match[1]) for match in _RUNS.finditer(log.read_text(errors="replace"))), default=0)
        if done.returncode == 0:
            break
        found += 1
        print(f"{target}: {first_error(log)}; see {log}", flush=True)
    print(f"{target}: {time.monotonic() - started:.0f} s, {runs} inputs, {found} findings", flush=True)
    return not found


def worker_command(target: str, inputs: Path, findings: Path, seconds: int) -> list[str]:
    return [
        *(sys.executable, "-m", "fuzz.worker", target, str(inputs)),
        f"-artifact_prefix={findings}/",
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS_FOR_ONE_INPUT}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-max_len={LONGEST_INPUT}",
        "-print_final_stats=1",
    ]


def first_error(log: Path) -> str:
    """The line of the log that says what happened."""
    lines = log.read_text(errors="replace").splitlines()
    marked = [n for n, line in enumerate(lines) if "Uncaught Python exception" in line]
    if marked and marked[0] + 1 < len(lines):
        return lines[marked[0] + 1][:300]
    return next((line[:300] for line in lines if "ERROR" in line), "the process ended")


if __name__ == "__main__":
    raise SystemExit(main())
