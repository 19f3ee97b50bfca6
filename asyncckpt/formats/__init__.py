"""Formats: bytes to tensors and back. Siblings of `storage`; neither imports the other.

The classes of the formats that ship are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncckpt._lazy import lazy_names

if TYPE_CHECKING:
    from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
    from asyncckpt.formats.metagraph.delta import base_bundle
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
    "base_bundle": "metagraph.delta",
}

__all__ = [
    "GptrsCheckpointFormat",
    "GptrsTensorsFormat",
    "HuggingFaceSetFormat",
    "MetagraphFormat",
    "MlcpFormat",
    "MlcpSetFormat",
    "MldfFormat",
    "SafetensorsFormat",
    "SdnbFormat",
    "SdzFormat",
    "base_bundle",
]


__getattr__ = lazy_names(__name__, _HOMES)
