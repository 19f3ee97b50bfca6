"""The final methods of the base classes: no backend can replace them, by accident or on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.ranges import ByteRange
from asyncckpt.model.shard import ShardData
from asyncckpt.storage.base import ICheckpointStorage, ObjectReader
from asyncckpt.storage.memory import MemoryStorage
from tests.storage.memory_contract import MemoryContract

HOOKS = frozenset(
    "_put _read _stat _list _delete _open_writer _open_reader _pin _delete_many _store_time _close".split()
)


def not_a_hook(self: object, *_: Any, **__: Any) -> NoReturn:
    raise AssertionError("the base class called a method that belongs to the backend")


def own_names(base: type, *public: str) -> dict[str, Any]:
    """Every name with one underscore that a backend might choose for itself: those of its author's own methods."""
    names = {name for each in base.__mro__ for name in vars(each)}
    likely = {f"_{name}" for name in names if not name.startswith("_")} | set(public)
    abstract: frozenset[str] = getattr(base, "__abstractmethods__", frozenset())
    return dict.fromkeys(sorted(likely - HOOKS - abstract), not_a_hook)


BUSY = own_names(ICheckpointStorage, "_write", "_commit", "_require", "_check", "_abort", "_pages")
BusyStorage: type[MemoryStorage] = type("BusyStorage", (MemoryStorage,), BUSY)
"""A backend whose own methods have the names that its author would think of first."""


class TestBusyStorage(MemoryContract):
    kind = BusyStorage


def test_nothing_of_the_base_classes_looks_like_a_hook_and_is_none() -> None:
    for base in (ICheckpointStorage, ObjectReader, ICheckpointFormat):
        for each in base.__mro__:
            own = f"_{each.__name__}__"
            private = {n for n in vars(each) if n.startswith("_") and not n.startswith(("__", "_abc_", own))}
            assert private <= base.__abstractmethods__ | HOOKS


async def test_a_checkpoint_on_such_a_storage_comes_back() -> None:
    async with BusyStorage() as storage:
        await asyncckpt.save({"w": np.arange(3)}, (storage, "a.checkpoint"))
        assert (await asyncckpt.load((storage, "a.checkpoint")))["w"].tolist() == [0, 1, 2]


FINAL = [
    name
    for each in ICheckpointStorage.__mro__
    for name, method in vars(each).items()
    if getattr(method, "__final__", False)
]


def test_what_is_final() -> None:
    assert set(FINAL) == {
        *("write", "write_new", "open_writer", "open_reader", "read", "read_range", "read_ranges"),
        *("stat", "exists", "list", "list_pages", "delete", "delete_many", "aclose"),
        *("admit", "end_admission", "with_retries"),
    }


@pytest.mark.parametrize("name", FINAL)
def test_a_storage_that_replaces_a_final_method_is_refused(name: str) -> None:
    line = (
        rf"Mine replaces ICheckpointStorage.{name}, which is final: implement the hooks \(_delete, .*_stat\)"
    )
    with pytest.raises(TypeError, match=line):
        type("Mine", (MemoryStorage,), {name: not_a_hook})
    mixin = type("Mixin", (), {name: not_a_hook})
    with pytest.raises(TypeError, match=line):
        type("Mine", (mixin, MemoryStorage), {})


def test_a_storage_needs_a_way_to_read() -> None:
    with pytest.raises(TypeError, match="Blind has neither of the hooks _read and _open_reader"):
        type("Blind", (ICheckpointStorage,), {})


def test_a_reader_that_replaces_a_final_method_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Mine replaces ObjectReader.read_ranges, .* hooks \(fetch\)"):

        class Mine(ObjectReader):
            async def read_ranges(self, ranges: Sequence[ByteRange], *_: Any, **__: Any) -> None: ...  # type: ignore[misc]


async def test_a_format_may_have_methods_of_any_private_name() -> None:
    names = own_names(ICheckpointFormat, "_serialize", "_deserialize")
    mine = type("Mine", (MlcpFormat,), names)()
    data = await mine.serialize([ShardData.from_arrays({"w": np.arange(3)})], CheckpointMetadata())
    ((shard,), _) = await mine.deserialize(data)
    assert shard.array("w").tolist() == [0, 1, 2]
