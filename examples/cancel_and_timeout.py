"""Three ways to stop a save, and what each leaves behind: nothing. `python examples/cancel_and_timeout.py`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import numpy as np

import asyncckpt

# 256 MiB, so that there is time to change our minds.
STATE = {"weights": np.ones((64, 1024, 1024), np.float32)}


def show(what: str, folder: Path) -> None:
    print(f"{what}\n    files left: {os.listdir(folder) or 'none'}")  # hidden ones would be listed too


async def main(folder: Path) -> None:
    target = folder / "model.checkpoint"

    # 1. A timeout: the save is over, and clean, when TimeoutError arrives.
    try:
        async with asyncio.timeout(0.02):
            await asyncckpt.save(STATE, target)
    except TimeoutError:
        show("asyncio.timeout: TimeoutError", folder)

    # 2. A token: cancelled from anywhere, another thread or a signal handler too, with a reason.
    with asyncckpt.CancellationTokenSource() as source:
        source.cancel_after(0.02, "the node is being drained")
        try:
            await asyncckpt.save(STATE, target, cancellation=source.token)
        except asyncckpt.OperationCancelledError as error:
            show(f"a token: OperationCancelledError, {error.reason}", folder)

    # 3. Plain asyncio: cancel the task.
    last: list[asyncckpt.ProgressEvent] = []
    task = asyncio.create_task(asyncckpt.save(STATE, target, progress=last.append))
    await asyncio.sleep(0.02)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        show(f"task.cancel(): CancelledError, committed={last[-1].committed}", folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
