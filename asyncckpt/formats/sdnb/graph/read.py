"""SameDiff's `FlatGraph`, the FlatBuffer inside an SDNB file. Little-endian.

Read here, over the tables of tables.py. Written through the `flatbuffers` package, in build.py.

============== =====================================================================================
table          slots
============== =====================================================================================
FlatGraph      0 id, 1 variables, 2 nodes, 3 outputs, 4 configuration, 5 placeholders, 6 lossVariables,
               7 trainingConfig, 8 updaterState, 9 metadataKeys, 10 metadataValues, 11 subInstances
FlatVariable   0 id (IntPair), 1 name, 2 dtype, 3 shape, 4 ndarray, 5 device, 6 variabletype, 7-9 control deps
FlatArray      0 shape, 1 buffer, 2 dtype, 3 byteOrder, 4 bufferChunks, 5 totalBufferSize,
               6 externalDataFilename, 7 isExternal
BufferChunk    0 index, 1 data
UpdaterState   0 paramName, 1 updaterStateKeys, 2 updaterStateValues
FlatNode       0 id, 1 name, 2 opType, …
============== =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError
from asyncckpt.formats.kit.binary import LE_I32, LE_I64, LE_U16, LE_U32
from asyncckpt.formats.sdnb.graph.tables import FlatReader, Table
from asyncckpt.model.metadata import Json
from asyncckpt.model.ranges import ByteRange

MAX_RANK = 32
MAX_GRAPH_BYTES = 2**31 - 1
DTYPE_CODES = {
    "bool": 1,
    "float16": 3,
    "float32": 5,
    "float64": 6,
    "int8": 7,
    "int16": 8,
    "int32": 9,
    "int64": 10,
    "uint8": 11,
    "uint16": 12,
    "uint32": 13,
    "uint64": 14,
    "bfloat16": 17,
}
DTYPES_BY_CODE = {code: name for name, code in DTYPE_CODES.items()}
TEXT_CODES = {50: "UTF8", 51: "UTF16", 52: "UTF32"}
VARIABLE, CONSTANT, ARRAY, PLACEHOLDER = range(4)

_MAX_SHAPE_NUMBERS = 2 * MAX_RANK + 4
"""A whole shape descriptor: rank, dimensions, strides, and three more."""
_MIN_GRAPH_SLOTS = 2
_MAX_SNIFFED_SLOTS = 24
_DESCRIBED = 256
"""Names listed by `_describe`, at most, of each kind."""


@dataclass(frozen=True, slots=True)
class FlatArray:
    """An array inside the graph. `shape` is as stored: dimensions, or the original's shape descriptor.

    `spans` are bytes of the window in which the graph lies; None where it holds none.
    """

    shape: tuple[int, ...] | None
    dtype: int
    byte_order: int
    spans: tuple[ByteRange, ...] | None
    external: str | None = None

    def resolve(self, shape: tuple[int, ...] | None) -> tuple[tuple[int, ...], Literal["C", "F"], bool]:
        """Dimensions, memory order and whether the bytes are big-endian; `shape` is what the variable says.

        The older serialiser stores the whole descriptor (rank, dimensions, strides, flags, order), and then
        `byteOrder` is the order of the bytes; the newer one stores dimensions, and it is the memory order.
        """
        stored = self.shape
        if stored is None or stored == shape:
            return shape or (), "F" if self.byte_order == 1 else "C", False
        rank = stored[0] if stored else 0
        described = len(stored) == 2 * rank + 4 and stored[-1] in (99, 102)
        if described and (shape is None or shape == stored[1 : 1 + rank]):
            return stored[1 : 1 + rank], "F" if stored[-1] == 102 else "C", self.byte_order == 1
        if shape is not None:
            raise LayoutError(f"the shape {list(stored)} stands beside the shape {list(shape)}")
        return stored, "F" if self.byte_order == 1 else "C", False


class Variable(NamedTuple):
    """One variable. `shape` is None where the graph does not say it, as for a scalar."""

    name: str
    dtype: int
    shape: tuple[int, ...] | None
    kind: int
    array: FlatArray | None


class UpdaterArray(NamedTuple):
    """One array of an optimiser's state, as the original keeps it."""

    parameter: str
    key: str
    array: FlatArray


@dataclass(frozen=True, slots=True)
class Graph:
    """What a FlatGraph says. `root` is its place in the window, for those who rebuild it."""

    variables: tuple[Variable, ...]
    metadata: dict[str, str]
    updater: tuple[UpdaterArray, ...]
    root: int
    details: dict[str, Json] = field(default_factory=dict)


def read_graph(window: memoryview, root: int) -> Graph:
    """Decode the graph whose root table lies at `root` in `window`. Raises FormatError subclasses."""
    reader = FlatReader(window)
    table = reader.table(root, "the graph")
    metadata = _read_metadata(reader, table)
    return Graph(
        variables=tuple(_read_variables(reader, table)),
        metadata=metadata,
        updater=tuple(_read_updater(reader, table)),
        root=root,
        details=_describe(reader, table),
    )


def looks_like_graph(head: memoryview, size: int) -> bool:
    """Whether a bare file may be a FlatGraph: a plausible root table with plausible slots, variables among them."""
    if len(head) < 12:
        return False
    try:
        reader = FlatReader(head)
        root = reader.number(LE_U32, 0)
        if not 8 <= root < min(size, len(head) - 4) or root % 4:
            return False
        vtable = root - reader.number(LE_I32, root)
        if not 4 <= vtable < root or vtable % 2:
            return False
        vtable_bytes, table_bytes = reader.number(LE_U16, vtable), reader.number(LE_U16, vtable + 2)
        slots = vtable_bytes // 2 - 2
        if (
            vtable_bytes % 2
            or not _MIN_GRAPH_SLOTS <= slots <= _MAX_SNIFFED_SLOTS
            or vtable + vtable_bytes > root
        ):
            return False
        offsets = [reader.number(LE_U16, vtable + 4 + 2 * slot) for slot in range(slots)]
    except TruncatedError:
        return False
    used = [offset for offset in offsets if offset]
    inside = all(4 <= offset <= table_bytes - 1 for offset in used)
    return offsets[1] != 0 and inside and len(set(used)) == len(used) and root + table_bytes <= size


# -- the graph's parts -----------------------------------------------------------------------------------------


def _read_metadata(reader: FlatReader, graph: Table) -> dict[str, str]:
    keys = list(reader.texts(graph, 9, "a metadata key"))
    values = list(reader.texts(graph, 10, "a metadata value"))
    if len(keys) != len(values):
        raise LayoutError(f"the graph has {len(keys)} metadata keys and {len(values)} values")
    if len(set(keys)) != len(keys):
        raise LayoutError("the graph has a metadata key twice")
    return dict(zip(keys, values, strict=True))


def _read_variables(reader: FlatReader, graph: Table) -> Iterator[Variable]:
    seen: set[str] = set()
    for table in reader.tables(graph, 1, "a variable"):
        name = reader.optional_text(table, 1, "a variable's name")
        if name is None:
            raise LayoutError(f"the variable at {table.position} has no name")
        if name in seen:
            raise LayoutError(f"two variables have the name {name!r}")
        seen.add(name)
        shape = _read_shape(reader, table, 3, "a shape")
        if shape is not None and len(shape) > MAX_RANK:
            raise LimitExceededError(f"{name!r} has rank {len(shape)}, at most {MAX_RANK} is allowed")
        position = table.at(4, 4)
        array = (
            _read_array(reader, reader.table(reader.follow(position), "an array"), name) if position else None
        )
        yield Variable(name, reader.byte(table, 2), shape, reader.byte(table, 6), array)


def _read_shape(reader: FlatReader, table: Table, slot: int, what: str) -> tuple[int, ...] | None:
    position = table.at(slot, 4)
    return reader.numbers(position, what, limit=_MAX_SHAPE_NUMBERS) if position else None


def _read_array(reader: FlatReader, table: Table, name: str) -> FlatArray:
    external = reader.optional_text(table, 6, "an external file's name")
    is_external = reader.byte(table, 7) != 0
    position = table.at(1, 4)
    if position:
        start, count = reader.vector(position, 1, f"the buffer of {name!r}")
        spans: tuple[ByteRange, ...] | None = (ByteRange(start, start + count),)
    else:
        spans = tuple(_read_chunks(reader, table, name)) or None
    return FlatArray(
        shape=_read_shape(reader, table, 0, f"the shape of {name!r}"),
        dtype=reader.byte(table, 2),
        byte_order=reader.byte(table, 3),
        spans=spans,
        external=external if is_external or spans is None else None,
    )


def _read_chunks(reader: FlatReader, table: Table, name: str) -> list[ByteRange]:
    """The pieces of a large buffer, in the order of their index."""
    chunks = []
    for chunk in reader.tables(table, 4, f"a chunk of {name!r}"):
        at = chunk.at(0, 8)
        index = reader.number(LE_I64, at) if at else 0
        position = chunk.at(1, 4)
        if position:
            start, count = reader.vector(position, 1, f"a chunk of {name!r}")
            chunks.append((index, ByteRange(start, start + count)))
    chunks.sort(key=lambda chunk: chunk[0])
    spans = [span for _, span in chunks]
    at = table.at(5, 8)
    if spans and at and (total := reader.number(LE_I64, at)):
        found = sum(span.size for span in spans)
        if found != total:
            raise LayoutError(f"the chunks of {name!r} have {found} bytes, {total} were announced")
    return spans


def _read_updater(reader: FlatReader, graph: Table) -> Iterator[UpdaterArray]:
    seen: set[tuple[str, str]] = set()
    for state in reader.tables(graph, 8, "an updater state"):
        parameter = reader.optional_text(state, 0, "an updater's parameter") or ""
        keys = list(reader.texts(state, 1, "an updater's key"))
        if len(keys) != reader.count(state, 2, "an updater's arrays"):
            raise LayoutError(f"the updater state of {parameter!r} has {len(keys)} keys and other arrays")
        for key, table in zip(keys, reader.tables(state, 2, "an updater's array"), strict=True):
            if (parameter, key) in seen:
                raise LayoutError(f"the updater state of {parameter!r} has {key!r} twice")
            seen.add((parameter, key))
            yield UpdaterArray(parameter, key, _read_array(reader, table, f"{parameter}.{key}"))


def _describe(reader: FlatReader, graph: Table) -> dict[str, Json]:
    """What `inspect` shows of a graph: counts, and the first names of each kind."""

    def names(slot: int, what: str) -> list[str]:
        return list(reader.texts(graph, slot, what, limit=_DESCRIBED))

    details: dict[str, Json] = {
        "variables": reader.count(graph, 1, "variables"),
        "nodes": reader.count(graph, 2, "nodes"),
        "outputs": reader.count(graph, 3, "outputs"),
        "subInstances": reader.count(graph, 11, "sub-instances"),
    }
    nodes = []
    for number, node in enumerate(reader.tables(graph, 2, "a node")):
        if number == _DESCRIBED:
            break
        nodes.append(reader.optional_text(node, 1, "a node's name") or "")
    optional: dict[str, Json] = {
        "nodeNames": nodes,
        "placeholders": names(5, "a placeholder"),
        "lossVariables": names(6, "a loss variable"),
        "trainingConfig": reader.optional_text(graph, 7, "the training configuration"),
        "unknownSlots": [slot for slot, offset in enumerate(graph.offsets) if slot > 11 and offset],
    }
    return details | {key: value for key, value in optional.items() if value}
