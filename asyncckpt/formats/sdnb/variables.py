"""Where the bytes of an SDNB graph's variables are: appended, inside the graph, or in a file beside it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np

from asyncckpt.errors import LayoutError, UnsupportedDtypeError
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.index import Extent, Frames, Need, StoredTensor
from asyncckpt.formats.sdnb.graph.read import ARRAY, DTYPES_BY_CODE, TEXT_CODES, FlatArray, Graph
from asyncckpt.formats.sdnb.header import Header
from asyncckpt.formats.sdnb.java_manifest import ArrayRange
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.dtype import item_size
from asyncckpt.model.file_names import is_file_name
from asyncckpt.model.metadata import TensorMetadata

UPDATER_PREFIX = "updaterState/"
_MAX_DIMENSION = 1 << 63
_SWAPPED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SdnbFile:
    """One file of a set, decoded. `window` holds the graph and lies at `window_start`."""

    header: Header
    manifest: dict[str, ArrayRange]
    graph: Graph
    window: memoryview
    window_start: int
    regions: list[tuple[int, memoryview]]
    block: Block | None
    size: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Where a variable's bytes are."""

    dtype: str
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]
    order: Literal["C", "F"] = "C"
    swapped: bool = False

    def stored(self, name: str) -> StoredTensor:
        offset = self.extents[0].offset if self.extents else 0
        tensor = TensorMetadata(name, self.dtype, self.shape, offset)
        if not self.swapped or tensor.size == 0:
            return StoredTensor(tensor, self.extents, order=self.order)
        width = item_size(self.dtype)
        step = max(width, _SWAPPED_BYTES // width * width)
        extents = tuple(self.extents[0].cut(step))
        frames = Frames(step, extents, lambda _, data: _swap(data, width))
        return StoredTensor(tensor, frames=frames, order=self.order)


def _swap(data: Buffer, width: int) -> bytes:
    return np.frombuffer(data, f"V{width}").view(np.uint8).reshape(-1, width)[:, ::-1].tobytes()


class Collector:
    """Finds the bytes of every variable of a set, and refuses what overlaps or comes twice."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.files = list(files)
        self.names: list[list[str]] = []
        """The variables of each file, in the order of its graph."""
        self.found: dict[str, Found] = {}
        self.updater: dict[str, Found] = {}
        self.listed: dict[str, tuple[str, tuple[int, ...]] | None] = {}
        self.warnings: list[str] = []

    def add(self, file: SdnbFile) -> Generator[Need, memoryview, None]:
        self.names.append([variable.name for variable in file.graph.variables])
        for variable in file.graph.variables:
            name = variable.name
            dtype = variable.dtype
            if variable.array is not None and variable.array.dtype:
                dtype = variable.array.dtype
            place = file.manifest.get(name)
            array = variable.array
            if place is None and (array is None or (array.spans is None and array.external is None)):
                self._list_stub(name, dtype, variable.shape, variable.kind)
                continue
            if dtype in TEXT_CODES:
                self.warnings.append(f"variable {name!r} is {TEXT_CODES[dtype]} text and was left out")
                continue
            if place is not None:
                extent = Extent(place.offset, place.length, file.number)
                found = Found(_dtype_name(dtype, name), variable.shape or (), (extent,))
            else:
                assert array is not None
                found = yield from self._inside(file, array, variable.shape, dtype, name)
            self._put(self.found, name, found)
        unknown = [name for name in file.manifest if name not in self.found and name not in self.listed]
        if unknown:
            self.warnings.append(
                f"the manifest names {len(unknown)} arrays without a variable, such as {unknown[0]!r}"
            )

    def add_updater(self, file: SdnbFile) -> Generator[Need, memoryview, None]:
        for state in file.graph.updater:
            name = f"{UPDATER_PREFIX}{state.parameter}/{state.key}"
            if state.array.dtype in TEXT_CODES or (
                state.array.spans is None and state.array.external is None
            ):
                self.warnings.append(f"{name!r} has no numbers and was left out")
                continue
            found = yield from self._inside(file, state.array, None, state.array.dtype, name)
            self._put(self.updater, name, found)

    def _inside(
        self, file: SdnbFile, array: FlatArray, shape: tuple[int, ...] | None, dtype: int, name: str
    ) -> Generator[Need, memoryview, Found]:
        dims, order, swapped = array.resolve(shape)
        dtype_name = _dtype_name(dtype, name)
        if array.spans is None:
            external = yield from self._external(str(array.external), dims, dtype_name, name)
            extents: tuple[Extent, ...] = (external,)
        else:
            base = file.window_start
            extents = tuple(Extent(base + a, b - a, file.number) for a, b in array.spans)
        if swapped and len(extents) != 1:
            raise LayoutError(f"variable {name!r} is big-endian and in pieces, which is not read")
        return Found(dtype_name, dims, extents, order, swapped)

    def _external(
        self, file: str, shape: tuple[int, ...], dtype: str, name: str
    ) -> Generator[Need, memoryview, Extent]:
        """A file beside this one that is nothing but the array."""
        if not is_file_name(file):
            raise LayoutError(
                f"variable {name!r} lies in {file[:80]!r}, which is not a plain name beside the file"
            )
        size = prod(shape) * item_size(dtype) if all(n >= 0 for n in shape) else -1
        if size < 0 or size >= _MAX_DIMENSION:
            raise LayoutError(f"variable {name!r} has the impossible shape {list(shape)}")
        tail = yield Need(max(0, size - 1), 2, file)
        if len(tail) != min(1, size):
            raise LayoutError(f"the external file {file!r} of {name!r} does not have {size} bytes")
        if file not in self.files:
            self.files.append(file)
        return Extent(0, size, self.files.index(file))

    def _list_stub(self, name: str, dtype: int, shape: tuple[int, ...] | None, kind: int) -> None:
        known = dtype in DTYPES_BY_CODE and all(0 <= n < _MAX_DIMENSION for n in shape or ())
        if not known or kind >= ARRAY:
            self.listed.setdefault(name, None)
            return
        self.listed.setdefault(name, (DTYPES_BY_CODE[dtype], shape or ()))

    def _stub(self, name: str) -> StoredTensor | None:
        listed = self.listed.get(name)
        if listed is None:
            return None
        return StoredTensor(
            TensorMetadata(name, *listed), absent="the graph lists it, no file holds its data"
        )

    def _put(self, places: dict[str, Found], name: str, found: Found) -> None:
        if name in self.found or name in self.updater:
            raise LayoutError(f"the variable {name!r} is there twice")
        size = prod(found.shape) * item_size(found.dtype)
        stored = sum(extent.size for extent in found.extents)
        if any(not 0 <= n < _MAX_DIMENSION for n in found.shape) or size != stored:
            raise LayoutError(
                f"variable {name!r} of shape {list(found.shape)} and dtype {found.dtype} has {size} bytes, "
                f"{stored} are stored"
            )
        places[name] = found

    def check_overlaps(self) -> None:
        """Raises LayoutError when two arrays share bytes."""
        extents = sorted(
            (e.file, e.offset, e.end, name)
            for places in (self.found, self.updater)
            for name, found in places.items()
            for e in found.extents
            if e.size
        )
        for (file, _, end, first), (other, start, _, second) in pairwise(extents):
            if file == other and start < end:
                raise LayoutError(f"arrays {first!r} and {second!r} overlap at byte {start}")

    def tensors(self) -> list[StoredTensor]:
        """In the order of the first graph, then what only the other graphs have. Empties `found`."""
        order = dict.fromkeys(self.names[0] + list(self.found))
        stored = []
        for name in order:
            found = self.found.pop(name, None)
            tensor = found.stored(name) if found else self._stub(name)
            if tensor is not None:
                stored.append(tensor)
        return stored


def _dtype_name(code: int, name: str) -> str:
    dtype = DTYPES_BY_CODE.get(code)
    if dtype is None:
        raise UnsupportedDtypeError(f"variable {name!r} has the dtype number {code}, which is not read")
    return dtype
