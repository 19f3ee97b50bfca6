"""Damaged files of every registered format: refused with one of our errors, or read as what was written.

Whatever the damage, parsing takes no more memory than the file's size allows for.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import CheckpointError, FormatError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.decode import check_chunks, gather
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.model.checksums import Buffer
from fuzz.files import Siblings
from fuzz.seeds import MOMENT, files_of, metadata, states
from tests.formats.attacks import mutations

pytestmark = pytest.mark.thorough

MEMORY_FACTOR = 4
MEMORY_SLACK = 1024 * 1024
MANY = 2000
MANY_FACTORS = {
    # What is compressed has a far smaller file, and the same objects: names and offsets that resemble each other.
    "metagraph, compressed": 8,
    "sdz": 40,
}

VARIANTS: dict[str, Callable[[], ICheckpointFormat]] = {
    "safetensors-set of two": lambda: HuggingFaceSetFormat(max_file_bytes=16),
    "metagraph, compressed": lambda: MetagraphFormat(compress=True),
    "sdnb": lambda: SdnbFormat(clock=lambda: MOMENT),
    "sdnb, appended": lambda: SdnbFormat(clock=lambda: MOMENT, inline_below=0),
    "sdnb in two shards": lambda: SdnbFormat(clock=lambda: MOMENT, shards=2),
    "sdz": lambda: SdzFormat(clock=lambda: MOMENT),
    "sdz, stored": lambda: SdzFormat(clock=lambda: MOMENT, compress=False, inline_below=0),
}
FORMATS: dict[str, Callable[[], ICheckpointFormat]] = {
    **{name: lambda name=name: get_format(name) for name in format_names()},  # type: ignore[misc]
    **VARIANTS,
}
MANY_VARIANTS: dict[str, Callable[[], ICheckpointFormat]] = {
    "safetensors-set of two": lambda: HuggingFaceSetFormat(max_file_bytes=MANY * 8 // 2),
}


def name_of(format: ICheckpointFormat, files: list[bytes]) -> str:
    if format.name == "sdnb" and len(files) > 1:
        return f"model.shard0-of-{len(files)}.sdnb"
    return f"model{format.extension}"


def parse(format: ICheckpointFormat, files: list[bytes]) -> tuple[Index, list[memoryview]]:
    siblings = Siblings(files[1:])
    source = FileInfo(name_of(format, files), len(files[0]))
    index = parse_bytes(format.parse(source), memoryview(files[0]), siblings)
    return index, [memoryview(files[0]), *(siblings[file] for file in index.files[1:])]


def content(format: ICheckpointFormat, files: list[bytes]) -> tuple[Any, ...]:
    """Everything that a checkpoint says, comparable."""
    index, views = parse(format, files)
    tensors = []
    for stored in index.tensors:
        data: Buffer = gather(stored, lambda extent: views[extent.file][extent.offset : extent.end])
        check_chunks(stored, memoryview(data))
        tensors.append((stored.metadata, bytes(data)))
    return index.tree, index.metadata, tensors


def damaged(files: list[bytes]) -> st.SearchStrategy[list[bytes]]:
    """The files with one of them changed."""
    return st.integers(0, len(files) - 1).flatmap(
        lambda number: mutations(files[number]).map(
            lambda data: [*files[:number], data, *files[number + 1 :]]
        )
    )


def peak_of(work: Callable[[], object]) -> int:
    """The most memory that was taken while it ran; refusals are fine."""
    tracemalloc.start()
    try:
        work()
    except (FormatError, CheckpointError):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("kind", FORMATS)
@given(data=st.data())
def test_damage_is_refused_or_harmless(kind: str, data: st.DataObject) -> None:
    format = FORMATS[kind]()
    state = data.draw(st.sampled_from(states()), label="state")
    files = files_of(format, state, about=metadata())
    changed = data.draw(damaged(files), label="files")
    try:
        found = content(format, changed)
    except (FormatError, CheckpointError) as error:
        refusal = str(error)
        assert "\n" not in refusal
        return
    assert found == content(format, files)


@pytest.mark.parametrize("kind", FORMATS)
@given(data=st.data())
def test_parsing_damage_takes_little_memory(kind: str, data: st.DataObject) -> None:
    format = FORMATS[kind]()
    files = data.draw(damaged(files_of(format, states()[1], about=metadata())), label="files")
    allowed = MEMORY_FACTOR * sum(map(len, files)) + MEMORY_SLACK
    assert peak_of(lambda: parse(format, files)) <= allowed


@pytest.mark.parametrize("kind", FORMATS)
def test_parsing_many_tensors_takes_little_memory(kind: str) -> None:
    """Python's objects for a tiny tensor are several times as large as its entry in the file."""
    format = MANY_VARIANTS.get(kind, FORMATS[kind])()
    # What is imported at the first call belongs to no file.
    parse(format, files_of(format, states()[1], about=metadata()))
    state = {f"layers.{i}.weight": np.full(2, i, np.float32) for i in range(MANY)}
    files = files_of(format, state, about=metadata())
    allowed = MANY_FACTORS.get(kind, MEMORY_FACTOR) * sum(map(len, files)) + MEMORY_SLACK
    assert peak_of(lambda: parse(format, files)) <= allowed
