"""Very many objects: made without collections, aged afterwards, let go piece by piece."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from asyncckpt._aio import dismantle, gc_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    assert gc.isenabled()
    yield
    assert gc.isenabled()


def young(wanted: list[Any]) -> set[int]:
    """Which of the objects the next young collection would walk over."""
    ids = {id(item) for item in wanted}
    return {id(item) for item in gc.get_objects(generation=0)} & ids


def test_no_collection_in_a_pause_and_none_of_its_objects_afterwards() -> None:
    collections = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with gc_paused():
            made: list[Any] = [[] for _ in range(100_000)]
    finally:
        gc.callbacks.remove(note)
    assert collections == []
    assert young(made) == set()


def test_what_the_process_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused():
            made: list[Any] = [[] for _ in range(100_000)]
        assert gc.get_freeze_count() == frozen
        assert made
    finally:
        gc.unfreeze()


def test_dismantle_empties_every_container() -> None:
    inner: dict[str, Any] = {"x": [1, 2]}
    shared = [inner]
    tree = {"a": shared, "b": [shared, {"c": inner}], "d": [0] * 25_000}
    kept = list(tree.values())
    dismantle(tree)
    assert (tree, inner, shared, kept) == ({}, {}, [], [[], [], []])


def test_dismantle_survives_cycles_and_leaves_strangers_alone() -> None:
    class Stranger(list[int]):
        pass

    stranger = Stranger([1])
    tree: list[Any] = [stranger]
    tree.append(tree)
    dismantle(tree)
    assert (tree, stranger) == ([], [1])
    dismantle(stranger)
    dismantle(5)
    assert stranger == [1]
