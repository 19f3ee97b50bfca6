"""The formats that come with asyncckpt, as far as they can be known without importing their modules.

The first save of a process needs one format: importing all of them to learn their endings takes a tenth of a second.
A test compares this table with what the classes say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shipped:
    """One format: where its class is, how its files are called, and how they must begin."""

    module: str
    class_name: str
    extensions: tuple[str, ...]
    beginning: re.Pattern[bytes]
    """What every file of it matches; many that match are of another format, so the class decides."""

    def may_be(self, head: memoryview) -> bool:
        """Whether it is worth importing the class to ask it."""
        return self.beginning.match(head) is not None


def _shipped(target: str, *extensions: str, beginning: bytes) -> Shipped:
    module, _, class_name = target.partition(":")
    return Shipped(f"asyncckpt.formats.{module}", class_name, extensions, re.compile(beginning, re.DOTALL))


SHIPPED = {
    "mlcp": _shipped("mlcp.file:MlcpFormat", ".checkpoint", beginning=rb"PCLM|MLCP"),
    "safetensors": _shipped("safetensors.file:SafetensorsFormat", ".safetensors", beginning=rb".{8}\{"),
    "safetensors-set": _shipped(
        "safetensors.set:HuggingFaceSetFormat", ".safetensors.index.json", beginning=rb"\s*\{"
    ),
    "gptrschk": _shipped("gptrs.format:GptrsCheckpointFormat", ".gptrschk", beginning=rb"GPTRSCHK"),
    "gptrsten": _shipped("gptrs.format:GptrsTensorsFormat", ".gptrsten", beginning=rb"GPTRSTEN"),
    "mldf": _shipped("mldf.format:MldfFormat", ".mldf", beginning=rb"\x89MLDF\r\n\x1a\n"),
    "metagraph": _shipped("metagraph.format:MetagraphFormat", ".mgb", beginning=rb"METAGRAP|HYPERDAG"),
    "sdz": _shipped("sdz.format:SdzFormat", ".sdz", beginning=rb"PK\x03\x04"),
    "mlcp-set": _shipped("mlcp.set:MlcpSetFormat", ".metadata.json", beginning=rb"\s*\{"),
    # Last, because it also takes bare FlatBuffers, which have no magic number.
    "sdnb": _shipped("sdnb.format:SdnbFormat", ".sdnb", beginning=rb""),
}
"""By name, in the order in which they are asked about a file's first bytes."""
