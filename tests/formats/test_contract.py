"""Every format passes the shipped contract."""

from __future__ import annotations

from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.mlcp import MlcpFormat
from asyncckpt.testing.format_contract import FormatContract


class TestMlcp(FormatContract):
    def make_format(self) -> ICheckpointFormat:
        return MlcpFormat()
