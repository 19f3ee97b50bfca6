"""`FormatContract`: the suite that every format passes. Subclass it in your own tests:

    class TestMyFormat(FormatContract):
        def make_format(self): return MyFormat()

Needs pytest, pytest-asyncio and hypothesis. The suite goes through `save`, `load`, `open_checkpoint` and `verify`,
so what it proves is what users see.
"""

from __future__ import annotations

import pytest

# The suite's own asserts then explain themselves as those of a test module do.
pytest.register_assert_rewrite(
    "asyncckpt.testing.formats.files",
    "asyncckpt.testing.formats.content",
    "asyncckpt.testing.formats.damage",
    "asyncckpt.testing.formats.faults",
)

from asyncckpt.testing.formats.content import ContentContract  # noqa: E402
from asyncckpt.testing.formats.damage import DamageContract  # noqa: E402
from asyncckpt.testing.formats.faults import FaultContract  # noqa: E402

__all__ = ["ContentContract", "DamageContract", "FaultContract", "FormatContract"]


class FormatContract(ContentContract, DamageContract, FaultContract):
    """Everything that asyncckpt promises of a format."""
