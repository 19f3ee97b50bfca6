"""MLDF files of others as checkpoints: every cell that holds bytes or a number is a tensor of its own.

A tensor is named after its field, with the sample's number behind a dot where there is more than one sample.
INT and FLOAT cells are scalars that lie in the metadata table itself; arrays and raw images have their shapes,
everything else is a run of uint8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.kit.block.header import indexed
from asyncckpt.formats.kit.index import Extent, FileInfo, Index, RegionDigest, StoredTensor
from asyncckpt.formats.mldf.header import IMAGE_CELL, Flags, Header, TypeId
from asyncckpt.formats.mldf.schema import SCHEMA_FIELD, Field, Layout, array_of, sized
from asyncckpt.model.metadata import Json, TensorMetadata

MAX_CELLS = 65_536
"""A larger table is a dataset, not a checkpoint."""


def foreign_index(
    layout: Layout, fields: Sequence[Field], table: NDArray[np.uint64], source: FileInfo
) -> Index:
    """The index of a file without a block. Raises FormatError subclasses."""
    header = layout.header
    numbers = [i for i, descriptor in enumerate(layout.descriptors) if descriptor.name != SCHEMA_FIELD]
    cells = header.num_samples * len(numbers)
    if cells > MAX_CELLS:
        raise LimitExceededError(
            f"{source.name!r} is a table of {header.num_samples} samples × {len(fields)} fields, too many cells "
            "to load as a checkpoint: read it with open_table"
        )
    stored: list[StoredTensor] = []
    digests = [data_digest(header)] if header.flags & Flags.CRC32 else []
    for number in numbers:
        field = fields[number]
        column = table[:, layout.offsets[number] // 8 : layout.offsets[number + 1] // 8]
        for tensor, extent, crc32 in _tensors(layout, number, field, column):
            stored.append(StoredTensor(tensor, (extent,)))
            if crc32 is not None:
                digests.append(_digest(f"tensor {tensor.name!r}", extent, crc32))
    require_apart([tensor.extents[0][:2] for tensor in stored])
    return indexed(
        stored,
        None,
        format="mldf",
        version=header.version,
        warnings=header.warnings,
        digests=tuple(digests),
        details=details(layout),
    )


def _tensors(
    layout: Layout, number: int, field: Field, column: NDArray[np.uint64]
) -> Iterator[tuple[TensorMetadata, Extent, int | None]]:
    """The tensors of one field: what they are, where they lie, and their CRC32 where the cell has it."""
    alone = len(column) == 1
    array = array_of(field) if field.type_id == TypeId.NDARRAY else None
    for sample, cell in enumerate(column):
        name = field.name if alone else f"{field.name}.{sample}"
        if field.type_id in (TypeId.INT, TypeId.FLOAT):
            start = layout.cell_start(sample, number)
            dtype = "int64" if field.type_id == TypeId.INT else "float64"
            yield TensorMetadata(name, dtype, (), start), Extent(start, 8), None
            continue
        start = int(cell[0])
        if start == 0:
            continue
        size = int(cell[1]) if array is not None else int(cell[1]) & 0xFFFFFFFF
        layout.require_payload(start, size, f"tensor {name!r}")
        if array is not None:
            found = sized(TensorMetadata(name, array.dtype, array.shape, start), size)
            yield found, Extent(start, size), _crc32(name, int(cell[2]))
        else:
            shape = _image_shape(name, cell, size) if field.type_id == TypeId.IMAGE_RAW else (size,)
            yield TensorMetadata(name, "uint8", shape, start), Extent(start, size), None


def _image_shape(name: str, cell: NDArray[np.uint64], size: int) -> tuple[int, int, int]:
    _, _, height, width, channels, _ = IMAGE_CELL.unpack(cell.tobytes())
    if height * width * channels != size:
        raise LayoutError(f"image {name!r} of {height} × {width} × {channels} has {size} bytes")
    return height, width, channels


def _crc32(name: str, value: int) -> int:
    if value >= 1 << 32:
        raise LayoutError(f"tensor {name!r} has a CRC32 of more than 32 bits")
    return value


def data_digest(header: Header) -> RegionDigest:
    """The CRC32 that the header keeps over the data region."""
    extent = Extent(header.data_ptr, header.alloc_table_ptr - header.data_ptr)
    return _digest("the data region", extent, header.data_crc32)


def _digest(what: str, extent: Extent, crc32: int) -> RegionDigest:
    return RegionDigest(what, "crc32", extent, crc32.to_bytes(4, "big"))


def require_apart(spans: Sequence[tuple[int, int]]) -> None:
    """Raises LayoutError when two runs of bytes overlap."""
    end = 0
    for start, size in sorted(span for span in spans if span[1]):
        if start < end:
            raise LayoutError(f"two payloads overlap at byte {start}")
        end = start + size


def details(layout: Layout) -> dict[str, Json]:
    """What `inspect` shows."""
    header = layout.header
    return {
        "flags": header.flags,
        "samples": header.num_samples,
        "fields": header.num_fields,
        "pageBytes": header.page_size,
        "rowBytes": layout.row_bytes,
        "pointers": {
            "fieldDescriptors": header.field_desc_ptr,
            "metadata": header.metadata_ptr,
            "data": header.data_ptr,
            "allocationTable": header.alloc_table_ptr,
        },
    }
