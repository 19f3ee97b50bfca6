"""`verify` of tensors that are stored in every way: one pass over each file, and no damage is missed."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncckpt
from asyncckpt.operations.passing import PassingTensor
from asyncckpt.testing.storage.wrappers import CountingStorage
from tests.operations.reading.layouts import Layout, Writing, add_tiled, layouts, tilings
from tests.operations.reading.test_plan import SHAPES, filled
from tests.operations.test_requests import RemoteMemory


@given(data=st.data())
async def test_sound_tensors_pass_and_damaged_ones_are_named(data: st.DataObject) -> None:
    writing = Writing()
    shape = data.draw(st.sampled_from(SHAPES))
    writing.add("whole", filled("int32", shape), data.draw(layouts()))
    boxes = data.draw(tilings(shape))
    add_tiled(writing, "tiled", filled("S3", shape), boxes, [data.draw(layouts()) for _ in boxes])
    storage = RemoteMemory()
    format = await writing.write(storage)
    memory = data.draw(st.sampled_from([1, 1 << 20]))
    report = await asyncckpt.verify((storage, "a.described"), format=format, memory_bytes=memory)
    assert report.problems == ()
    checked = [t for t in writing.tensors if t.checksums is not None and len(t.checksums)]
    if not checked:
        return
    victim = data.draw(st.sampled_from(checked))
    assert victim.checksums is not None
    victim.checksums[data.draw(st.integers(0, len(victim.checksums) - 1))] ^= 1
    report = await asyncckpt.verify((storage, "a.described"), format=format, memory_bytes=memory)
    assert [problem.tensor for problem in report.problems] == [victim.name]
    assert "damaged" in report.problems[0].message


@pytest.mark.parametrize(
    "layout", [Layout(frame_bytes=1 << 16), Layout(frame_bytes=1 << 16, chunk_bytes=1 << 15)]
)
async def test_frames_are_decoded_once_from_bytes_that_are_read_once(layout: Layout) -> None:
    writing = Writing()
    for number in range(3):
        writing.add(f"t{number}", np.random.default_rng(number).integers(0, 9, 1 << 20, np.uint8), layout)
    storage = CountingStorage(RemoteMemory())
    format = await writing.write(storage)
    storage.bytes_read = 0
    report = await asyncckpt.verify((storage, "a.described"), format=format)
    assert report.ok
    assert len(writing.decoded) == len(set(writing.decoded)) == 3 * 16
    size = sum(map(len, writing.files))
    assert report.bytes_checked == size
    assert storage.bytes_read <= size + 3 * 128 * 1024


def test_a_frame_that_gives_too_little_is_a_problem() -> None:
    writing = Writing()
    writing.add("w", np.arange(100, dtype=np.uint8), Layout(frame_bytes=64))
    passing = PassingTensor(writing.tensors[0])
    assert passing.take_frame(0, zlib.compress(bytes(64))) is None
    assert passing.take_frame(1, zlib.compress(bytes(35))) is None
    assert passing.finish() == "tensor 'w' has 99 stored bytes, its shape needs 100"
    assert passing.finish() is None
