"""Saves in a process of its own that is interrupted twice by Ctrl-C. Run by test_loop_ends.py.

python -m tests.operations.interrupted_saves <location> <options as JSON> <state in MiB> <event number>
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import sys
import threading
import time

import numpy as np

import asyncckpt

_PATIENCE = 20.0


def main(location: str, options: str, mebibytes: int, event_number: int) -> None:
    """Press Ctrl-C at that progress event, and again once the first was heard; prints what the save said last."""
    events: list[asyncckpt.ProgressEvent] = []
    tasks: list[asyncio.Task[object]] = []
    pressing: list[threading.Thread] = []

    def press_twice() -> None:
        task = tasks[0]
        for presses in (1, 2):
            if presses == 2:
                # In the midst of Python code it may interrupt anything, the cleaning up of others included; nearly
                # always it comes while the loop waits, and so it does here.
                _wait_until_the_loop_waits()
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + _PATIENCE
            while task.cancelling() < presses and not task.done() and time.monotonic() < deadline:
                time.sleep(0.0005)

    def note(event: asyncckpt.ProgressEvent) -> None:
        events.append(event)
        if len(events) == event_number:
            pressing.append(threading.Thread(target=press_twice))
            pressing[0].start()

    async def run() -> None:
        current = asyncio.current_task()
        assert current is not None
        tasks.append(current)
        state = {"w": [np.full(1 << 18, i, np.float32) for i in range(mebibytes)]}
        await asyncckpt.save(state, location, progress=note, storage_options=json.loads(options))

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())
    _wait_out(pressing)
    print(json.dumps({"committed": events[-1].committed, "events": len(events)}))


def _wait_until_the_loop_waits() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if sys._current_frames()[main_thread].f_code.co_filename == selectors.__file__:
            return
        time.sleep(0.0001)


def _wait_out(pressing: list[threading.Thread]) -> None:
    """A Ctrl-C that comes when all is over interrupts nothing that matters."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for thread in pressing:
                thread.join()
            return
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
