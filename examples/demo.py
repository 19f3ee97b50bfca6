"""asyncckpt in one minute, on local disk: `make demo`, or `python examples/demo.py`.

Saves a model-sized state, lists it, opens it lazily, reads a slice, verifies it, cancels a save halfway and
flips one bit. Needs nothing but asyncckpt; everything happens in a folder that is deleted at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import asyncckpt
from asyncckpt.cli.output import human_size, print_table, progress_bar
from asyncckpt.progress import ProgressCallback

LAYERS = 16
NAME = "step-001200.checkpoint"
COLOURS = {"title": "1;36", "good": "32", "bad": "31", "dim": "2"}


def paint(text: str, colour: str) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if sys.stdout.isatty() else text


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


@contextmanager
def shown_progress() -> Iterator[ProgressCallback]:
    """A bar on a terminal; elsewhere, in CI for one, a line for every quarter."""
    quarter = 0

    def print_quarters(event: asyncckpt.ProgressEvent) -> None:
        nonlocal quarter
        reached = 4 * event.bytes_done // event.bytes_total if event.bytes_total else 0
        if reached > quarter:
            quarter = reached
            say(f"{quarter * 25:3} %  {human_size(event.bytes_done)}", "dim")

    with progress_bar() as bar:
        yield bar or print_quarters


def make_state(mebibytes: int) -> dict[str, Any]:
    """Weights and optimizer moments, and the plain values that belong to a training run."""
    rng = np.random.default_rng(0)
    rows = max(1, mebibytes * 1024 * 1024 // (4 * 1024 * LAYERS * 2))

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
        with stopwatch() as seconds, shown_progress() as show:
            result = await asyncckpt.save(
                state, folder / NAME, metadata={"run": "demo", "loss": 2.31}, progress=show
            )
    speed = human_size(result.size / seconds[0])
    say(
        f"{result.tensors} tensors, {human_size(result.size)} in {seconds[0]:.2f} s ({speed}/s, synced to disk)"
    )
    late, worst = np.percentile(gaps, 99) * 1000, max(gaps) * 1000
    say(
        f"{len(gaps)} heartbeats meanwhile: 99 % at most {late:.1f} ms late, the worst {worst:.1f} ms", "good"
    )


async def list_it(folder: Path) -> None:
    title(2, "List what is there")
    async with asyncckpt.open_storage(folder) as storage:
        rows = [(info.key, human_size(info.size)) async for info in storage.list()]
    print_table(("   KEY", "SIZE"), [(f"   {key}", size) for key, size in rows])


async def open_it(state: dict[str, Any], folder: Path) -> None:
    title(3, "Open it lazily, read a slice")
    name = "model.layers.7.weight"
    with stopwatch() as seconds:
        async with asyncckpt.open_checkpoint(folder / NAME) as checkpoint:
            say(f"{checkpoint.format} {checkpoint.version}, {len(checkpoint.tensors)} tensors, for example:")
            for tensor in list(checkpoint.tensors.values())[:3]:
                say(
                    f"  {tensor.name}  {tensor.dtype}  {list(tensor.shape)}  {human_size(tensor.size)}", "dim"
                )
            piece = await checkpoint.read_slice(name, (slice(0, 4), slice(0, 256)))
    assert np.array_equal(piece, state["model"]["layers.7.weight"][0:4, 0:256])
    say(f"read {name}[0:4, 0:256], verified, in {seconds[0] * 1000:.0f} ms, without reading the rest", "good")


async def verify_it(folder: Path) -> None:
    title(4, "Verify every byte")
    with stopwatch() as seconds:
        report = await asyncckpt.verify(folder / NAME)
    assert report.ok
    say(
        f"ok: {report.tensors} tensors, {human_size(report.bytes_checked)} checked in {seconds[0]:.2f} s",
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


def flip_one_bit(path: Path) -> int:
    """Somewhere in the middle of the file; returns where."""
    with path.open("r+b") as file:
        position = file.seek(0, 2) // 2
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0b100]))
    return position


async def damage_it(folder: Path) -> None:
    title(6, "Flip one bit in a copy")
    damaged = folder / "damaged.checkpoint"
    await asyncio.to_thread(shutil.copyfile, folder / NAME, damaged)
    position = await asyncio.to_thread(flip_one_bit, damaged)
    say(f"one bit of byte {position:,} is flipped; loading the copy:")
    try:
        await asyncckpt.load(damaged)
    except asyncckpt.ChecksumMismatchError as error:
        say(f"ChecksumMismatchError: {error.tensor}", "bad")
        say(f"  {error}".replace(f"{folder}/", ""), "dim")
        say("never a wrong number: the error names the tensor", "good")
    else:
        raise SystemExit("the flipped bit went unnoticed, which must never happen")


async def demo(mebibytes: int, folder: Path) -> None:
    print(paint(f"asyncckpt {asyncckpt.__version__}", "title"), f"in {folder}")
    with stopwatch() as seconds:
        state = await asyncio.to_thread(make_state, mebibytes)
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
