"""What fuzzing found, kept as tests: each input once broke something else than its reader's promise."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from asyncckpt.errors import LayoutError, TruncatedError
from asyncckpt.formats.flatgraph import read_graph
from asyncckpt.formats.flatgraph_build import replace_metadata
from asyncckpt.formats.gptrs import BLOCK_MAGIC, GptrsTensorsFormat
from asyncckpt.formats.index import SourceInfo, parse_bytes
from asyncckpt.formats.metagraph import MetagraphFormat, base_bundle
from asyncckpt.formats.safetensors import SafetensorsFormat
from fuzz.seeds import files_of, metadata, states


def test_a_graph_without_any_field_takes_metadata() -> None:
    """It had a root with an empty table, and the widths of no fields at all were zipped with one end."""
    vtable = struct.pack("<HH", 4, 4)
    data = struct.pack("<I", 8) + vtable + struct.pack("<i", 4)
    rebuilt = replace_metadata(memoryview(data), 8, [("note", "new")])
    assert read_graph(memoryview(rebuilt.data), rebuilt.root).metadata == {"note": "new"}


@pytest.mark.parametrize("change", ["a byte before", "a byte less", "in the middle"])
def test_a_moved_block_does_not_make_a_gptrs_file_foreign(change: str) -> None:
    """It was read without its checksums, with values from the wrong places."""
    (data,) = files_of(GptrsTensorsFormat(), states()[0])
    at = data.index(BLOCK_MAGIC)
    if change == "a byte before":
        moved = data[:at] + b"\0" + data[at:]
    elif change == "a byte less":
        moved = data[:at] + data[at + 1 :] + b"\0"
    else:
        moved = data[:at] + data[at + 7 : at + 14] + data[at : at + 7] + data[at + 14 :]
    with pytest.raises(LayoutError, match="block"):
        parse_bytes(GptrsTensorsFormat().parse(SourceInfo("m.gptrsten", len(moved))), memoryview(moved))


@pytest.mark.parametrize("change", ["cut", "longer"])
def test_a_delta_looks_at_the_size_of_its_base(change: str) -> None:
    """Places beyond the end of a cut base were handed out."""
    state = {"a": np.arange(4, dtype="<f4"), "b": np.arange(5, dtype="<i4")}
    (base,) = files_of(MetagraphFormat(), state)
    index = parse_bytes(MetagraphFormat().parse(SourceInfo("base.mgb", len(base))), memoryview(base))
    changed = {**state, "b": np.arange(1, 6, dtype="<i4")}
    (delta,) = files_of(MetagraphFormat(base=base_bundle(index, "base.mgb")), changed)
    damaged = base[:-1] if change == "cut" else base + b"\0"
    steps = MetagraphFormat().parse(SourceInfo("delta.mgb", len(delta)))
    with pytest.raises(TruncatedError, match=r"base\.mgb"):
        parse_bytes(steps, memoryview(delta), {"base.mgb": memoryview(damaged)})


def test_a_block_cut_in_two_does_not_make_a_safetensors_file_foreign() -> None:
    """Two swapped runs of bytes left valid JSON in which the block was only a part of another string."""
    (data,) = files_of(SafetensorsFormat(), states()[0], about=metadata())
    moved = data.replace(b'"asyncckpt":"{', b'"elsewhere":"[', 1)
    assert len(moved) == len(data)
    assert moved != data
    with pytest.raises(LayoutError, match="'asyncckpt'"):
        parse_bytes(SafetensorsFormat().parse(SourceInfo("m.safetensors", len(moved))), memoryview(moved))
