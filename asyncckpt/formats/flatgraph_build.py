"""Making a `FlatGraph`: a new one through the `flatbuffers` package, or one that exists with other metadata.

Arrays and the `asyncckpt` block are left as holes, whose places are known at once and whose bytes come later.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from asyncckpt.errors import LayoutError, LimitExceededError, MissingExtraError
from asyncckpt.formats.binary import LE_U16, LE_U32
from asyncckpt.formats.flatgraph import DTYPE_CODES, MAX_GRAPH_BYTES, FlatReader, Graph, Table, read_graph
from asyncckpt.formats.plan import aligned
from asyncckpt.model.dtype import as_bytes_view, dtype_name

INLINE_ALIGNMENT = 16
_IMAGE_ALIGNMENT = 64
_OFFSET_SLOTS = frozenset(range(1, 12))
"""The slots of a FlatGraph that hold offsets; slot 0, the id, is a number."""
_METADATA_SLOTS = (9, 10)

UpdaterState = Mapping[str, Mapping[str, np.ndarray]]
"""parameter → key → array: an optimiser's state as the original keeps it."""


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """A variable to write; `inline_bytes` is the size of the hole for its data, None for a stub."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    inline_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A FlatBuffer with holes: `inline[i]` is where the data of variable i goes, `last_value` where the last
    metadata value begins."""

    data: bytes
    inline: dict[int, int]
    last_value: int


def flatbuffers_module() -> ModuleType:
    """Raises MissingExtraError with the line that installs it."""
    try:
        import flatbuffers
    except ImportError:
        raise MissingExtraError(
            "writing SDNB and SDZ needs flatbuffers: pip install 'asyncckpt[samediff]'"
        ) from None
    module: ModuleType = flatbuffers
    return module


def build_graph(
    variables: Sequence[VariableSpec],
    metadata: Sequence[tuple[str, str]],
    *,
    updater_state: UpdaterState | None = None,
) -> BuiltGraph:
    """A graph of variables only. Raises LimitExceededError beyond 2 GiB, MissingExtraError."""
    expected = _estimate(variables, metadata, updater_state)
    if expected > MAX_GRAPH_BYTES:
        raise LimitExceededError(
            f"the graph would have {expected} bytes, a FlatBuffer holds {MAX_GRAPH_BYTES}: "
            "store updater state as variables, or lower inline_below"
        )
    builder = flatbuffers_module().Builder(expected)
    # A FlatBuffer grows from its end: what is made first stands last, so the tables stay together in front.
    holes = {i: _hole(builder, v.inline_bytes) for i, v in enumerate(variables) if v.inline_bytes is not None}
    updater = [_updater(builder, name, state) for name, state in (updater_state or {}).items()]
    keys, values = zip(
        *((builder.CreateString(k), builder.CreateString(v)) for k, v in metadata), strict=True
    )
    shapes: dict[tuple[int, ...], int] = {}  # equal shapes are stored once: offsets may meet
    tables = []
    for number, spec in enumerate(variables):
        shape = shapes.get(spec.shape)
        if shape is None:
            shape = shapes[spec.shape] = _shape(builder, spec.shape)
        tables.append(_variable(builder, number, spec, shape, holes.get(number)))
    vectors = {
        1: _offsets(builder, tables),
        2: _offsets(builder, []),
        3: _offsets(builder, []),
        4: _configuration(builder),
        9: _offsets(builder, keys),
        10: _offsets(builder, values),
    }
    if updater:
        vectors[8] = _offsets(builder, updater)
    builder.StartObject(11)
    for slot in reversed(vectors):
        builder.PrependUOffsetTRelativeSlot(slot, vectors[slot], 0)
    builder.Finish(builder.EndObject())
    data = bytes(builder.Output())
    inline = {number: len(data) - hole + 4 for number, hole in holes.items()}
    return BuiltGraph(data, inline, len(data) - values[-1] + 4)


def _estimate(
    variables: Sequence[VariableSpec], metadata: Sequence[tuple[str, str]], updater: UpdaterState | None
) -> int:
    inline = sum((v.inline_bytes or 0) + INLINE_ALIGNMENT for v in variables)
    tables = sum(160 + 2 * len(v.name.encode()) + 16 * len(v.shape) for v in variables)
    texts = sum(len(k.encode()) + len(v.encode()) + 24 for k, v in metadata)
    states = sum(
        array.nbytes + 256 + 3 * len(key) + 3 * len(name)
        for name, state in (updater or {}).items()
        for key, array in state.items()
    )
    return 1024 + inline + tables + texts + states


def _hole(builder: Any, size: int) -> int:
    builder.StartVector(1, size, INLINE_ALIGNMENT)
    builder.head -= size
    offset: int = builder.EndVector()
    return offset


def _offsets(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    vector: int = builder.EndVector()
    return vector


def _shape(builder: Any, shape: tuple[int, ...]) -> int:
    builder.StartVector(8, len(shape), 8)
    for dimension in reversed(shape):
        builder.PrependInt64(dimension)
    vector: int = builder.EndVector()
    return vector


def _variable(builder: Any, number: int, spec: VariableSpec, shape: int, hole: int | None) -> int:
    code = DTYPE_CODES[spec.dtype]
    array = 0 if hole is None else _array(builder, shape, hole, code)
    name = builder.CreateString(spec.name)
    builder.StartObject(2)
    builder.PrependInt32Slot(0, number + 1, 0)
    identity = builder.EndObject()
    builder.StartObject(10)
    builder.PrependInt32Slot(5, -1, 0)
    if array:
        builder.PrependUOffsetTRelativeSlot(4, array, 0)
    builder.PrependUOffsetTRelativeSlot(3, shape, 0)
    builder.PrependUOffsetTRelativeSlot(1, name, 0)
    builder.PrependUOffsetTRelativeSlot(0, identity, 0)
    builder.PrependInt8Slot(2, code, 0)
    table: int = builder.EndObject()
    return table


def _array(builder: Any, shape: int, buffer: int, code: int) -> int:
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, buffer, 0)
    builder.PrependUOffsetTRelativeSlot(0, shape, 0)
    builder.PrependInt8Slot(2, code, 0)
    table: int = builder.EndObject()
    return table


def _updater(builder: Any, parameter: str, state: Mapping[str, np.ndarray]) -> int:
    arrays = []
    for array in state.values():
        normal, view = as_bytes_view(array)
        buffer = builder.CreateByteVector(bytes(view))
        code = DTYPE_CODES[dtype_name(normal.dtype)]
        arrays.append(_array(builder, _shape(builder, normal.shape), buffer, code))
    keys = _offsets(builder, [builder.CreateString(key) for key in state])
    values = _offsets(builder, arrays)
    name = builder.CreateString(parameter)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(2, values, 0)
    builder.PrependUOffsetTRelativeSlot(1, keys, 0)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    table: int = builder.EndObject()
    return table


def _configuration(builder: Any) -> int:
    """What the original writes by default: id -1, output mode 3, timings on."""
    builder.StartObject(5)
    builder.PrependInt64Slot(0, -1, 0)
    builder.PrependBoolSlot(4, True, False)
    builder.PrependInt8Slot(3, 3, 0)
    table: int = builder.EndObject()
    return table


# -- other metadata for a graph that exists --------------------------------------------------------------------


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
    struct.pack_into("<i", prefix, root, len(vtable))
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
