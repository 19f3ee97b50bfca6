"""save and load, on every storage: what goes in comes out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import asyncckpt
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.strategies import assert_identical, states
from tests.operations.places import EVERYWHERE, open_medium


def big_state() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "layers": [rng.random((700, 1000), np.float32) for _ in range(9)],
        "many": {f"p{i}": np.full(i % 17, i, np.int32) for i in range(200)},
        "step": 12,
    }


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_a_small_and_a_large_state(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        for name, state in (("small", {"w": np.arange(4), "step": 1}), ("large", big_state())):
            key = f"run/{name}.checkpoint"
            result = await asyncckpt.save(state, (medium.storage, key))
            assert result.key == key
            assert (await medium.storage.stat(key)).size == result.size
            assert_identical(await asyncckpt.load((medium.storage, key)), state)
            report = await asyncckpt.verify((medium.storage, key))
            assert (report.ok, report.bytes_checked) == (True, result.size)
        assert medium.leftovers() == []


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_overwrite_is_asked_for(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, "a.checkpoint")
        for state in ({"w": np.zeros(3)}, big_state()):
            await asyncckpt.save({"first": 1}, place, overwrite=True)
            with pytest.raises(asyncckpt.CheckpointExistsError, match="overwrite=True"):
                await asyncckpt.save(state, place)
            assert await asyncckpt.load(place) == {"first": 1}
            await asyncckpt.save(state, place, overwrite=True)
            assert_identical(await asyncckpt.load(place), state)
        assert medium.leftovers() == []


@given(state=states())
async def test_any_state(state: Any) -> None:
    place = (MemoryStorage(), "x.checkpoint")
    await asyncckpt.save(state, place)
    assert_identical(await asyncckpt.load(place), state)


async def test_a_path_a_url_and_bytes(tmp_path: Path) -> None:
    state = {"w": np.arange(5)}
    await asyncckpt.save(state, tmp_path / "a.checkpoint")
    await asyncckpt.save(state, f"file://{tmp_path}/deep/er/b.checkpoint")
    assert_identical(await asyncckpt.load(str(tmp_path / "a.checkpoint")), state)
    assert_identical(await asyncckpt.load(f"file://{tmp_path}/deep/er/b.checkpoint"), state)
    assert_identical(await asyncckpt.load((tmp_path / "a.checkpoint").read_bytes()), state)
    with pytest.raises(TypeError, match="location"):
        await asyncckpt.load(17)  # type: ignore[arg-type]


async def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for name in ("a", "b"):
        await asyncckpt.save(big_state(), tmp_path / f"{name}.checkpoint", clock=lambda: moment)
    assert (tmp_path / "a.checkpoint").read_bytes() == (tmp_path / "b.checkpoint").read_bytes()


async def test_only_some_tensors() -> None:
    place = (MemoryStorage(), "x.checkpoint")
    await asyncckpt.save({"a": {"w": np.ones(2), "b": np.zeros(2)}, "c": [np.ones(1), 5]}, place)
    assert_identical(
        await asyncckpt.load(place, only="a.*"), {"a": {"w": np.ones(2), "b": np.zeros(2)}, "c": [None, 5]}
    )
    assert_identical(await asyncckpt.load(place, only=["a.w"]), {"a": {"w": np.ones(2)}, "c": [None, 5]})
    found = await asyncckpt.load(place, only=lambda name: name.endswith("0"))
    assert_identical(found, {"a": {}, "c": [np.ones(1), 5]})
    with pytest.raises(asyncckpt.TensorNotFoundError, match=r"'a\.nothing'"):
        await asyncckpt.load(place, only=["a.nothing"])
    with pytest.raises(asyncckpt.TensorNotFoundError, match="no tensor matches"):
        await asyncckpt.load(place, only="z*")


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_into_existing_arrays(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, "x.checkpoint")
        state = big_state()
        await asyncckpt.save(state, place)
        target = big_state()
        for array in target["layers"]:
            array[:] = 0
        # A strided destination can't be filled by bytes directly.
        target["layers"][0] = np.zeros((1000, 700), np.float32).T
        kept = list(target["layers"])
        loaded = await asyncckpt.load(place, into=target)
        assert_identical(loaded["layers"][1:], state["layers"][1:])
        assert np.array_equal(loaded["layers"][0], state["layers"][0])
        assert all(a is b for a, b in zip(loaded["layers"], kept, strict=True))


async def test_into_something_else_is_refused_or_reported() -> None:
    place = (MemoryStorage(), "x.checkpoint")
    await asyncckpt.save({"w": np.ones(2, "<f4"), "v": np.ones(3, "<f4")}, place)
    with pytest.raises(asyncckpt.MismatchError, match="'w' is float32"):
        await asyncckpt.load(place, into={"w": np.ones(2, "<f8"), "v": np.ones(3, "<f4")})
    with pytest.raises(asyncckpt.MismatchError, match=r"missing from the checkpoint \['u'\]"):
        await asyncckpt.load(place, into={"w": np.ones(2, "<f4"), "u": np.ones(1)})
    report = await asyncckpt.load_with_report(place, into={"w": np.zeros(2, "<f4"), "u": np.ones(1)})
    assert (report.missing, report.unexpected) == (("u",), ("v",))
    assert np.array_equal(report.state["w"], np.ones(2, "<f4"))


async def test_loaded_arrays_are_writable_and_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    await asyncckpt.save({"w": np.zeros(100_000)}, path)
    before = path.read_bytes()
    state = await asyncckpt.load(path)
    state["w"][:] = 7
    assert path.read_bytes() == before
    assert (await asyncckpt.load(path))["w"].sum() == 0


async def test_an_old_map_survives_an_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    await asyncckpt.save({"w": np.zeros(1_000_000)}, path)
    old = await asyncckpt.load(path)
    await asyncckpt.save({"w": np.ones(1_000_000)}, path, overwrite=True)
    assert old["w"].sum() == 0
    assert (await asyncckpt.load(path))["w"].sum() == 1_000_000


def test_blocking_calls(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    result = asyncckpt.blocking.save({"w": np.arange(3)}, path)
    assert result.tensors == 1
    assert_identical(asyncckpt.blocking.load(path), {"w": np.arange(3)})
    assert asyncckpt.blocking.verify(path).ok


async def test_blocking_calls_refuse_a_running_loop(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="await asyncckpt's own"):
        asyncckpt.blocking.load(tmp_path / "a.checkpoint")


async def test_a_link_that_the_caller_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    await asyncckpt.save({"w": np.arange(3)}, tmp_path / "blobs" / "0123")
    link = tmp_path / "model.checkpoint"
    link.symlink_to(tmp_path / "blobs" / "0123")
    assert_identical(await asyncckpt.load(link), {"w": np.arange(3)})
    with pytest.raises(asyncckpt.InvalidKeyError):
        await asyncckpt.load((asyncckpt.LocalStorage(tmp_path), "model.checkpoint"))


# --- the table of docs/getting-started.md: what goes in, what comes back ------------------------------------------


async def test_values_that_come_back_in_other_clothes(tmp_path: Path) -> None:
    base = np.arange(6.0).reshape(2, 3)
    frozen = base.copy()
    frozen.setflags(write=False)
    mapped = np.memmap(tmp_path / "mapped", np.float64, "w+", shape=(2, 3))
    mapped[:] = base
    state = {
        "fortran": np.asfortranarray(base),
        "strided": np.arange(12.0).reshape(2, 6)[:, ::2],
        "big-endian": base.astype(">f8"),
        "read-only": frozen,
        "mapped": mapped,
        "repeated": np.broadcast_to(np.arange(3.0), (2, 3)),
    }
    await asyncckpt.save(state, tmp_path / "a.checkpoint")
    loaded = await asyncckpt.load(tmp_path / "a.checkpoint")
    for name, array in state.items():
        found = loaded[name]
        assert type(found) is np.ndarray, name
        assert np.array_equal(found, array), name
        assert found.dtype == np.dtype("<f8"), name
        assert found.flags.c_contiguous, name
        assert found.flags.writeable, name


async def test_views_that_overlap_share_nothing_and_the_same_array_is_one() -> None:
    array = np.arange(4.0)
    storage = MemoryStorage()
    await asyncckpt.save({"w": array, "again": array, "part": array[:2]}, (storage, "x"))
    loaded = await asyncckpt.load((storage, "x"))
    assert loaded["w"] is loaded["again"]
    assert not np.shares_memory(loaded["w"], loaded["part"])
