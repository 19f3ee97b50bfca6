"""The fields of an MLDF file beyond their descriptors: long names, arguments as JSON, and where rows lie.

A descriptor has room for 63 bytes of name and 128 of arguments. What does not fit is stored in the first sample's
cell of a JSON field named `__schema__`: an object with one member for each such field, by the name in its
descriptor (`__field_<number>__` where the name itself does not fit), holding `name`, `arguments`, or both.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from asyncckpt.errors import LayoutError, LimitExceededError, TruncatedError
from asyncckpt.formats.kit.binary import encode_utf8
from asyncckpt.formats.kit.index import FileInfo, Need, need_exactly
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.mldf.header import (
    BYTES_CELL,
    HEADER_END,
    MAX_ARGUMENT_BYTES,
    MAX_FIELDS,
    MAX_NAME_BYTES,
    Descriptor,
    Header,
    TypeId,
    decode_descriptors,
    descriptor_bytes,
    require_table,
    row_offsets,
)
from asyncckpt.model.dtype import numpy_dtype
from asyncckpt.model.metadata import Json, TensorMetadata

SCHEMA_FIELD = "__schema__"
BLOCK_FIELD = "__asyncckpt__"
OWN_FIELDS = (BLOCK_FIELD, SCHEMA_FIELD)
_OURS = re.compile(r"__.*__", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its whole name, its type, and its arguments as JSON (None where it has none)."""

    name: str
    type_id: int
    arguments: Json = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What precedes the rows: everything that is needed to find a cell."""

    header: Header
    descriptors: tuple[Descriptor, ...]
    offsets: tuple[int, ...]
    """Where each field's cell begins in a row; one more for the end."""

    @property
    def row_bytes(self) -> int:
        return self.offsets[-1]

    def position(self, name: str) -> int | None:
        """The number of the field whose descriptor has that name."""
        return next((i for i, d in enumerate(self.descriptors) if d.name == name), None)

    def cell_start(self, sample: int, field: int) -> int:
        return self.header.metadata_ptr + sample * self.row_bytes + self.offsets[field]

    def require_payload(self, start: int, size: int, what: str) -> None:
        """Raises TruncatedError unless the bytes lie in the data region."""
        if not self.header.data_ptr <= start <= start + size <= self.header.alloc_table_ptr:
            raise TruncatedError(
                f"{what} lies at [{start}, {start + size}), outside the data at "
                f"[{self.header.data_ptr}, {self.header.alloc_table_ptr})"
            )


# -- encode ----------------------------------------------------------------------------------------------------


def encode_fields(fields: Sequence[Field]) -> tuple[list[Descriptor], bytes]:
    """Descriptors for the fields, and the text of `__schema__`, empty where all fits into the descriptors.

    Raises LimitExceededError for more fields than the format can count, LayoutError for malformed names.
    """
    descriptors = []
    schema: dict[str, Json] = {}
    for number, field in enumerate(fields):
        name = encode_utf8(field.name, "a field's name")
        fits = 0 < len(name) <= MAX_NAME_BYTES and b"\0" not in name and not _OURS.fullmatch(field.name)
        stored = field.name if fits else f"__field_{number}__"
        spilled: dict[str, Json] = {} if fits else {"name": field.name}
        arguments = b"" if field.arguments is None else dump_json(field.arguments).encode()
        if len(arguments) > MAX_ARGUMENT_BYTES:
            spilled["arguments"] = field.arguments
            arguments = b""
        if spilled:
            schema[stored] = spilled
        descriptors.append(Descriptor(stored, field.type_id, arguments))
    reserved = 2
    if len(fields) + reserved > MAX_FIELDS:
        raise LimitExceededError(
            f"there are {len(fields)} fields, an MLDF file holds at most {MAX_FIELDS - reserved} beside our own"
        )
    return descriptors, dump_json(schema).encode() if schema else b""


# -- decode ----------------------------------------------------------------------------------------------------


def parse_layout(source: FileInfo) -> Generator[Need, memoryview, Layout]:
    """The header and the descriptors. Raises FormatError subclasses."""
    start = yield Need(0, HEADER_END)
    header = Header.decode(start, source.size)
    size = descriptor_bytes(header, source.size)
    data = yield from need_exactly(header.field_desc_ptr, size, "the field descriptors")
    descriptors = decode_descriptors(data, header.num_fields)
    layout = Layout(header, tuple(descriptors), tuple(row_offsets(descriptors)))
    require_table(header, layout.row_bytes, source.size)
    return layout


def parse_schema(layout: Layout) -> Generator[Need, memoryview, tuple[tuple[Field, ...], tuple[int, int]]]:
    """The fields by their whole names, and the extent of `__schema__` (of no bytes where there is none)."""
    extent = (layout.header.data_ptr, 0)
    schema: Json = {}
    number = layout.position(SCHEMA_FIELD)
    if number is not None and layout.header.num_samples:
        if layout.descriptors[number].type_id != TypeId.JSON:
            raise LayoutError(f"field {SCHEMA_FIELD!r} has the type {layout.descriptors[number].type_id}")
        cell = yield from need_exactly(layout.cell_start(0, number), BYTES_CELL.size, "the schema's cell")
        start, size = BYTES_CELL.unpack(cell)
        if start:
            layout.require_payload(start, size, f"field {SCHEMA_FIELD!r}")
            text = yield from need_exactly(start, size, "the schema")
            schema, extent = load_json(text, "the schema"), (start, size)
    return _named(layout.descriptors, schema), extent


def _named(descriptors: Sequence[Descriptor], schema: Json) -> tuple[Field, ...]:
    if not isinstance(schema, dict) or not all(isinstance(spilled, dict) for spilled in schema.values()):
        raise LayoutError("the schema is not an object of objects")
    unknown = schema.keys() - {d.name for d in descriptors}
    if unknown:
        raise LayoutError(f"the schema has the field {min(unknown)[:80]!r}, which the file has not")
    fields: list[Field] = []
    known: dict[bytes, Json] = {}
    for descriptor in descriptors:
        spilled = schema.get(descriptor.name, {})
        name = spilled.get("name", descriptor.name)
        if not isinstance(name, str):
            raise LayoutError(f"the schema has a malformed name for {descriptor.name!r}")
        fields.append(
            Field(name, descriptor.type_id, spilled.get("arguments", _arguments(descriptor, known)))
        )
    # A tensor may well be called as one of our own fields is: those two are known by their descriptors.
    names = [f.name for f, d in zip(fields, descriptors, strict=True) if d.name not in OWN_FIELDS]
    if len(set(names)) != len(names):
        raise LayoutError("two fields have the same name")
    return tuple(fields)


def _arguments(descriptor: Descriptor, known: dict[bytes, Json]) -> Json:
    """The arguments where they are ours; those of other types are whatever their writer meant.

    Most fields of a large checkpoint share theirs with another, so that few texts need parsing.
    """
    text = descriptor.arguments
    if descriptor.type_id != TypeId.NDARRAY or not text:
        return None
    if text not in known:
        known[text] = load_json(text, f"the arguments of field {descriptor.name!r}")
    return known[text]


# -- arrays ----------------------------------------------------------------------------------------------------


def array_arguments(dtype: str, shape: Sequence[int]) -> dict[str, Json]:
    """The arguments of an NDARRAY field. One dimension may be -1: each sample's size decides."""
    return {"dtype": dtype, "shape": list(shape)}


def array_of(field: Field) -> TensorMetadata:
    """The dtype and shape of an NDARRAY field, one dimension of which may be -1.

    Raises LayoutError, UnsupportedDtypeError.
    """
    arguments = field.arguments
    if not isinstance(arguments, dict):
        raise LayoutError(f"field {field.name[:80]!r} is an NDARRAY without a dtype and a shape")
    dtype, shape = arguments.get("dtype"), arguments.get("shape")
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise LayoutError(f"field {field.name[:80]!r} is an NDARRAY without a dtype and a shape")
    if not all(type(n) is int and -1 <= n < 1 << 63 for n in shape) or shape.count(-1) > 1:
        raise LayoutError(f"field {field.name[:80]!r} has the shape {str(shape)[:80]}")
    numpy_dtype(dtype)
    return TensorMetadata(field.name, dtype, tuple(shape))


def sized(array: TensorMetadata, size: int) -> TensorMetadata:
    """The array of a cell of so many bytes, its open dimension filled in. Raises LayoutError."""
    if -1 in array.shape:
        one = replace(array, shape=tuple(1 if n == -1 else n for n in array.shape)).size
        count = size // one if one else 0
        array = replace(array, shape=tuple(count if n == -1 else n for n in array.shape))
    if array.size != size:
        raise LayoutError(
            f"tensor {array.name!r} of shape {list(array.shape)} and dtype {array.dtype} has {array.size} bytes, "
            f"the file says {size}"
        )
    return array
