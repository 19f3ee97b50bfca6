"""What is fuzzed: one function for each parser. It may raise `EXPECTED` only; anything else is a finding."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from asyncckpt.errors import CheckpointError, FormatError, MissingExtraError
from asyncckpt.formats import registry
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.kit.metadata_json import MetadataSerializer
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.formats.kit.strict_json import load_json
from asyncckpt.formats.kit.zip import ZipLimits, read_archive
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.mlcp.set import MlcpSetFormat, ShardHeader
from asyncckpt.formats.mldf.cells import decode_cell, decode_value, has_payload
from asyncckpt.formats.mldf.format import MldfFormat
from asyncckpt.formats.mldf.header import ALLOCATION, DESCRIPTOR
from asyncckpt.formats.mldf.schema import parse_layout, parse_schema
from asyncckpt.formats.mldf.table import visible
from asyncckpt.formats.mldf.validate import Validation
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.amend import amend
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdnb.graph.amend import replace_metadata
from asyncckpt.formats.sdnb.graph.read import read_graph
from asyncckpt.formats.sdnb.java_manifest import decode_manifest, encode_manifest
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.model.state.payloads import payload_names
from asyncckpt.model.state.tree import flat_tree, rebuild, tree_names, tree_values
from fuzz.files import split
from fuzz.reading import read_all

EXPECTED = (FormatError, CheckpointError, MissingExtraError)
KEY = bytes(range(32))
_SMALL_ZIP = ZipLimits(max_bytes=1 << 26, free_bytes=1 << 24)
_MOST_CELLS = 2000
Target = Callable[[bytes], None]


def _format(make: Callable[[], ICheckpointFormat]) -> Target:
    def run(data: bytes) -> None:
        format = make()
        read_all(format, data, f"model{format.extension}")

    return run


def _gptrs(data: bytes) -> None:
    format = GptrsCheckpointFormat() if data[:8] == b"GPTRSCHK" else GptrsTensorsFormat()
    read_all(format, data, f"model{format.extension}")


def _sdnb(data: bytes) -> None:
    count = len(split(data))
    read_all(SdnbFormat(), data, "model.sdnb" if count == 1 else f"model.shard0-of-{count}.sdnb")
    if count == 1:
        change = parse_bytes(amend(FileInfo("model.sdnb", len(data)), {"note": "new"}), memoryview(data))
        assert change.kept_start <= change.kept_end <= len(data)
        new = change.head + data[change.kept_start : change.kept_end] + change.tail
        index = read_all(SdnbFormat(), new, "model.sdnb")
        assert index.metadata.custom_fields["note"] == "new"


def _sniff(data: bytes) -> None:
    for name in ("model", "model.safetensors.index.json", "model.metadata.json", "a.shard0-of-2.sdnb"):
        for size in (len(data), 1 << 40):
            source = FileInfo(name, size)
            found = [
                registry.get_format(f).sniff(memoryview(data)[:64], source) for f in registry.format_names()
            ]
            assert all(type(answer) is bool for answer in found)


def _zip_directory(data: bytes) -> None:
    archive = parse_bytes(read_archive(FileInfo("a.sdz", len(data)), _SMALL_ZIP), memoryview(data))
    for entry in archive.entries.values():
        assert 0 <= entry.data_offset <= entry.end <= archive.directory_offset <= len(data)


def _java_manifest(data: bytes) -> None:
    entries = decode_manifest(memoryview(data))
    if all(offset >= 0 and length >= 0 for offset, length in entries.values()):
        assert decode_manifest(memoryview(encode_manifest(entries))) == entries


def _flatgraph(data: bytes) -> None:
    view = memoryview(data)
    root = int.from_bytes(data[:4], "little")
    graph = read_graph(view, root)
    json.dumps(graph.details, allow_nan=False).encode()
    rebuilt = replace_metadata(view, root, [*graph.metadata.items(), ("note", "new")])
    again = read_graph(memoryview(rebuilt.data), rebuilt.root)
    assert again.metadata == {**graph.metadata, "note": "new"}
    assert [v.name for v in again.variables] == [v.name for v in graph.variables]


def _mldf_table(data: bytes) -> None:
    view = memoryview(data)
    layout = parse_bytes(parse_layout(FileInfo("t.mldf", len(data))), view)
    fields, _ = parse_bytes(parse_schema(layout), view)
    header, width = layout.header, layout.row_bytes
    for sample in range(min(header.num_samples, _MOST_CELLS // max(1, len(fields)))):
        for number in visible(fields, layout.descriptors).values():
            field, start = fields[number], layout.cell_start(sample, number)
            size = layout.offsets[number + 1] - layout.offsets[number]
            try:
                cell = decode_cell(field, view[start : start + size])
                if has_payload(field) and cell.start == 0:
                    continue
                if has_payload(field):
                    layout.require_payload(cell.start, cell.size, "the cell")
                decode_value(field, cell, bytearray(view[cell.start : cell.start + cell.size]))
            except FormatError:
                continue
    check = Validation(layout, fields)
    descriptors = header.field_desc_ptr
    check.descriptors(data[descriptors : descriptors + header.num_fields * DESCRIPTOR.size])
    check.rows(data[header.metadata_ptr : header.metadata_ptr + header.num_samples * width])
    entries = (len(data) - header.alloc_table_ptr) // ALLOCATION.size * ALLOCATION.size
    check.entries(data[header.alloc_table_ptr : header.alloc_table_ptr + entries])
    check.report(tuple(fields))


def _shard_header(data: bytes) -> None:
    header = ShardHeader.decode(memoryview(data), "m_shard_0.shard")
    assert data.startswith(header.encode())


def _metadata_json(data: bytes) -> None:
    metadata = MetadataSerializer.deserialize(data)
    MetadataSerializer.validate(metadata)
    assert MetadataSerializer.deserialize(MetadataSerializer.serialize(metadata)) == metadata


def _structure(data: bytes) -> None:
    structure = load_json(data, "the tree")
    names = tree_names(structure)
    arrays = {name: np.zeros((2,), np.float32) for name in names}
    payloads = {name: np.zeros((2,), np.uint8) for name in payload_names(structure)}
    rebuild(structure, arrays | payloads, framework="numpy")
    rebuild(structure, payloads, framework="numpy", partial=True)
    list(tree_values(structure))
    rebuild(flat_tree(names), arrays)


def _block(data: bytes) -> None:
    block = Block.decode(load_json(data, "the block"))
    block.chunking([len(data)] * len(block.boxes))
    block.check_outside([(0, data)], [(1, 2)], size=len(data) + 4096)


TARGETS: dict[str, Target] = {
    "mlcp": _format(MlcpFormat),
    "mlcp_set": _format(MlcpSetFormat),
    "safetensors": _format(SafetensorsFormat),
    "safetensors_set": _format(HuggingFaceSetFormat),
    "gptrs": _gptrs,
    "mldf": _format(MldfFormat),
    "sdnb": _sdnb,
    "sdz": _format(lambda: SdzFormat(limits=_SMALL_ZIP)),
    "metagraph": _format(lambda: MetagraphFormat(key=KEY, allow_plain=True)),
    "sniff": _sniff,
    "zip_directory": _zip_directory,
    "java_manifest": _java_manifest,
    "flatgraph": _flatgraph,
    "mldf_table": _mldf_table,
    "shard_header": _shard_header,
    "metadata_json": _metadata_json,
    "structure": _structure,
    "block": _block,
}
"""The formats first, then the parts that are worth a fuzzer's attention of their own."""


def run_target(name: str, data: bytes) -> None:
    """Feed one input. Raises whatever is a finding."""
    refusal = ""
    try:
        TARGETS[name](data)
    except EXPECTED as error:
        refusal = str(error)
    assert "\n" not in refusal, f"the refusal has several lines: {refusal!r}"
