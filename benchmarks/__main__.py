"""`python -m benchmarks`: everything; `--only sink`, `--rounds 3` and the like for a part of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

SCENARIOS = ("sink minio local counts planning values training cancelling cold formats").split()


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=SCENARIOS,
        help="run only this scenario; may be given several times",
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after one warm-up (default 5)")
    parser.add_argument("--size", type=int, default=1024, help="MiB of the large state (default 1024)")
    parser.add_argument(
        "--contender", action="append", help="only these contenders, as the tables call them; may be repeated"
    )
    parser.add_argument("--format", action="append", help="only these formats beside MLCP; may be repeated")
    parser.add_argument("--no-small", action="store_true", help="leave out the 20 000 small tensors")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write results and docs also after a part of the scenarios (a full run always does)",
    )
    return parser.parse_args(arguments)


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    # Before numpy is imported: the training loop is to keep one core busy, not all of them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from benchmarks.suite import Choice, run_suite

    choice = Choice(
        scenarios=tuple(arguments.only or SCENARIOS),
        rounds=arguments.rounds,
        size_mib=arguments.size,
        contenders=tuple(arguments.contender or ()),
        formats=tuple(arguments.format or ()),
        small=not arguments.no_small,
        write=arguments.write or not (arguments.only or arguments.contender),
    )
    return asyncio.run(run_suite(choice))


if __name__ == "__main__":
    raise SystemExit(main())
