"""The contract that asyncckpt ships, run on a format of one's own: `pip install -e . && pytest`.

Needs pytest, pytest-asyncio and hypothesis.
"""

from __future__ import annotations

import numpy as np
import pytest

import asyncckpt
from asyncckpt.testing import FormatContract


@pytest.fixture
def sweep_seed() -> int:
    """The suite draws its samples with this."""
    return 20250907


class TestTiny(FormatContract):
    pytestmark = pytest.mark.asyncio

    def make_format(self) -> asyncckpt.ICheckpointFormat:
        return asyncckpt.get_format("tiny")


def test_installed_it_is_known_by_name() -> None:
    assert "tiny" in asyncckpt.format_names()
    assert type(asyncckpt.get_format("tiny")).__module__ == "asyncckpt_tiny"


def test_the_extension_chooses_it_and_the_bytes_tell_it(tmp_path: object) -> None:
    location = f"{tmp_path}/model.tiny"
    result = asyncckpt.blocking.save({"w": np.arange(3, dtype=np.float32)}, location)
    assert result.format == "tiny"
    assert asyncckpt.blocking.load(location)["w"].tolist() == [0.0, 1.0, 2.0]
