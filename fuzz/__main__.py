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
_RUNS = re.compile(r"stat::number_of_executed_units:\s*(\d+)|Done (\d+) runs")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all, or some of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default 600)")
    parser.add_argument("--corpus", type=Path, default=default_corpus(), help="where inputs and findings are kept")
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
    """Whether the target came through. Prints a line with the seconds and the number of inputs."""
    inputs, findings = corpus / target / "inputs", corpus / target / "findings"
    inputs.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for data in seeds(target):
        (inputs / hashlib.sha256(data).hexdigest()[:32]).write_bytes(data)
    log = corpus / target / "log"
    started = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "fuzz.worker", target, str(inputs)),
                f"-artifact_prefix={findings}/",
                f"-max_total_time={seconds}",
                f"-timeout={SECONDS_FOR_ONE_INPUT}",
                f"-rss_limit_mb={MEMORY_MIB}",
                f"-max_len={LONGEST_INPUT}",
                "-print_final_stats=1",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    runs = max((int(a or b) for a, b in _RUNS.findall(log.read_text(errors="replace"))), default=0)
    outcome = "nothing found" if done.returncode == 0 else f"a finding, see {log}"
    print(f"{target}: {time.monotonic() - started:.0f} s, {runs} inputs, {outcome}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
