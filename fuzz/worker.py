"""One target under libFuzzer, in a process of its own: `python -m fuzz.worker TARGET [libFuzzer's arguments]`."""

from __future__ import annotations

import resource
import sys
from importlib import import_module
from types import CodeType
from typing import Any

from fuzz import forgiving

MEMORY_BYTES = 1 << 30


def main() -> None:
    target, arguments = sys.argv[1], sys.argv[2:]
    atheris: Any = import_module("atheris")
    instrument: Any = import_module("atheris.instrument_bytecode")

    def counted(code: CodeType) -> CodeType:
        patched: CodeType = instrument.patch_code(code, True)
        return patched

    forgiving.install(counted)
    from fuzz.mutate import mutate
    from fuzz.targets import run_target

    def one_input(data: bytes) -> None:
        run_target(target, data)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        return mutate(data, max_size, seed, plain=atheris.Mutate)

    # A parser that asks for more gets a MemoryError, which is a finding.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    atheris.Setup([sys.argv[0], *arguments], one_input, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
