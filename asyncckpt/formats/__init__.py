"""Formats: bytes to tensors and back. Siblings of `storage`; neither imports the other.

The door of whoever uses a format with options (`save(..., format=SdzFormat(compress=False))`), and of whoever writes
one. An author needs:

=============================== ===================================================================================
to write the class              `ICheckpointFormat`
to plan a file                  `Content` (what is to be stored), `lay_out`, `aligned`, `FilePlan`, `Payload`,
                                `Digests`, `TensorBytes`; `StreamPlan` where the size is known only at the end
the header that has it all      `BlockHeader` with `build_block`: tree, metadata and checksums, filled in last
to parse                        `ParseSteps`, `Need`, `need_exactly`, `FileInfo`: a generator that asks for bytes
the reading twin                `indexed` with `Block`: checks, checksums, shards, the `Index`
what an index is made of        `Index`, `StoredTensor`, `Extent`, `Frames`, `RegionDigest`
numbers, texts, JSON, tensors   `Cursor`, `LE_U8` … `LE_I64`, `decode_utf8`, `encode_utf8`, `dump_json`, `load_json`,
                                `checked_tensor`, `is_file_name`: for bytes that can't be trusted
=============================== ===================================================================================

The class of a format that ships is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncckpt._lazy import lazy_names
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.binary import (
    LE_I32,
    LE_I64,
    LE_U8,
    LE_U16,
    LE_U32,
    LE_U64,
    Cursor,
    decode_utf8,
    encode_utf8,
)
from asyncckpt.formats.kit.block.header import BlockHeader, indexed
from asyncckpt.formats.kit.block.order import build_block
from asyncckpt.formats.kit.block.text import Block
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Frames,
    Index,
    Need,
    ParseSteps,
    RegionDigest,
    StoredTensor,
    need_exactly,
)
from asyncckpt.formats.kit.plan import (
    Content,
    Digests,
    FilePlan,
    Payload,
    StreamPlan,
    TensorBytes,
    aligned,
    lay_out,
)
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.kit.tensors import checked_tensor
from asyncckpt.model.file_names import is_file_name

if TYPE_CHECKING:
    from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
    from asyncckpt.formats.metagraph.format import MetagraphFormat
    from asyncckpt.formats.mlcp.file import MlcpFormat
    from asyncckpt.formats.mlcp.set import MlcpSetFormat
    from asyncckpt.formats.mldf.format import MldfFormat
    from asyncckpt.formats.safetensors.file import SafetensorsFormat
    from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
    from asyncckpt.formats.sdnb.format import SdnbFormat
    from asyncckpt.formats.sdz.format import SdzFormat

_HOMES = {
    "GptrsCheckpointFormat": "gptrs.format",
    "GptrsTensorsFormat": "gptrs.format",
    "HuggingFaceSetFormat": "safetensors.set",
    "MetagraphFormat": "metagraph.format",
    "MlcpFormat": "mlcp.file",
    "MlcpSetFormat": "mlcp.set",
    "MldfFormat": "mldf.format",
    "SafetensorsFormat": "safetensors.file",
    "SdnbFormat": "sdnb.format",
    "SdzFormat": "sdz.format",
}

__all__ = [
    "LE_I32",
    "LE_I64",
    "LE_U8",
    "LE_U16",
    "LE_U32",
    "LE_U64",
    "Block",
    "BlockHeader",
    "Content",
    "Cursor",
    "Digests",
    "Extent",
    "FileInfo",
    "FilePlan",
    "Frames",
    "GptrsCheckpointFormat",
    "GptrsTensorsFormat",
    "HuggingFaceSetFormat",
    "ICheckpointFormat",
    "Index",
    "MetagraphFormat",
    "MlcpFormat",
    "MlcpSetFormat",
    "MldfFormat",
    "Need",
    "ParseSteps",
    "Payload",
    "RegionDigest",
    "SafetensorsFormat",
    "SdnbFormat",
    "SdzFormat",
    "StoredTensor",
    "StreamPlan",
    "TensorBytes",
    "aligned",
    "build_block",
    "checked_tensor",
    "decode_utf8",
    "dump_json",
    "encode_utf8",
    "indexed",
    "is_file_name",
    "lay_out",
    "load_json",
    "need_exactly",
]


__getattr__ = lazy_names(__name__, _HOMES)
