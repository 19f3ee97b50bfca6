"""The values of MLDF tables: from Python to cells and payloads, and back. Pure.

=================================== ====================================================================
type                                Python value
=================================== ====================================================================
INT, FLOAT                          int of 64 bits, float
BYTES, and ids that we do not know  bytes
NDARRAY                             numpy array of the field's dtype and shape
JSON                                any JSON value
IMAGE_RAW                           uint8 array [height, width, channels]
IMAGE_JPEG, IMAGE_PNG, AUDIO_*      `Image`, `Audio`: the bytes as they are, and what the cell says of them
TEXT_RAW, TEXT_TOKENIZED            str; flat int16 or int32 array
=================================== ====================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncckpt.errors import ChecksumMismatchError, LayoutError, NotRepresentableError
from asyncckpt.formats.kit.binary import decode_utf8, encode_utf8
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.mldf.header import (
    AUDIO_CELL,
    BYTES_CELL,
    FLOAT_CELL,
    IMAGE_CELL,
    INT_CELL,
    NDARRAY_CELL,
    TEXT_CELL,
    TypeId,
    cell_of,
)
from asyncckpt.formats.mldf.schema import Field, array_arguments, array_of, sized
from asyncckpt.model.buffers import Buffer
from asyncckpt.model.checksums import crc32
from asyncckpt.model.dtype import array_from, as_bytes_view, dtype_name, numpy_dtype

ARRAY_ALIGNMENT = 64
_IMAGE_MODES = {TypeId.IMAGE_RAW: 0, TypeId.IMAGE_JPEG: 1, TypeId.IMAGE_PNG: 2}
_TOKEN_ENCODINGS = {1: "int32", 2: "int16"}
_AUDIO_TYPES = (
    TypeId.AUDIO_WAVEFORM,
    TypeId.AUDIO_COMPRESSED,
    TypeId.AUDIO_SPECTROGRAM,
    TypeId.AUDIO_CODEC_TOKENS,
)


@dataclass(frozen=True, slots=True)
class Image:
    """A compressed image, its bytes passed through."""

    data: bytes
    height: int
    width: int
    channels: int


@dataclass(frozen=True, slots=True)
class Audio:
    """Audio, its bytes passed through. `codec`: 0 PCM, 1 FLAC, 2 AAC, 3 MP3."""

    data: bytes
    num_samples: int
    sample_rate: int
    num_channels: int = 1
    bit_depth: int = 16
    codec: int = 0


def array_field(name: str, dtype: str, shape: Sequence[int]) -> Field:
    """An NDARRAY field. One dimension may be -1: it may differ from sample to sample.

    Raises LayoutError, UnsupportedDtypeError.
    """
    field = Field(name, TypeId.NDARRAY, array_arguments(dtype, shape))
    array_of(field)
    return field


# -- encode ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncodedCell:
    """A value on its way into a table: the payload, and what else its cell says. No payload for numbers."""

    layout: struct.Struct
    rest: tuple[Any, ...]
    payload: memoryview | None = None
    alignment: int = 1

    def pack(self, start: int) -> bytes:
        if self.payload is None:
            return self.layout.pack(*self.rest)
        return self.layout.pack(start, self.payload.nbytes, *self.rest)


def encode_value(field: Field, value: Any) -> EncodedCell | None:
    """The cell of a value; None for no value. Raises NotRepresentableError when the field can't hold it."""
    if value is None and field.type_id not in (TypeId.INT, TypeId.FLOAT):
        return None
    try:
        cell = _encode(field, value)
        # Beyond 4 GiB the size does not fit a cell, but for an array's.
        cell.pack(0)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise NotRepresentableError(f"field {field.name[:80]!r} can't hold the value: {error}") from error
    return cell


def _encode(field: Field, value: Any) -> EncodedCell:
    kind = field.type_id
    if kind == TypeId.INT:
        return EncodedCell(INT_CELL, (value,))
    if kind == TypeId.FLOAT:
        return EncodedCell(FLOAT_CELL, (value,))
    if kind == TypeId.NDARRAY:
        return _encode_array(field, value)
    if kind == TypeId.JSON:
        return EncodedCell(BYTES_CELL, (), memoryview(dump_json(value).encode()))
    if kind == TypeId.IMAGE_RAW:
        return _encode_raw_image(value)
    if kind in _IMAGE_MODES:
        _require(value, Image)
        rest = (value.height, value.width, value.channels, _IMAGE_MODES[TypeId(kind)])
        return EncodedCell(IMAGE_CELL, rest, _bytes_view(value.data))
    if kind in _AUDIO_TYPES:
        _require(value, Audio)
        numbers = (value.num_samples, value.sample_rate, value.num_channels, value.bit_depth, value.codec)
        return EncodedCell(AUDIO_CELL, numbers, _bytes_view(value.data))
    if kind == TypeId.TEXT_RAW:
        _require(value, str)
        return EncodedCell(TEXT_CELL, (0, 0), memoryview(encode_utf8(value, "the text")))
    if kind == TypeId.TEXT_TOKENIZED:
        return _encode_tokens(value)
    return EncodedCell(BYTES_CELL, (), _bytes_view(value))


def _require(value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} was expected, not {type(value).__name__}")


def _bytes_view(value: Buffer) -> memoryview:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"bytes were expected, not {type(value).__name__}")
    return memoryview(value).cast("B")


def _encode_array(field: Field, value: Any) -> EncodedCell:
    normal, view = as_bytes_view(np.asarray(value))
    wanted = array_of(field)
    if dtype_name(normal.dtype) != wanted.dtype:
        raise TypeError(f"an array of {wanted.dtype} was expected, not of {normal.dtype}")
    fits = len(normal.shape) == len(wanted.shape) and all(
        expected in (-1, n) for n, expected in zip(normal.shape, wanted.shape, strict=True)
    )
    # With an empty dimension beside it, an open one could not be told from its size.
    if not fits or (-1 in wanted.shape and sized(wanted, view.nbytes).shape != normal.shape):
        raise ValueError(f"the shape {list(wanted.shape)} was expected, not {list(normal.shape)}")
    return EncodedCell(NDARRAY_CELL, (crc32(view),), view, ARRAY_ALIGNMENT)


def _encode_raw_image(value: Any) -> EncodedCell:
    normal, view = as_bytes_view(np.asarray(value))
    if normal.dtype != np.uint8 or normal.ndim not in (2, 3):
        raise TypeError(
            f"a uint8 array [height, width, channels] was expected, not {normal.dtype} {normal.shape}"
        )
    height, width, channels = (*normal.shape, 1)[:3]
    return EncodedCell(IMAGE_CELL, (height, width, channels, 0), view, ARRAY_ALIGNMENT)


def _encode_tokens(value: Any) -> EncodedCell:
    normal, view = as_bytes_view(np.asarray(value))
    encoding = next((e for e, name in _TOKEN_ENCODINGS.items() if dtype_name(normal.dtype) == name), 0)
    if normal.ndim != 1 or not encoding:
        raise TypeError(f"a flat int16 or int32 array was expected, not {normal.dtype} {normal.shape}")
    # The count has two bytes; a reader goes by the size.
    return EncodedCell(TEXT_CELL, (min(len(normal), 2**16 - 1), encoding), view)


# -- decode ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that was read: where its payload lies (0 for none), and the other numbers."""

    start: int
    size: int
    rest: tuple[Any, ...]


def decode_cell(field: Field, data: Buffer) -> Cell:
    """Raises LayoutError when a checksum has more bits than CRC32 has."""
    layout = cell_of(field.type_id)
    values = layout.unpack(data)
    if layout in (INT_CELL, FLOAT_CELL):
        return Cell(0, 0, values)
    if layout is NDARRAY_CELL and values[2] >= 1 << 32:
        raise LayoutError(f"field {field.name[:80]!r} has a CRC32 of more than 32 bits")
    return Cell(values[0], values[1], values[2:])


def has_payload(field: Field) -> bool:
    return field.type_id not in (TypeId.INT, TypeId.FLOAT)


def decode_value(field: Field, cell: Cell, data: bytearray) -> Any:
    """The value of a cell and its payload, verified where the cell has a checksum. Raises FormatError subclasses."""
    kind = field.type_id
    if not has_payload(field):
        return cell.rest[0]
    if kind == TypeId.NDARRAY:
        value = crc32(data)
        if value != cell.rest[0]:
            raise ChecksumMismatchError(
                f"field {field.name[:80]!r} is damaged: its CRC32 is {value:08x}, the file says {cell.rest[0]:08x}",
                tensor=field.name,
            )
        array = sized(array_of(field), len(data))
        return array_from(data, array.dtype, array.shape)
    if kind == TypeId.JSON:
        return load_json(memoryview(data), f"field {field.name[:80]!r}")
    if kind == TypeId.IMAGE_RAW:
        return array_from(data, "uint8", cell.rest[:3])
    if kind in _IMAGE_MODES:
        return Image(bytes(data), *cell.rest[:3])
    if kind in _AUDIO_TYPES:
        return Audio(bytes(data), *cell.rest)
    if kind in (TypeId.TEXT_RAW, TypeId.TEXT_TOKENIZED):
        return _decode_text(field, cell, data)
    return bytes(data)


def _decode_text(field: Field, cell: Cell, data: bytearray) -> Any:
    encoding = cell.rest[1]
    if encoding == 0:
        return decode_utf8(memoryview(data), f"field {field.name[:80]!r}")
    dtype = _TOKEN_ENCODINGS.get(encoding)
    if dtype is None:
        raise LayoutError(f"field {field.name[:80]!r} has the unknown encoding {encoding}")
    return array_from(data, dtype, (len(data) // numpy_dtype(dtype).itemsize,))
