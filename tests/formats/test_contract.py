"""Every format passes the shipped contract; the content of the two that are used most is checked in quick runs too."""

from __future__ import annotations

import pytest

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
from asyncckpt.testing.formats.contract import ContentContract, DamageContract, FaultContract, FormatContract


class TestMlcp(ContentContract):
    def make_format(self) -> ICheckpointFormat:
        return MlcpFormat()


class TestSafetensors(ContentContract):
    def make_format(self) -> ICheckpointFormat:
        return SafetensorsFormat()


@pytest.mark.thorough
class TestMlcpFaults(DamageContract, FaultContract):
    def make_format(self) -> ICheckpointFormat:
        return MlcpFormat()


@pytest.mark.thorough
class TestSafetensorsFaults(DamageContract, FaultContract):
    def make_format(self) -> ICheckpointFormat:
        return SafetensorsFormat()


@pytest.mark.thorough
class TestSafetensorsSet(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return HuggingFaceSetFormat(max_file_bytes=40)


@pytest.mark.thorough
class TestGptrsCheckpoint(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return GptrsCheckpointFormat()


@pytest.mark.thorough
class TestGptrsTensors(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return GptrsTensorsFormat()


@pytest.mark.thorough
class TestMetagraph(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MetagraphFormat()


@pytest.mark.thorough
class TestMetagraphCompressed(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MetagraphFormat(compress=True)


@pytest.mark.thorough
class TestMetagraphEncrypted(FormatContract):
    same_bytes = False

    def make_format(self) -> ICheckpointFormat:
        return MetagraphFormat(key=bytes(range(32)))

    def reading_format(self) -> ICheckpointFormat:
        return MetagraphFormat(key=bytes(range(32)))


@pytest.mark.thorough
class TestMldf(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MldfFormat()


@pytest.mark.thorough
class TestMlcpSet(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MlcpSetFormat()


@pytest.mark.thorough
class TestSdnb(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdnbFormat()


@pytest.mark.thorough
class TestSdnbAppended(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdnbFormat(inline_below=0)


@pytest.mark.thorough
class TestSdnbShards(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdnbFormat(shards=3)

    def _leader_ending(self) -> str:
        return "shard0-of-3.sdnb"


@pytest.mark.thorough
class TestSdz(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdzFormat()


@pytest.mark.thorough
class TestSdzStored(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return SdzFormat(compress=False, inline_below=0)
