"""Any sequence of calls on a storage gives what a dict would give, and what the medium shows."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncckpt.errors import ObjectExistsError, ObjectNotFoundError
from asyncckpt.model.ranges import ByteRange
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage

T = TypeVar("T")

# No key is a folder of another: a disk can't have both.
KEYS = st.sampled_from(["a", "b/x", "b/y", "b-", "c/d/e", "ü"])
DATA = st.binary(max_size=40)
PREFIXES = st.sampled_from(["", "b", "b/", "b/x", "c/", "c/d", "none"])


class _Abandoned(Exception):
    """Leaves the block of a writer."""


class StorageMachine(RuleBasedStateMachine):
    """The storage beside its model: a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, bytes] = {}
        self.storage = self.make_storage()

    def make_storage(self) -> ICheckpointStorage:
        return MemoryStorage()

    def run_now(self, operation: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(operation)

    def teardown(self) -> None:
        self.run_now(self.storage.aclose())
        self.loop.close()

    @rule(key=KEYS, data=DATA)
    def write(self, key: str, data: bytes) -> None:
        info = self.run_now(self.storage.write(key, data))
        assert info.size == len(data)
        self.model[key] = data

    @rule(key=KEYS, data=DATA)
    def write_new(self, key: str, data: bytes) -> None:
        if key in self.model:
            with pytest.raises(ObjectExistsError):
                self.run_now(self.storage.write_new(key, data))
        else:
            self.run_now(self.storage.write_new(key, data))
            self.model[key] = data

    @rule(key=KEYS, data=DATA, part_bytes=st.integers(1, 9), exclusive=st.booleans(), rng=st.randoms())
    def write_parts(self, key: str, data: bytes, part_bytes: int, exclusive: bool, rng: Any) -> None:
        async def write() -> None:
            parts = [(start // part_bytes, start) for start in range(0, len(data), part_bytes)]
            rng.shuffle(parts)
            async with self.storage.open_writer(key, part_bytes=part_bytes, exclusive=exclusive) as writer:
                for index, start in parts:
                    await writer.write_part(index, [data[start : start + part_bytes]])

        if exclusive and key in self.model:
            with pytest.raises(ObjectExistsError):
                self.run_now(write())
        else:
            self.run_now(write())
            self.model[key] = data

    @rule(key=KEYS, data=DATA, exclusive=st.booleans())
    def abandon_a_write(self, key: str, data: bytes, exclusive: bool) -> None:
        async def write() -> None:
            async with self.storage.open_writer(key, part_bytes=100, exclusive=exclusive) as writer:
                await writer.write_part(0, [data])
                raise _Abandoned

        with pytest.raises((_Abandoned, ObjectExistsError)):
            self.run_now(write())

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.run_now(self.storage.delete(key))
        self.model.pop(key, None)

    @rule(key=KEYS)
    def read_what_is_there_or_not(self, key: str) -> None:
        if key in self.model:
            assert self.run_now(self.storage.read(key)) == self.model[key]
            assert self.run_now(self.storage.stat(key)).size == len(self.model[key])
        else:
            with pytest.raises(ObjectNotFoundError):
                self.run_now(self.storage.read(key))
            assert not self.run_now(self.storage.exists(key))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read_ranges(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        content = self.model[key]
        bounds = st.tuples(st.integers(0, len(content)), st.integers(0, len(content))).map(sorted)
        ranges = [ByteRange(*pair) for pair in data.draw(st.lists(bounds, max_size=5))]
        buffers = [bytearray(r.size) for r in ranges]
        self.run_now(self.storage.read_ranges(key, ranges, [memoryview(b) for b in buffers]))
        assert [bytes(b) for b in buffers] == [content[r.start : r.end] for r in ranges]

    @rule(prefix=PREFIXES)
    def list_prefix(self, prefix: str) -> None:
        expected = sorted((key for key in self.model if key.startswith(prefix)), key=str.encode)
        assert self.run_now(self.listed(prefix)) == expected

    async def listed(self, prefix: str) -> list[str]:
        return [info.key async for info in self.storage.list(prefix)]

    @invariant()
    def the_medium_agrees(self) -> None:
        assert self.on_the_medium() == self.model

    def on_the_medium(self) -> dict[str, bytes]:
        assert isinstance(self.storage, MemoryStorage)
        assert self.storage.unfinished == []
        return {key: stored.data for key, stored in self.storage._objects.items()}


class LocalMachine(StorageMachine):
    def make_storage(self) -> ICheckpointStorage:
        self.root = Path(tempfile.mkdtemp(prefix="asyncckpt-model-"))
        return LocalStorage(self.root)

    def on_the_medium(self) -> dict[str, bytes]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in files}

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.root)


@pytest.mark.parametrize(("machine", "share"), [(StorageMachine, 1), (LocalMachine, 3)])
def test_any_sequence_of_calls(machine: type[StorageMachine], share: int) -> None:
    examples = max(1, settings.default.max_examples // share) if settings.default else 20
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=20))
