"""Making a new `FlatGraph`, through the `flatbuffers` package.

Arrays and the `asyncckpt` block are left as holes, whose places are known at once and whose bytes come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from asyncckpt.errors import LimitExceededError, MissingExtraError
from asyncckpt.formats.sdnb.graph.read import DTYPE_CODES, MAX_GRAPH_BYTES
from asyncckpt.model.dtype import as_bytes_view, dtype_name

INLINE_ALIGNMENT = 16

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
