"""FlatGraphs: an independent reader, foreign tables that come through, and offsets that lie."""

from __future__ import annotations

import struct
from typing import Any

import flatbuffers
import flatbuffers.table
import numpy as np
import pytest
from hypothesis import given

from asyncckpt.errors import FormatError, LayoutError, LimitExceededError
from asyncckpt.formats.sdnb.graph.amend import replace_metadata
from asyncckpt.formats.sdnb.graph.build import VariableSpec, build_graph
from asyncckpt.formats.sdnb.graph.read import FlatArray, Graph, looks_like_graph, read_graph
from asyncckpt.model.ranges import ByteRange
from tests.formats.attacks import GOLDEN, HOSTILE_NUMBERS, bit_flips, mutations, outcome, with_number

BUILT = build_graph(
    [
        VariableSpec("w", "float32", (2, 3), 24),
        VariableSpec("stub", "int64", ()),
        VariableSpec("ü", "bool", (0,), 0),
    ],
    [("creation.time", "1"), ("last", "value")],
    updater_state={"w": {"M": np.arange(6, dtype="<f4").reshape(2, 3), "V": np.zeros(2)}},
)


def read(data: bytes) -> Graph:
    (root,) = struct.unpack_from("<I", data) if len(data) >= 4 else (0,)
    return read_graph(memoryview(data), root)


def test_what_was_built_is_read() -> None:
    graph = read(BUILT.data)
    assert [(v.name, v.dtype, v.shape, v.kind) for v in graph.variables] == [
        ("w", 5, (2, 3), 0),
        ("stub", 10, (), 0),
        ("ü", 1, (0,), 0),
    ]
    assert graph.variables[1].array is None
    inline = graph.variables[0].array
    assert inline is not None
    assert inline.spans == (ByteRange(BUILT.inline[0], BUILT.inline[0] + 24),)
    assert graph.metadata == {"creation.time": "1", "last": "value"}
    assert BUILT.data[BUILT.last_value : BUILT.last_value + 5] == b"value"
    states = [(state.parameter, state.key) for state in graph.updater]
    assert states == [("w", "M"), ("w", "V")]
    (span,) = graph.updater[0].array.spans or ()
    assert BUILT.data[span.start : span.end] == np.arange(6, dtype="<f4").tobytes()


def test_inline_data_is_aligned() -> None:
    graph = build_graph([VariableSpec(str(i), "float64", (i,), 8 * i) for i in range(9)], [("k", "v")])
    assert {position % 16 for position in graph.inline.values()} == {0}


def test_flatbuffers_own_reader_finds_the_same() -> None:
    (root,) = struct.unpack_from("<I", BUILT.data)
    table = flatbuffers.table.Table(bytearray(BUILT.data), root)
    variables = table.Offset(4 + 2 * 1)
    assert table.VectorLen(variables) == 3
    first = flatbuffers.table.Table(table.Bytes, table.Indirect(table.Vector(variables)))
    assert first.String(first.Offset(4 + 2 * 1) + first.Pos) == b"w"
    shape = first.Offset(4 + 2 * 3)
    assert first.VectorLen(shape) == 2
    assert first.Get(flatbuffers.number_types.Int64Flags, first.Vector(shape) + 8) == 3


# -- foreign graphs ----------------------------------------------------------------------------------------------


def foreign(*, metadata: bool = True, slots: int = 16) -> bytes:
    """A graph with a node, a training configuration and three slots that nobody knows yet."""
    builder = flatbuffers.Builder(64)
    text = builder.CreateString("a text in a slot of the future")
    config = builder.CreateString('{"updater":"adam"}')
    name = builder.CreateString("matmul_1")
    builder.StartObject(30)
    builder.PrependUOffsetTRelativeSlot(1, name, 0)
    builder.PrependInt64Slot(25, 77, 0)
    node = builder.EndObject()
    nodes = _vector(builder, [node])
    keys = _vector(builder, [builder.CreateString("made by")])
    values = _vector(builder, [builder.CreateString("somebody")])
    builder.StartObject(slots)
    builder.PrependInt64Slot(0, 42, 0)
    builder.PrependUOffsetTRelativeSlot(2, nodes, 0)
    builder.PrependUOffsetTRelativeSlot(7, config, 0)
    if metadata:
        builder.PrependUOffsetTRelativeSlot(9, keys, 0)
        builder.PrependUOffsetTRelativeSlot(10, values, 0)
    builder.PrependUOffsetTRelativeSlot(13, text, 0)
    builder.PrependInt64Slot(14, -5, 0)
    builder.PrependInt8Slot(15, 9, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _vector(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    vector: int = builder.EndVector()
    return vector


@pytest.mark.parametrize("metadata", [True, False])
def test_other_metadata_leaves_every_other_table_as_it_was(metadata: bool) -> None:
    old = foreign(metadata=metadata)
    (root,) = struct.unpack_from("<I", old)
    rebuilt = replace_metadata(memoryview(old), root, [("k", "v"), ("made by", "us")])
    graph = read_graph(memoryview(rebuilt.data), rebuilt.root)
    assert graph.metadata == {"k": "v", "made by": "us"}
    assert rebuilt.data[rebuilt.last_value : rebuilt.last_value + 2] == b"us"
    assert graph.details["nodeNames"] == ["matmul_1"]
    assert graph.details["trainingConfig"] == '{"updater":"adam"}'
    assert graph.details["unknownSlots"] == [13, 14, 15]
    table = flatbuffers.table.Table(bytearray(rebuilt.data), rebuilt.root)
    flags = flatbuffers.number_types
    assert table.Get(flags.Int64Flags, table.Pos + table.Offset(4)) == 42
    assert table.String(table.Offset(4 + 2 * 13) + table.Pos) == b"a text in a slot of the future"
    assert table.Get(flags.Int64Flags, table.Pos + table.Offset(4 + 2 * 14)) == -5
    assert table.Get(flags.Int8Flags, table.Pos + table.Offset(4 + 2 * 15)) == 9
    node = flatbuffers.table.Table(table.Bytes, table.Indirect(table.Vector(table.Offset(4 + 2 * 2))))
    assert node.Get(flags.Int64Flags, node.Pos + node.Offset(4 + 2 * 25)) == 77


def test_the_samples_are_recognised_as_bare_graphs() -> None:
    for path in sorted((GOLDEN / "sdnb").glob("*.sdnb")):
        graph = path.read_bytes()[32:]
        if len(graph) > 64:
            assert looks_like_graph(memoryview(graph)[:64], len(graph)), path.name


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GPTRSCHK" + bytes(56),
        b"PCLM\x05" + bytes(59),
        b"\x58\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}'.ljust(56),
        bytes(64),
        b"\xff" * 64,
        b"METAGRAP" + bytes(56),
        bytes(range(64)),
    ],
)
def test_other_files_are_not_taken_for_graphs(head: bytes) -> None:
    assert not looks_like_graph(memoryview(head), 10_000)


@pytest.mark.parametrize(
    ("stored", "order", "declared", "expected"),
    [
        ((2, 3), 0, (2, 3), ((2, 3), "C", False)),
        ((2, 3), 1, (2, 3), ((2, 3), "F", False)),
        ((2, 3), 0, None, ((2, 3), "C", False)),
        ((2, 2, 3, 3, 1, 0, 1, 99), 1, (2, 3), ((2, 3), "C", True)),
        ((2, 2, 3, 1, 2, 0, 1, 102), 0, None, ((2, 3), "F", False)),
        ((0, 0, 1, 99), 0, None, ((), "C", False)),
        (None, 0, (4,), ((4,), "C", False)),
    ],
)
def test_shapes_and_shape_descriptors(stored: Any, order: int, declared: Any, expected: Any) -> None:
    assert FlatArray(stored, 5, order, ()).resolve(declared) == expected


def test_shapes_that_contradict_each_other() -> None:
    with pytest.raises(LayoutError, match=r"\[2, 3\] stands beside the shape \[3, 2\]"):
        FlatArray((2, 3), 5, 0, ()).resolve((3, 2))


# -- attacks -----------------------------------------------------------------------------------------------------


def test_every_truncation_is_refused_or_reads_less() -> None:
    whole = read(BUILT.data)
    for size in range(len(BUILT.data)):
        found = outcome(read, BUILT.data[:size])
        assert found is None or len(found.variables) <= len(whole.variables), size


@pytest.mark.thorough
def test_every_flipped_bit_ends_in_a_format_error_or_a_graph() -> None:
    for _, what, data in bit_flips(BUILT.data):
        found = outcome(read, data)
        assert found is None or isinstance(found, Graph), what


@pytest.mark.thorough
@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("code", ["<H", "<I", "<Q"])
def test_hostile_numbers_anywhere(value: int, code: str) -> None:
    for at in range(0, len(BUILT.data) - struct.calcsize(code), 2):
        found = outcome(read, with_number(BUILT.data, at, code, value))
        assert found is None or isinstance(found, Graph), at


@given(mutations(BUILT.data))
def test_mutations_end_in_a_format_error_or_a_graph(data: bytes) -> None:
    try:
        graph = read(data)
    except FormatError:
        return
    assert sum(len(text) for text in graph.metadata.values()) <= 4096 + 2 * len(data)


def test_many_offsets_to_one_long_string_are_refused() -> None:
    builder = flatbuffers.Builder(64)
    long = builder.CreateString("x" * 100_000)
    keys = _vector(builder, [builder.CreateString(str(i)) for i in range(1000)])
    values = _vector(builder, [long] * 1000)
    builder.StartObject(11)
    builder.PrependUOffsetTRelativeSlot(9, keys, 0)
    builder.PrependUOffsetTRelativeSlot(10, values, 0)
    builder.Finish(builder.EndObject())
    with pytest.raises(LimitExceededError, match="strings are longer than the graph"):
        read(bytes(builder.Output()))


def test_two_variables_of_one_name_are_refused() -> None:
    twice = build_graph([VariableSpec("w", "int8", ()), VariableSpec("w", "int8", ())], [("k", "v")])
    with pytest.raises(LayoutError, match="two variables have the name 'w'"):
        read(twice.data)


def test_a_graph_beyond_two_gib_is_refused_before_it_is_built() -> None:
    with pytest.raises(LimitExceededError, match="a FlatBuffer holds 2147483647"):
        build_graph([VariableSpec("w", "int8", (2**31,), 2**31)], [("k", "v")])
