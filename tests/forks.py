"""A forked child that does one thing and says how it went."""

from __future__ import annotations

import faulthandler
import os
import traceback
import warnings
from collections.abc import Callable

HUNG_SECONDS = 30
"""A child that takes longer is stuck: it prints where, and ends with code 1."""


def exit_code_of_fork(work: Callable[[], object]) -> int:
    """Fork, do the work in the child, and wait: 0 when it went well. Blocks, so call it in a thread."""
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside other threads, which is the very thing to be tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
