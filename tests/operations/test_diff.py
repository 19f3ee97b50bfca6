"""diff: what changed between two checkpoints, of any formats, reading no more than it must."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncckpt
from asyncckpt import CheckpointMetadata, TrainingMetadata
from asyncckpt.operations.convert import convert
from asyncckpt.operations.diff import DiffReport, diff
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.wrappers import CountingStorage
from tests.operations.test_requests import RemoteMemory

ITEMS = 200_000


def before_state() -> dict[str, Any]:
    return {
        "same": np.arange(ITEMS, dtype=np.float32),
        "changed": np.zeros(ITEMS, np.float32),
        "shape": np.zeros((2, 3), np.float32),
        "dtype": np.zeros(4, np.float32),
        "removed": np.zeros(1, np.float32),
    }


def after_state() -> dict[str, Any]:
    changed = np.zeros(ITEMS, np.float32)
    changed[7] = 2
    return {
        "same": np.arange(ITEMS, dtype=np.float32),
        "changed": changed,
        "shape": np.zeros((3, 2), np.float32),
        "dtype": np.zeros(4, np.int32),
        "added": np.zeros(1, np.float32),
    }


async def saved(
    before: dict[str, Any], after: dict[str, Any], storage: asyncckpt.ICheckpointStorage | None = None
) -> tuple[Any, Any]:
    storage = storage or MemoryStorage()
    await asyncckpt.save(before, (storage, "a.checkpoint"))
    await asyncckpt.save(after, (storage, "b.checkpoint"))
    return (storage, "a.checkpoint"), (storage, "b.checkpoint")


def changes(report: DiffReport) -> dict[str, str]:
    return {change.name: change.what for change in report.changed}


async def test_added_removed_and_changed() -> None:
    report = await diff(*await saved(before_state(), after_state()))
    assert report.added == ("added",)
    assert report.removed == ("removed",)
    assert changes(report) == {"changed": "bytes", "shape": "shape", "dtype": "dtype"}
    assert report.unchanged == 1
    assert not report.same
    by_name = {change.name: change for change in report.changed}
    assert (by_name["dtype"].before, by_name["dtype"].after) == ("float32", "int32")
    assert (by_name["shape"].before, by_name["shape"].after) == ("[2, 3]", "[3, 2]")
    assert by_name["changed"].before.startswith("crc32c ")
    assert by_name["changed"].before != by_name["changed"].after
    assert by_name["changed"].largest is None


async def test_a_checkpoint_and_itself() -> None:
    a, b = await saved(before_state(), before_state())
    for pair in ((a, a), (a, b)):
        report = await diff(*pair, values=True)
        assert report.same
        assert (report.unchanged, report.changed, report.metadata) == (5, (), ())
        assert report.header == ()


async def test_values_give_the_largest_and_the_mean_difference() -> None:
    report = await diff(*await saved(before_state(), after_state()), values=True)
    change = next(change for change in report.changed if change.name == "changed")
    assert change.largest == 2
    assert change.mean == pytest.approx(2 / ITEMS)


@pytest.mark.parametrize(
    ("before", "after", "largest", "mean"),
    [
        (np.array([1, 200], np.uint8), np.array([200, 1], np.uint8), 199, 199),
        (np.array([True, False]), np.array([True, True]), 1, 0.5),
        (np.array([1 + 1j, 0]), np.array([1 - 1j, 0]), 2, 1),
        (
            np.array([1, 2], ml_dtypes.bfloat16),
            np.array([1, 4], ml_dtypes.bfloat16),
            2,
            1,
        ),
        (np.array(3.5), np.array(1.0), 2.5, 2.5),
    ],
    ids=["uint8", "bool", "complex", "bfloat16", "scalar"],
)
async def test_values_of_every_kind(
    before: np.ndarray, after: np.ndarray, largest: float, mean: float
) -> None:
    report = await diff(*await saved({"w": before}, {"w": after}), values=True)
    assert (report.changed[0].largest, report.changed[0].mean) == (largest, mean)


async def test_text_has_no_distance() -> None:
    report = await diff(*await saved({"w": np.array(["a"])}, {"w": np.array(["b"])}), values=True)
    assert changes(report) == {"w": "bytes"}
    assert report.changed[0].largest is None


async def test_values_that_are_equal_with_other_bits_are_a_change() -> None:
    """−0.0 and 0.0 are not the same bytes; their distance is zero."""
    report = await diff(*await saved({"w": np.array([0.0])}, {"w": np.array([-0.0])}), values=True)
    assert changes(report) == {"w": "bytes"}
    assert report.changed[0].largest == 0


# --- only what it must read -------------------------------------------------------------------------------------


async def test_no_tensor_is_read_when_the_checksums_tell() -> None:
    storage = CountingStorage(RemoteMemory())
    a, b = await saved(before_state(), after_state(), storage)
    storage.log.clear()
    report = await diff(a, b)
    assert changes(report)["changed"] == "bytes"
    assert storage.calls["open_reader"] == 2
    assert storage.calls["fetch"] == 0


async def test_with_values_only_what_changed_is_read() -> None:
    storage = CountingStorage(RemoteMemory())
    a, b = await saved(before_state(), after_state(), storage)
    storage.bytes_read = 0
    await diff(a, b)
    opening = storage.bytes_read
    storage.bytes_read = 0
    await diff(a, b, values=True)
    assert 0 < storage.bytes_read - opening <= 2 * ITEMS * 4


async def test_without_checksums_the_bytes_are_compared() -> None:
    """A foreign safetensors file has none."""
    from safetensors.numpy import save

    before = {"w": np.arange(50, dtype=np.float32), "v": np.ones(3, np.float32)}
    after = {"w": np.arange(50, dtype=np.float32), "v": np.zeros(3, np.float32)}
    report = await diff(save(before), save(after))
    assert changes(report) == {"v": "bytes"}
    assert report.changed[0].before == "float32[3]"
    assert report.unchanged == 1


# --- across formats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", asyncckpt.format_names())
async def test_across_formats(name: str) -> None:
    state: dict[str, Any] = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "n": {"b": np.arange(5, dtype=np.int32)},
    }
    storage = MemoryStorage()
    await asyncckpt.save(state, (storage, "a.checkpoint"), metadata={"run": 1})
    target = (storage, f"b{asyncckpt.get_format(name).extension}")
    converted = await convert((storage, "a.checkpoint"), target, to=name)
    report = await diff((storage, "a.checkpoint"), (storage, converted.key))
    assert (report.added, report.removed, report.changed, report.unchanged) == ((), (), (), 2)
    assert report.same, report.metadata
    headers = [line.split(":")[0] for line in report.header]
    assert ("format" in headers) == (name != "mlcp")
    state["w"][0, 0] = 9
    changed = await asyncckpt.save(
        state, (storage, f"c{asyncckpt.get_format(name).extension}"), format=name, metadata={"run": 1}
    )
    report = await diff((storage, "a.checkpoint"), (storage, changed.key), values=True)
    assert changes(report) == {"w": "bytes"}
    assert report.changed[0].largest == 9


# --- metadata ---------------------------------------------------------------------------------------------------


async def test_metadata() -> None:
    storage = MemoryStorage()
    for key, fields in (("a", {"lr": 0.1, "gone": 1}), ("b", {"lr": 0.2, "new": [1]})):
        await asyncckpt.save({"w": np.zeros(1)}, (storage, key), metadata=fields)
    report = await diff((storage, "a"), (storage, "b"))
    assert report.metadata == (
        "custom_fields.gone: 1 -> None",
        "custom_fields.lr: 0.1 -> 0.2",
        "custom_fields.new: None -> [1]",
    )
    assert not report.same
    assert report.changed == ()


async def test_metadata_is_compared_to_the_bit() -> None:
    storage = MemoryStorage()
    training = TrainingMetadata(learning_rate=math.nan, optimizer_state={"best": math.nan})
    for key, note in (("a", (1, 2)), ("b", (1, 2)), ("c", [1, 2])):
        metadata = CheckpointMetadata(training=training, custom_fields={"loss": math.nan, "note": note})
        await asyncckpt.save({"w": np.zeros(1)}, (storage, key), metadata=metadata)
    assert (await diff((storage, "a"), (storage, "b"))).same
    report = await diff((storage, "a"), (storage, "c"))
    assert report.metadata == ("custom_fields.note: (1, 2) -> [1, 2]",)


async def test_when_it_was_saved_is_no_difference() -> None:
    from datetime import UTC, datetime

    storage = MemoryStorage()
    for key, year in (("a", 2025), ("b", 2026)):
        moment = datetime(year, 1, 1, tzinfo=UTC)
        await asyncckpt.save({"w": np.zeros(1)}, (storage, key), clock=lambda moment=moment: moment)  # type: ignore[misc]
    assert (await diff((storage, "a"), (storage, "b"))).same


async def test_plain_values_of_the_state() -> None:
    """They are part of the checkpoint: two that differ only there are not the same."""
    before = {
        "w": np.zeros(1),
        "step": 1,
        "nan": float("nan"),
        "gone": [2],
        "kind": [1],
        "zero": 0.0,
        "one": 1,
    }
    after = {"w": np.zeros(1), "step": 2, "nan": float("nan"), "new": {"a": "b"}, "kind": (1,), "zero": -0.0}
    after["one"] = True
    report = await diff(*await saved(before, after))
    assert not report.same
    assert set(report.state) == {
        "state['step']: 1 -> 2",
        "state['gone'][0]: 2 -> nothing",
        "state['new']['a']: nothing -> 'b'",
        "state['kind']: list -> tuple",
        "state['zero']: 0.0 -> -0.0",
        "state['one']: 1 -> True",
    }
    assert (report.metadata, report.changed, report.unchanged) == ((), (), 1)


async def test_tensors_are_not_told_twice() -> None:
    report = await diff(*await saved({"w": np.zeros(1)}, {"w": np.zeros(1), "more": [np.ones(2)]}))
    assert report.added == ("more.0",)
    assert report.state == ()


async def test_nothing_there_and_a_damaged_one_are_errors() -> None:
    a, b = await saved({"w": np.zeros(1)}, {"w": np.ones(1)})
    storage = a[0]
    with pytest.raises(asyncckpt.CheckpointNotFoundError, match="none"):
        await diff(a, (storage, "none"))
    data = bytearray(await storage.read("b.checkpoint"))
    data[-1] ^= 1
    with pytest.raises(asyncckpt.ChecksumMismatchError, match="'w'"):
        await diff(a, bytes(data), values=True)
    assert not (await diff(a, b)).same
