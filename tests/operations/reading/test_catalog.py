"""Very many tensors: opening and loading makes an object for each of them once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.formats.kit.table import StoredTable
from asyncckpt.storage import MemoryStorage


@pytest.mark.parametrize("format", ["mlcp", "safetensors"])
async def test_a_table_is_walked_once(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    state = {f"t{number}": np.full(3, number, np.float32) for number in range(300)}
    await asyncckpt.save(state, (storage, "x"), format=format)
    walks = []
    original = StoredTable.__iter__

    def counted(table: StoredTable) -> Iterator[StoredTensor]:
        walks.append(len(table))
        return original(table)

    monkeypatch.setattr(StoredTable, "__iter__", counted)
    loaded = await asyncckpt.load((storage, "x"))
    assert walks == [300]
    assert all(np.array_equal(loaded[name], array) for name, array in state.items())
