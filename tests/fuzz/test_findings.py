"""What fuzzing found, kept as tests: each input once broke something else than its reader's promise."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from asyncckpt.bundles import MetagraphFormat, base_bundle
from asyncckpt.errors import FormatError, LayoutError, TruncatedError
from asyncckpt.formats.gptrs.format import BLOCK_MAGIC, GptrsTensorsFormat
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdnb.graph.amend import replace_metadata
from asyncckpt.formats.sdnb.graph.read import read_graph
from fuzz.seeds import MOMENT, files_of, metadata, states

pytestmark = pytest.mark.thorough


def bare_graph(slots: dict[int, int], fields: list[int]) -> tuple[memoryview, int]:
    """A graph whose root has so many fields of four bytes; `slots` says which field each slot is."""
    offsets = [0] * (max(slots, default=-1) + 1)
    for slot, field in slots.items():
        offsets[slot] = 4 + 4 * field
    vtable = struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), 4 + 4 * len(fields), *offsets)
    vtable += bytes(-len(vtable) % 4)
    root = 4 + len(vtable)
    table = struct.pack(f"<i{len(fields)}I", len(vtable), *fields)
    return memoryview(struct.pack("<I", root) + vtable + table + bytes(64)), root


def test_a_graph_without_any_field_takes_metadata() -> None:
    """The widths of no fields at all were zipped with one end: ValueError."""
    rebuilt = replace_metadata(*bare_graph({}, []), [("note", "new")])
    assert read_graph(memoryview(rebuilt.data), rebuilt.root).metadata == {"note": "new"}


def test_a_graph_with_a_wild_offset_takes_no_metadata() -> None:
    """Slot 11, which nobody here reads, led so far that its new offset had more than 32 bits: struct.error."""
    with pytest.raises(LayoutError, match="slot 11"):
        replace_metadata(*bare_graph({11: 0}, [2**32 - 1]), [("note", "new")])


def test_a_graph_whose_slots_share_bytes_takes_no_metadata() -> None:
    """The variables were the metadata's keys: with other metadata there were other variables."""
    with pytest.raises(FormatError):
        replace_metadata(*bare_graph({1: 0, 9: 0, 10: 1}, [16, 12]), [("note", "new")])


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
        parse_bytes(GptrsTensorsFormat().parse(FileInfo("m.gptrsten", len(moved))), memoryview(moved))


@pytest.mark.parametrize("change", ["cut", "longer"])
def test_a_delta_looks_at_the_size_of_its_base(change: str) -> None:
    """Places beyond the end of a cut base were handed out."""
    state = {"a": np.arange(4, dtype="<f4"), "b": np.arange(5, dtype="<i4")}
    (base,) = files_of(MetagraphFormat(), state)
    index = parse_bytes(MetagraphFormat().parse(FileInfo("base.mgb", len(base))), memoryview(base))
    changed = {**state, "b": np.arange(1, 6, dtype="<i4")}
    (delta,) = files_of(MetagraphFormat(base=base_bundle(index, "base.mgb")), changed)
    damaged = base[:-1] if change == "cut" else base + b"\0"
    steps = MetagraphFormat().parse(FileInfo("delta.mgb", len(delta)))
    with pytest.raises(TruncatedError, match=r"base\.mgb"):
        parse_bytes(steps, memoryview(delta), {"base.mgb": memoryview(damaged)})


def test_a_block_cut_in_two_does_not_make_a_safetensors_file_foreign() -> None:
    """Two swapped runs of bytes left valid JSON in which the block was only a part of another string."""
    (data,) = files_of(SafetensorsFormat(), states()[0], about=metadata())
    moved = data.replace(b'"asyncckpt":"{', b'"elsewhere":"[', 1)
    assert len(moved) == len(data)
    assert moved != data
    with pytest.raises(LayoutError, match="'asyncckpt'"):
        parse_bytes(SafetensorsFormat().parse(FileInfo("m.safetensors", len(moved))), memoryview(moved))


def test_a_graph_of_ours_without_its_header_is_not_a_bare_graph() -> None:
    """Without its first 32 bytes an SDNB file is what the older serialiser wrote: it was read without checksums."""
    (data,) = files_of(SdnbFormat(clock=lambda: MOMENT), states()[0])
    cut = data[32:]
    with pytest.raises(LayoutError, match="beginning is missing"):
        parse_bytes(SdnbFormat().parse(FileInfo("m.sdnb", len(cut))), memoryview(cut))
