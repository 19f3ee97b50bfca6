"""Become another program that dies with its parent: `python tether.py PARENT_PID PROGRAM [ARGUMENT ...]`.

A test run that is killed with SIGKILL can end nothing itself, so the kernel is asked to. This is a program and
not a `preexec_fn` because Python code between fork and exec may deadlock in a process with threads. Where the
kernel has no such request (anything but Linux), the program simply starts.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and replace it by the program; never returns."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died before the request was made
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
