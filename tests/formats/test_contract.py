"""Every format passes the shipped contract."""

from __future__ import annotations

from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.gptrs import GptrsCheckpointFormat, GptrsTensorsFormat
from asyncckpt.formats.hf_set import HuggingFaceSetFormat
from asyncckpt.formats.mlcp import MlcpFormat
from asyncckpt.formats.safetensors import SafetensorsFormat
from asyncckpt.testing.format_contract import FormatContract


class TestMlcp(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MlcpFormat()


class TestSafetensors(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SafetensorsFormat()


class TestSafetensorsSet(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return HuggingFaceSetFormat(max_file_bytes=40)


class TestGptrsCheckpoint(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return GptrsCheckpointFormat()


class TestGptrsTensors(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return GptrsTensorsFormat()
