"""MLDF files as tables of samples × fields, written as a stream and read cell by cell."""

from asyncckpt.operations.tables.reader import (
    Audio,
    Field,
    Image,
    TableReader,
    TableReport,
    TableWriter,
    TypeId,
    array_field,
    open_table,
    open_table_writer,
)

__all__ = [
    "Audio",
    "Field",
    "Image",
    "TableReader",
    "TableReport",
    "TableWriter",
    "TypeId",
    "array_field",
    "open_table",
    "open_table_writer",
]
