"""Every format passes the shipped contract."""

from __future__ import annotations

from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.mlcp.set import MlcpSetFormat
from asyncckpt.formats.mldf.format import MldfFormat
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.testing.formats.contract import FormatContract


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


class TestMetagraph(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MetagraphFormat()


class TestMetagraphCompressed(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MetagraphFormat(compress=True)


class TestMetagraphEncrypted(FormatContract):
    same_bytes = False

    def make_format(self) -> ICheckpointFormat:
        return MetagraphFormat(key=bytes(range(32)))

    def reading_format(self) -> ICheckpointFormat:
        return MetagraphFormat(key=bytes(range(32)))


class TestMldf(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MldfFormat()


class TestMlcpSet(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MlcpSetFormat()


class TestSdnb(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdnbFormat()


class TestSdnbAppended(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdnbFormat(inline_below=0)


class TestSdnbShards(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdnbFormat(shards=3)

    def _leader_ending(self) -> str:
        return "shard0-of-3.sdnb"


class TestSdz(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdzFormat()


class TestSdzStored(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdzFormat(compress=False, inline_below=0)
