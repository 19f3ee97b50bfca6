"""Reads a checkpoint as far as it goes: the index, every tensor, the state; and checks what an index promises."""

from __future__ import annotations

import json

from asyncckpt.errors import FormatError, TruncatedError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.decode import check_chunks, gather, to_array
from asyncckpt.formats.kit.index import Extent, FileInfo, Index
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.model.state.tree import flat_tree, rebuild
from fuzz.files import Siblings, split


def read_all(format: ICheckpointFormat, data: bytes, name: str) -> Index:
    """Everything there is. Raises what the parsers raise, AssertionError for an index that can't be served."""
    first, *others = split(data)
    siblings = Siblings(others)
    index = parse_bytes(format.parse(FileInfo(name, len(first))), memoryview(first), siblings)
    files = [memoryview(first), *(siblings[file] for file in index.files[1:])]
    _check_promises(index, files)
    arrays = {}
    for stored in index.tensors:
        if stored.absent is not None:
            continue
        try:
            view = gather(stored, lambda extent: files[extent.file][extent.offset : extent.end])
            check_chunks(stored, view)
        except FormatError:
            # One tensor that can't be decoded does not stop the others from being read.
            continue
        arrays[stored.name] = to_array(stored, view)
    tree = flat_tree(list(arrays)) if index.tree is None else index.tree
    rebuild(tree, arrays, framework="numpy", partial=True)
    return index


def _check_promises(index: Index, files: list[memoryview]) -> None:
    """Places lie in their files, names are unique, and `inspect` can print what it is given."""
    names = [stored.name for stored in index.tensors]
    assert len(set(names)) == len(names), "two tensors of an index have the same name"
    for stored in index.tensors:
        extents = stored.runs
        for extent in extents:
            if extent.file and extent.end > len(files[extent.file]):
                # A parser can't tell the size of a set's other files: whoever opens them looks.
                raise TruncatedError(f"tensor {stored.name!r} leaves file {extent.file}")
            _require_inside(extent, files, f"tensor {stored.name!a}")
    for digest in index.digests:
        for extent in (digest.extent, *digest.zeroed):
            _require_inside(extent, files, digest.what)
    for extent in index.header_extents or ():
        _require_inside(extent, files, "the structure")
    json.dumps(dict(index.details), allow_nan=False).encode()


def _require_inside(extent: Extent, files: list[memoryview], what: str) -> None:
    assert 0 <= extent.file < len(files), f"{what} lies in file {extent.file} of {len(files)}"
    size = len(files[extent.file])
    assert extent.size >= 0, f"{what} has {extent.size} bytes"
    assert 0 <= extent.offset <= extent.end <= size, f"{what} lies at {extent}, its file has {size} bytes"
