"""How many requests and bytes it takes: counted by the sink, so nothing is hidden."""

from __future__ import annotations

from collections.abc import Sequence

from asyncckpt.operations.checkpoint import open_checkpoint
from asyncckpt.operations.load import load
from asyncckpt.operations.save import save
from asyncckpt.storage.base import ICheckpointStorage
from benchmarks.figures import Figure
from benchmarks.scenarios.subjects import subjects
from benchmarks.sink_process import SinkServer
from benchmarks.states import State, large_tensors


async def count_requests(storage: ICheckpointStorage, sink: SinkServer, state: State) -> list[Figure]:
    """A small save, an open, and one tensor of the state's many."""
    key, small = "counts/model.checkpoint", large_tensors(1024 * 1024, 256 * 1024)
    await save(small.arrays, (storage, "counts/first.checkpoint"))
    sink.reset()
    await save(small.arrays, (storage, "counts/small.checkpoint"))
    small_save = sink.counters()["requests"]
    await save(state.arrays, (storage, key), copy=False)
    sink.reset()
    async with open_checkpoint((storage, key)) as checkpoint:
        opened = sink.counters()
        name = list(state.arrays)[len(state.arrays) // 2]
        sink.reset()
        await checkpoint.read(name)
        ratio = sink.counters()["bytes sent"] / state.arrays[name].nbytes
    sink.reset()
    await load((storage, key), only=[name])
    whole = sink.counters()["bytes sent"] / state.arrays[name].nbytes
    for used in ("counts/first.checkpoint", "counts/small.checkpoint", key):
        await storage.delete(used)
    return [
        Figure("requests of a small save", small_save, "", at_most=1),
        Figure("requests of an open", opened["requests"], "", at_most=2),
        Figure("bytes of an open", opened["bytes sent"], "bytes"),
        Figure(f"bytes fetched for one of {len(state.arrays)} tensors", ratio, "× its size", at_most=1.05),
        Figure("the same, the open included", whole, "× its size", at_most=1.05),
    ]


async def count_reads(
    storage: ICheckpointStorage, sink: SinkServer, state: State, names: Sequence[str] = ()
) -> list[Figure]:
    """What an open and one tensor of the state take, for every format that does not compress."""
    figures = []
    tensor = list(state.arrays)[len(state.arrays) // 2]
    for subject in subjects(names):
        if subject.compressed:
            continue
        saved = await save(
            state.arrays, (storage, f"counts/{subject.key}"), format=subject.make(), copy=False
        )
        sink.reset()
        async with open_checkpoint((storage, saved.key)) as checkpoint:
            opened = sink.counters()
            sink.reset()
            await checkpoint.read(tensor)
            read = sink.counters()
        for file in saved.files:
            await storage.delete(file)
        ratio = read["bytes sent"] / state.arrays[tensor].nbytes
        figures += [
            Figure(f"{subject.name}: open from S3", opened["requests"], "requests"),
            Figure(f"{subject.name}: open from S3", opened["bytes sent"] / 1024, "KiB"),
            Figure(f"{subject.name}: one tensor from S3", ratio, "× its bytes", at_most=1.05),
        ]
    return figures
