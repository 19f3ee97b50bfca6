"""The core alone: what needs no extra works, and everything else names the line that installs what it needs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.installs.throwaway import PROJECT, throwaway_environment


def main() -> None:
    with throwaway_environment() as environment:
        environment.install(str(PROJECT))
        environment.run(
            str(PROJECT / "tests" / "installs" / "features.py"), str(PROJECT / "tests" / "golden")
        )


if __name__ == "__main__":
    main()
