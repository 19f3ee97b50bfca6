"""SameDiff's `FlatGraph`, the FlatBuffer inside an SDNB file. Little-endian.

Read here without trusting any offset: every table, vector and string is checked against the bytes that there are,
and what is decoded in all is bounded by them. Written through the `flatbuffers` package, in `flatgraph_build`.

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

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError
from asyncckpt.formats.binary import LE_I32, LE_I64, LE_U16, LE_U32, decode_utf8
from asyncckpt.model.metadata import Json

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

_MIN_GRAPH_SLOTS = 2
_MAX_SNIFFED_SLOTS = 24
_DESCRIBED = 256
"""Names listed by `describe`, at most, of each kind."""
T = TypeVar("T")


class Span(NamedTuple):
    """Bytes [start, end) of the window in which the graph lies."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FlatArray:
    """An array inside the graph. `shape` is as stored: dimensions, or the original's shape descriptor."""

    shape: tuple[int, ...] | None
    dtype: int
    byte_order: int
    spans: tuple[Span, ...] | None
    external: str | None = None

    @property
    def size(self) -> int:
        return sum(span.end - span.start for span in self.spans or ())

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
    """What a FlatGraph says. `root` and `fields` are positions in the window, for those who rebuild it."""

    variables: tuple[Variable, ...]
    metadata: dict[str, str]
    value_positions: dict[str, int]
    updater: tuple[UpdaterArray, ...]
    root: int
    details: dict[str, Json] = field(default_factory=dict)


def read_graph(window: memoryview, root: int) -> Graph:
    """Decode the graph whose root table lies at `root` in `window`. Raises FormatError subclasses."""
    reader = FlatReader(window)
    table = reader.table(root, "the graph")
    metadata, positions = _read_metadata(reader, table)
    return Graph(
        variables=tuple(_read_variables(reader, table)),
        metadata=metadata,
        value_positions=positions,
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


# -- tables ----------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table at `position`; `offsets[slot]` is 0 where a field is absent."""

    position: int
    size: int
    offsets: tuple[int, ...]

    def at(self, slot: int, width: int) -> int:
        """Where the field lies, 0 where it is absent. Raises LayoutError when it leaves the table."""
        offset = self.offsets[slot] if slot < len(self.offsets) else 0
        if offset == 0:
            return 0
        if offset < 4 or offset + width > self.size:
            raise LayoutError(f"slot {slot} of the table at {self.position} lies outside of it")
        return self.position + offset


class FlatReader:
    """FlatBuffers over bytes that can't be trusted. Positions count from the window's start.

    Several offsets may lead to the same string, so the text that is decoded in all is limited by a budget.
    """

    def __init__(self, window: memoryview) -> None:
        self.window = window
        self.size = len(window)
        self._vtables: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._budget = 4096 + 2 * self.size

    def number(self, layout: struct.Struct, position: int) -> int:
        if position < 0 or position + layout.size > self.size:
            raise TruncatedError(f"the graph needs {layout.size} bytes at {position}, it has {self.size}")
        value: int = layout.unpack_from(self.window, position)[0]
        return value

    def table(self, position: int, what: str) -> Table:
        vtable = position - self.number(LE_I32, position)
        known = self._vtables.get(vtable)
        if known is None:
            known = self._vtables[vtable] = self._vtable(vtable, what)
        size, offsets = known
        if position + size > self.size:
            raise TruncatedError(f"{what} at {position} has {size} bytes, the graph ends at {self.size}")
        return Table(position, size, offsets)

    def _vtable(self, position: int, what: str) -> tuple[int, tuple[int, ...]]:
        length = self.number(LE_U16, position)
        size = self.number(LE_U16, position + 2)
        if length < 4 or length % 2 or size < 4:
            raise LayoutError(f"the vtable of {what} at {position} has {length} bytes for a table of {size}")
        if position + length > self.size:
            raise TruncatedError(f"the vtable of {what} at {position} leaves the graph")
        return size, struct.unpack_from(f"<{length // 2 - 2}H", self.window, position + 4)

    def follow(self, position: int) -> int:
        return position + self.number(LE_U32, position)

    def vector(self, position: int, item_bytes: int, what: str) -> tuple[int, int]:
        """The start and the count of the vector that the field at `position` points to."""
        start = self.follow(position) + 4
        count = self.number(LE_U32, start - 4)
        if count * item_bytes > self.size - start:
            raise TruncatedError(f"{what} has {count} items of {item_bytes} bytes, the graph ends before")
        return start, count

    def text(self, position: int, what: str) -> tuple[str, int]:
        """The string that the field at `position` points to, and where its bytes begin."""
        start, count = self.vector(position, 1, what)
        self._budget -= count
        if self._budget < 0:
            raise LimitExceededError(f"the graph's strings are longer than the graph itself, at {what}")
        return decode_utf8(self.window[start : start + count], what), start

    def numbers(self, position: int, what: str) -> tuple[int, ...]:
        start, count = self.vector(position, 8, what)
        if count > 2 * MAX_RANK + 4:
            raise LimitExceededError(f"{what} has {count} numbers, at most {2 * MAX_RANK + 4} are read")
        return struct.unpack_from(f"<{count}q", self.window, start)

    def tables(self, table: Table, slot: int, what: str) -> Iterator[Table]:
        position = table.at(slot, 4)
        if position:
            start, count = self.vector(position, 4, what)
            for number in range(count):
                yield self.table(self.follow(start + 4 * number), what)

    def texts(
        self, table: Table, slot: int, what: str, *, limit: int | None = None
    ) -> Iterator[tuple[str, int]]:
        position = table.at(slot, 4)
        if position:
            start, count = self.vector(position, 4, what)
            for number in range(count if limit is None else min(count, limit)):
                yield self.text(start + 4 * number, what)

    def count(self, table: Table, slot: int, what: str) -> int:
        position = table.at(slot, 4)
        return self.vector(position, 4, what)[1] if position else 0

    def optional(self, table: Table, slot: int, read: Callable[[int, str], T], what: str) -> T | None:
        position = table.at(slot, 4)
        return read(position, what) if position else None

    def byte(self, table: Table, slot: int) -> int:
        position = table.at(slot, 1)
        return self.window[position] if position else 0


# -- the graph's parts -----------------------------------------------------------------------------------------


def _read_metadata(reader: FlatReader, graph: Table) -> tuple[dict[str, str], dict[str, int]]:
    keys = [key for key, _ in reader.texts(graph, 9, "a metadata key")]
    values = list(reader.texts(graph, 10, "a metadata value"))
    if len(keys) != len(values):
        raise LayoutError(f"the graph has {len(keys)} metadata keys and {len(values)} values")
    if len(set(keys)) != len(keys):
        raise LayoutError("the graph has a metadata key twice")
    texts = {key: text for key, (text, _) in zip(keys, values, strict=True)}
    return texts, {key: start for key, (_, start) in zip(keys, values, strict=True)}


def _read_variables(reader: FlatReader, graph: Table) -> Iterator[Variable]:
    seen: set[str] = set()
    for table in reader.tables(graph, 1, "a variable"):
        position = table.at(1, 4)
        if not position:
            raise LayoutError(f"the variable at {table.position} has no name")
        name = reader.text(position, "a variable's name")[0]
        if name in seen:
            raise LayoutError(f"two variables have the name {name!r}")
        seen.add(name)
        position = table.at(3, 4)
        shape = _dimensions(reader.numbers(position, "a shape"), name) if position else None
        position = table.at(4, 4)
        array = (
            _read_array(reader, reader.table(reader.follow(position), "an array"), name) if position else None
        )
        yield Variable(name, reader.byte(table, 2), shape, reader.byte(table, 6), array)


def _dimensions(numbers: tuple[int, ...], name: str) -> tuple[int, ...]:
    if len(numbers) > MAX_RANK:
        raise LimitExceededError(f"{name!r} has rank {len(numbers)}, at most {MAX_RANK} is allowed")
    return numbers


def _read_array(reader: FlatReader, table: Table, name: str) -> FlatArray:
    external = reader.optional(table, 6, reader.text, "an external file's name")
    is_external = reader.byte(table, 7) != 0
    position = table.at(1, 4)
    if position:
        start, count = reader.vector(position, 1, f"the buffer of {name!r}")
        spans: tuple[Span, ...] | None = (Span(start, start + count),)
    else:
        spans = tuple(_read_chunks(reader, table, name)) or None
    return FlatArray(
        shape=reader.optional(table, 0, reader.numbers, f"the shape of {name!r}"),
        dtype=reader.byte(table, 2),
        byte_order=reader.byte(table, 3),
        spans=spans,
        external=external[0] if external and (is_external or spans is None) else None,
    )


def _read_chunks(reader: FlatReader, table: Table, name: str) -> list[Span]:
    """The pieces of a large buffer, in the order of their index."""
    chunks = []
    for chunk in reader.tables(table, 4, f"a chunk of {name!r}"):
        at = chunk.at(0, 8)
        index = reader.number(LE_I64, at) if at else 0
        position = chunk.at(1, 4)
        if position:
            start, count = reader.vector(position, 1, f"a chunk of {name!r}")
            chunks.append((index, Span(start, start + count)))
    chunks.sort(key=lambda chunk: chunk[0])
    spans = [span for _, span in chunks]
    at = table.at(5, 8)
    if spans and at and (total := reader.number(LE_I64, at)):
        found = sum(span.end - span.start for span in spans)
        if found != total:
            raise LayoutError(f"the chunks of {name!r} have {found} bytes, {total} were announced")
    return spans


def _read_updater(reader: FlatReader, graph: Table) -> Iterator[UpdaterArray]:
    seen: set[tuple[str, str]] = set()
    for state in reader.tables(graph, 8, "an updater state"):
        position = state.at(0, 4)
        parameter = reader.text(position, "an updater's parameter")[0] if position else ""
        keys = [key for key, _ in reader.texts(state, 1, "an updater's key")]
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
        return [text for text, _ in reader.texts(graph, slot, what, limit=_DESCRIBED)]

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
        position = node.at(1, 4)
        nodes.append(reader.text(position, "a node's name")[0] if position else "")
    optional: dict[str, Json] = {
        "nodeNames": nodes,
        "placeholders": names(5, "a placeholder"),
        "lossVariables": names(6, "a loss variable"),
    }
    config = reader.optional(graph, 7, reader.text, "the training configuration")
    if config:
        optional["trainingConfig"] = config[0]
    unknown = [slot for slot, offset in enumerate(graph.offsets) if slot > 11 and offset]
    if unknown:
        optional["unknownSlots"] = unknown
    return details | {key: value for key, value in optional.items() if value}
