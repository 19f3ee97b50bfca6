"""`python -m tests.servers`: say where each server comes from, and build what has to be built.

Ends with 1 when one can't be had and CI is set; without CI the tests that need it are skipped, loudly.
"""

from __future__ import annotations

import os
import sys
import time

from tests.servers.build import built
from tests.servers.process import ServerUnavailableError
from tests.servers.source import KINDS, Build, Program, Running, ServerKind, choose_source


def describe(kind: ServerKind) -> str:
    """Return one line about where `kind` comes from. Raises ServerUnavailableError when it can't be built."""
    match choose_source(kind):
        case Running(endpoint_url, origin):
            return f"{endpoint_url} ({origin})"
        case Program(path):
            return f"{path} (on the PATH)"
        case Build(kind):
            started = time.monotonic()
            program = built(kind)
            return f"{program} (cache, {time.monotonic() - started:.0f} s)"


def main() -> int:
    missing = 0
    for kind in KINDS:
        print(f"{kind.name}: looking, or building (minutes, the first time) ...", flush=True)
        try:
            print(f"{kind.name}: {describe(kind)}", flush=True)
        except ServerUnavailableError as error:
            missing += 1
            print(f"{kind.name}: NOT AVAILABLE: {error}", flush=True)
    return 1 if missing and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
