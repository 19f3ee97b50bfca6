"""Other metadata for a `FlatGraph` that exists: its old bytes as they are, with new texts behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.binary import LE_I32, LE_U16, LE_U32
from asyncckpt.formats.kit.plan import aligned
from asyncckpt.formats.sdnb.graph.read import Graph, read_graph
from asyncckpt.formats.sdnb.graph.tables import FlatReader, Table

_IMAGE_ALIGNMENT = 64
_OFFSET_SLOTS = frozenset(range(1, 12))
"""The slots of a FlatGraph that hold offsets; slot 0, the id, is a number."""
_METADATA_SLOTS = (9, 10)


@dataclass(frozen=True, slots=True)
class RebuiltGraph:
    """A graph with other metadata. Positions count from the start of `data`, whose first byte must lie at the
    same distance from a multiple of 64 as the old window's did; `image` is where that window now begins.

    The first four bytes are free for the root's place, or were it before.
    """

    data: bytes
    root: int
    last_value: int
    image: int


def replace_metadata(window: memoryview, root: int, metadata: Sequence[tuple[str, str]]) -> RebuiltGraph:
    """The same tables with other metadata keys and values, whatever their slots mean.

    Offsets in a FlatBuffer are relative, so the old bytes are taken as they are: tables and slots that nobody here
    knows come through unread. Only the two metadata vectors are new, and the root where it had none.
    Raises FormatError subclasses for a broken graph, or one whose parts overlap so that others would change too.
    """
    reader = FlatReader(window)
    table = reader.table(root, "the graph")
    fields = {slot: table.at(slot, 4) for slot in _METADATA_SLOTS}
    if all(fields.values()):
        prefix = bytearray()
        new_root = root
    else:
        prefix, new_root, fields = _new_root(reader, table)
    data = prefix + window + bytes(-(len(prefix) + len(window)) % 8)
    last_text = 0
    for slot, texts in zip(_METADATA_SLOTS, zip(*metadata, strict=True), strict=True):
        LE_U32.pack_into(data, fields[slot], len(data) - fields[slot])
        last_text = _append_texts(data, texts)
    rebuilt = RebuiltGraph(bytes(data), new_root, last_text, len(prefix))
    _require_same(read_graph(window, root), read_graph(memoryview(rebuilt.data), new_root), dict(metadata))
    return rebuilt


def _require_same(old: Graph, new: Graph, metadata: Mapping[str, str]) -> None:
    """Fields of a hostile graph may share their bytes: then changing one of them changes others."""
    variables = [[v._replace(array=None) for v in graph.variables] for graph in (old, new)]
    updaters = [[u[:2] for u in graph.updater] for graph in (old, new)]
    if variables[0] != variables[1] or updaters[0] != updaters[1] or new.metadata != metadata:
        raise LayoutError("parts of the graph overlap its metadata, which can't be replaced for that reason")


def _append_texts(data: bytearray, texts: Sequence[str]) -> int:
    """A vector of strings at the end of `data`. Returns where the bytes of the last one begin."""
    encoded = [text.encode() for text in texts]
    start = len(data)
    data += LE_U32.pack(len(encoded)) + bytes(4 * len(encoded))
    position = start
    for number, text in enumerate(encoded):
        field = start + 4 + 4 * number
        LE_U32.pack_into(data, field, len(data) - field)
        position = len(data) + 4
        data += LE_U32.pack(len(text)) + text + b"\0"
        data += bytes(-len(data) % 4)
    return position


def _new_root(reader: FlatReader, table: Table) -> tuple[bytearray, int, dict[int, int]]:
    """A copy of the root, with room for metadata, to stand before the old bytes."""
    slots = max(len(table.offsets), max(_METADATA_SLOTS) + 1)
    widths = _field_widths(table)
    widths |= dict.fromkeys(_METADATA_SLOTS, 4)
    vtable = bytearray(4 + 2 * slots)
    # Four bytes stay free for the root's place; the fields after the root's own four bytes are 8-aligned.
    root = aligned(4 + len(vtable) + 4, 8) - 4
    placed: dict[int, int] = {}
    end = root + 4
    for slot in sorted(widths, key=lambda slot: -widths[slot]):
        placed[slot] = end
        end += widths[slot] if widths[slot] < 8 else aligned(widths[slot], 8)
    prefix = bytearray(aligned(end, _IMAGE_ALIGNMENT))
    for slot, position in placed.items():
        LE_U16.pack_into(vtable, 4 + 2 * slot, position - root)
    LE_U16.pack_into(vtable, 0, len(vtable))
    LE_U16.pack_into(vtable, 2, end - root)
    vtable_at = root - len(vtable)
    prefix[vtable_at:root] = vtable
    LE_I32.pack_into(prefix, root, len(vtable))
    for slot, position in placed.items():
        if slot not in _METADATA_SLOTS:
            _copy_field(reader, table, slot, widths[slot], prefix, position)
    return prefix, root, {slot: placed[slot] for slot in _METADATA_SLOTS}


def _field_widths(table: Table) -> dict[int, int]:
    """How many bytes each field can have, by where the next one begins."""
    used = sorted((offset, slot) for slot, offset in enumerate(table.offsets) if 4 <= offset < table.size)
    ends = [*(offset for offset, _ in used), table.size][1:]
    widths = {slot: end - offset for (offset, slot), end in zip(used, ends, strict=True)}
    return {slot: 4 if slot in _OFFSET_SLOTS else width for slot, width in widths.items() if width}


def _copy_field(
    reader: FlatReader, table: Table, slot: int, width: int, prefix: bytearray, position: int
) -> None:
    old = table.at(slot, width)
    prefix[position : position + width] = reader.window[old : old + width]
    if slot in _OFFSET_SLOTS or (slot > max(_OFFSET_SLOTS) and _is_offset(reader, old, width)):
        target = reader.follow(old)
        if target + 4 > reader.size:
            raise LayoutError(f"slot {slot} of the graph leads to {target}, the graph ends at {reader.size}")
        LE_U32.pack_into(prefix, position, len(prefix) + target - position)


def _is_offset(reader: FlatReader, position: int, width: int) -> bool:
    """Whether the field of an unknown slot points somewhere: an offset must be moved, a number must not."""
    if width < 4:
        return False
    value = reader.number(LE_U32, position)
    target = position + value
    return value >= 4 and target % 4 == 0 and target + 4 <= reader.size
