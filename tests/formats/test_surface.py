"""The door of `asyncckpt.formats`, and what every format says of itself."""

from __future__ import annotations

import numpy as np
import pytest

import asyncckpt
from asyncckpt import bundles, formats, gptrs
from asyncckpt.formats import MetagraphFormat, SdnbFormat, SdzFormat
from asyncckpt.formats.shipped import SHIPPED

OPTIONS = [
    MetagraphFormat(compress=True),
    MetagraphFormat(key=bytes(32)),
    SdnbFormat(shards=2),
    SdzFormat(compress=False),
]


@pytest.mark.parametrize("module", [formats, bundles, gptrs], ids=lambda module: module.__name__)
def test_the_names_of_the_door_are_real(module: object) -> None:
    names: list[str] = module.__all__  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        formats.Nothing  # noqa: B018


@pytest.mark.parametrize(
    "format", [*map(asyncckpt.get_format, SHIPPED), *OPTIONS], ids=lambda format: format.name
)
async def test_a_format_writes_the_version_that_it_says(format: asyncckpt.ICheckpointFormat) -> None:
    location = (asyncckpt.MemoryStorage(), f"x{format.extension}")
    await asyncckpt.save({"w": np.ones(2, np.float32)}, location, format=format)
    async with asyncckpt.open_checkpoint(location, format=format) as checkpoint:
        assert checkpoint.version == format.version
