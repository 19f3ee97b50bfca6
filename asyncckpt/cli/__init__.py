"""The command line: `asyncckpt ls | inspect | verify | diff | convert | bench`.

Exit codes: 0 fine, 1 a problem was found, 2 usage, 3 the storage failed, 4 bad file, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from asyncckpt.cli import bench, convert, diff, inspect, ls, verify
from asyncckpt.errors import AsyncCkptError, CheckpointError, FormatError, StorageError

EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, EXIT_STORAGE, EXIT_BAD_FILE, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130
_COMMANDS = (ls, inspect, verify, diff, convert, bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        code: int = asyncio.run(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        # asyncio.run has cancelled the command and waited for its clean-up.
        print("asyncckpt: interrupted; nothing unfinished was left behind", file=sys.stderr)
        return EXIT_INTERRUPTED
    except AsyncCkptError as error:
        print(f"asyncckpt: {error}", file=sys.stderr)
        return _exit_code(error)
    except BrokenPipeError:
        # Whoever read our output, `head` for one, has seen enough; the interpreter's own flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _exit_code(error: AsyncCkptError) -> int:
    if isinstance(error, FormatError):
        return EXIT_BAD_FILE
    if isinstance(error, StorageError | CheckpointError):
        return EXIT_STORAGE
    return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="asyncckpt", description="Save, inspect and verify checkpoints.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
