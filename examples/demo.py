"""asyncckpt in one minute, on local disk: `make demo`, or `python examples/demo.py`.

Saves a model-sized state, lists it, opens it lazily, reads a slice, verifies it, cancels a save halfway and
flips one bit. Needs nothing but asyncckpt; everything happens in a folder that is deleted at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiofiles
import numpy as np

import asyncckpt

LAYERS = 16
NAME = "step-001200.checkpoint"
COLOURS = {"title": "1;36", "good": "32", "bad": "31", "dim": "2"}


def paint(text: str, colour: str) -> str:
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if wanted else text


def title(number: int, text: str) -> None:
    print(paint(f"\n{number}. {text}", "title"), flush=True)


def say(text: str, colour: str = "") -> None:
    print(f"   {paint(text, colour) if colour else text}", flush=True)


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """A list that holds the seconds once the block is over."""
    seconds: list[float] = []
    started = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - started)


@asynccontextmanager
async def heartbeat(every: float = 0.005) -> AsyncIterator[list[float]]:
    """What else your event loop has to do; collects how late each beat was."""
    gaps = [0.0]

    async def beat() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(every)
            gaps.append(time.perf_counter() - before - every)

    task = asyncio.create_task(beat())
    try:
        yield gaps
    finally:
        task.cancel()
        await asyncio.wait([task])


class Shown:
    """Progress as a bar on a terminal; elsewhere, in CI for one, as a line for every quarter."""

    cells = 28

    def __init__(self) -> None:
        self._quarter = 0

    def __call__(self, event: asyncckpt.ProgressEvent) -> None:
        if not event.bytes_total:
            return
        share = event.bytes_done / event.bytes_total
        if sys.stdout.isatty():
            bar = "█" * int(share * self.cells)
            print(
                f"\r   {bar:░<{self.cells}} {share:4.0%}",
                end="\n" if event.phase is asyncckpt.Phase.DONE else "",
                flush=True,
            )
        elif int(4 * share) > self._quarter:
            self._quarter = int(4 * share)
            say(f"{self._quarter * 25:3} %  {mebibytes(event.bytes_done)}", "dim")


def mebibytes(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def make_state(size: int) -> dict[str, Any]:
    """Weights and optimizer moments, and the plain values that belong to a training run."""
    rng = np.random.default_rng(0)
    rows = max(1, size * 1024 * 1024 // (4 * 1024 * LAYERS * 2))

    def matrices() -> dict[str, np.ndarray]:
        return {f"layers.{i}.weight": rng.random((rows, 1024), np.float32) for i in range(LAYERS)}

    return {
        "model": matrices(),
        "optimizer": {"moments": matrices(), "lr": 3e-4, "betas": (0.9, 0.95)},
        "step": 1200,
        "epoch": 3,
    }


def show_folder(folder: Path) -> None:
    """Every file, hidden ones too."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    say(f"files in the folder: {', '.join(path.name for path in files)}")


async def save_it(state: dict[str, Any], folder: Path) -> None:
    title(1, "Save a state, while the event loop goes on with its work")
    async with heartbeat() as gaps:
        with stopwatch() as seconds:
            result = await asyncckpt.save(
                state, folder / NAME, metadata={"run": "demo", "loss": 2.31}, progress=Shown()
            )
    speed = mebibytes(result.size / seconds[0])
    say(
        f"{result.tensors} tensors, {mebibytes(result.size)} in {seconds[0]:.2f} s ({speed}/s, synced to disk)"
    )
    late, worst = np.percentile(gaps, 99) * 1000, max(gaps) * 1000
    say(
        f"{len(gaps)} heartbeats meanwhile: 99 % at most {late:.1f} ms late, the worst {worst:.1f} ms", "good"
    )


async def list_it(folder: Path) -> None:
    title(2, "List what is there")
    async with asyncckpt.open_storage(folder) as storage:
        async for info in storage.list():
            say(f"{info.key}  {mebibytes(info.size)}  {info.modified:%Y-%m-%d %H:%M:%S}")


async def open_it(state: dict[str, Any], folder: Path) -> None:
    title(3, "Open it lazily, read a slice")
    name = "model.layers.7.weight"
    with stopwatch() as seconds:
        async with asyncckpt.open_checkpoint(folder / NAME) as checkpoint:
            say(f"{checkpoint.format} {checkpoint.version}, {len(checkpoint.tensors)} tensors, for example:")
            for tensor in list(checkpoint.tensors.values())[:3]:
                say(f"  {tensor.name}  {tensor.dtype}  {list(tensor.shape)}  {mebibytes(tensor.size)}", "dim")
            piece = await checkpoint.read_slice(name, (slice(0, 4), slice(0, 256)))
    assert np.array_equal(piece, state["model"]["layers.7.weight"][0:4, 0:256])
    say(f"read {name}[0:4, 0:256], verified, in {seconds[0] * 1000:.0f} ms, without reading the rest", "good")


async def verify_it(folder: Path) -> None:
    title(4, "Verify every byte")
    with stopwatch() as seconds:
        report = await asyncckpt.verify(folder / NAME)
    assert report.ok
    say(
        f"ok: {report.tensors} tensors, {mebibytes(report.bytes_checked)} checked in {seconds[0]:.2f} s",
        "good",
    )


async def cancel_it(state: dict[str, Any], folder: Path) -> None:
    title(5, "Start to overwrite it, and cancel halfway")
    newer = {**state, "step": 1300}
    source = asyncckpt.CancellationTokenSource()
    reached = 0.0

    def cancel_halfway(event: asyncckpt.ProgressEvent) -> None:
        nonlocal reached
        if not source.token.is_cancelled and event.bytes_total and event.bytes_done > event.bytes_total * 0.3:
            reached = event.bytes_done / event.bytes_total
            source.cancel("the demo says stop")

    try:
        await asyncckpt.save(
            newer, folder / NAME, overwrite=True, cancellation=source.token, progress=cancel_halfway
        )
    except asyncckpt.OperationCancelledError as error:
        say(f"OperationCancelledError: {error} (at {reached:.0%})")
    else:
        raise SystemExit("the save was over before it could be cancelled: try a larger --size")
    show_folder(folder)
    with stopwatch() as seconds:
        loaded = await asyncckpt.load(folder / NAME)
    assert loaded["step"] == 1200
    assert np.array_equal(loaded["model"]["layers.0.weight"], state["model"]["layers.0.weight"])
    say(
        f"nothing is left, and the old one still loads: step {loaded['step']}, verified, {seconds[0]:.2f} s",
        "good",
    )


async def copy_with_one_bit_flipped(source: Path, target: Path) -> int:
    """In the middle of the file; returns where."""
    async with aiofiles.open(source, "rb") as file:
        data = bytearray(await file.read())
    position = len(data) // 2
    data[position] ^= 0b100
    async with aiofiles.open(target, "wb") as file:
        await file.write(data)
    return position


async def damage_it(folder: Path) -> None:
    title(6, "Flip one bit in a copy")
    damaged = folder / "damaged.checkpoint"
    position = await copy_with_one_bit_flipped(folder / NAME, damaged)
    say(f"one bit of byte {position:,} is flipped; loading the copy:")
    try:
        await asyncckpt.load(damaged)
    except asyncckpt.ChecksumMismatchError as error:
        say(f"ChecksumMismatchError: {error.tensor}", "bad")
        say(f"  {error}".replace(f"{folder}/", ""), "dim")
        say("never a wrong number: the error names the tensor", "good")
    else:
        raise SystemExit("the flipped bit went unnoticed, which must never happen")


async def demo(size: int, folder: Path) -> None:
    print(paint(f"asyncckpt {asyncckpt.__version__}", "title"), f"in {folder}")
    with stopwatch() as seconds:
        state = await asyncio.to_thread(make_state, size)
        await save_it(state, folder)
        await list_it(folder)
        await open_it(state, folder)
        await verify_it(folder)
        await cancel_it(state, folder)
        await damage_it(folder)
    print(f"\nDone in {seconds[0]:.0f} s. Next: README.md, and the other examples beside this file.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=512, metavar="MIB", help="of the state (512)")
    parser.add_argument("--folder", help="where to make the temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="asyncckpt-demo-", dir=options.folder) as folder:
        asyncio.run(demo(options.size, Path(folder)))


if __name__ == "__main__":
    main()
