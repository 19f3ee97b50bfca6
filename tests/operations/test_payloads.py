"""Large bytes and strings through every operation and format: plain values, whatever holds them."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.registry import get_format
from asyncckpt.model.checksums import Chunking
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.operations.convert import convert
from asyncckpt.operations.diff import diff
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.testing.storage.wrappers import CountingStorage
from asyncckpt.testing.strategies import assert_identical
from tests.formats.state_files import encode_content_files
from tests.independent import safetensors_reader
from tests.independent.tree_reader import read_tree
from tests.operations.test_requests import RemoteMemory

FORMATS = [
    "mlcp",
    "mlcp-set",
    "safetensors",
    "safetensors-set",
    "gptrschk",
    "gptrsten",
    "mldf",
    "sdnb",
    "sdz",
    "metagraph",
]
BLOB = np.random.default_rng(3).bytes(300_000)
TEXT = "größe 😀\udc00 " * 20_000


def state() -> dict[str, Any]:
    return {
        "model": {"w": np.arange(6, dtype=np.float32)},
        "tokenizer": BLOB,
        "config": (TEXT, [BLOB, b"short"]),
        "model#bytes": np.ones(2, np.int32),
    }


async def saved(
    storage: asyncckpt.ICheckpointStorage, format: str, content: Any = None, name: str = "x"
) -> tuple[Any, str]:
    result = await asyncckpt.save(
        state() if content is None else content, (storage, name + get_format(format).extension), format=format
    )
    return storage, result.key


@pytest.mark.parametrize("format", FORMATS)
async def test_they_come_back_in_every_format(format: str) -> None:
    place = await saved(MemoryStorage(), format)
    loaded = await asyncckpt.load(place)
    assert_identical(loaded, state())
    assert loaded["tokenizer"] is loaded["config"][1][0] or not get_format(format).has_payloads
    report = await asyncckpt.verify(place)
    assert report.ok
    assert report.tensors == 2
    async with asyncckpt.open_checkpoint(place) as checkpoint:
        assert sorted(checkpoint.tensors) == ["model#bytes", "model.w"]
        names = {} if not get_format(format).has_payloads else {"tokenizer#bytes", "config.0#str"}
        assert checkpoint.payloads.keys() == set(names)


@pytest.mark.parametrize("format", ["mlcp", "safetensors", "gptrsten"])
async def test_a_part_of_the_tensors_brings_all_plain_values(format: str) -> None:
    place = await saved(MemoryStorage(), format)
    loaded = await asyncckpt.load(place, only="model.*")
    assert_identical(loaded, {key: value for key, value in state().items() if key != "model#bytes"})
    with pytest.raises(asyncckpt.TensorNotFoundError):
        await asyncckpt.load(place, only="tokenizer*")
    asked: list[str] = []

    def note(name: str) -> bool:
        asked.append(name)
        return False

    await asyncckpt.load(place, only=note)
    assert sorted(asked) == ["model#bytes", "model.w"]


async def test_loading_into_a_state() -> None:
    place = await saved(MemoryStorage(), "mlcp")
    into: dict[str, Any] = {"model": {"w": np.zeros(6, np.float32)}, "model#bytes": np.zeros(2, np.int32)}
    loaded = await asyncckpt.load(place, into=into)
    assert_identical(loaded, state())
    assert loaded["model"]["w"] is into["model"]["w"]


@pytest.mark.parametrize("other", FORMATS)
async def test_converting_there_and_back_keeps_the_state(other: str) -> None:
    storage = MemoryStorage()
    first = await saved(storage, "mlcp")
    away = (storage, f"away{get_format(other).extension}")
    report = await convert(first, away, to=other)
    assert report.tensors == 2
    assert report.losses == ()
    back = (storage, "back.safetensors")
    assert (await convert((storage, report.key), back)).tensors == 2
    for place in ((storage, report.key), back):
        assert_identical(await asyncckpt.load(place), state())
        assert (await diff(first, place)).same


@pytest.mark.parametrize("other", ["mlcp", "gptrsten"])
async def test_diff_finds_a_changed_payload_without_reading_it(other: str) -> None:
    storage = CountingStorage(RemoteMemory())
    changed = state() | {"tokenizer": BLOB[:-1] + bytes([BLOB[-1] ^ 1])}
    a, b = await saved(storage, "mlcp"), await saved(storage, other, changed, "y")
    storage.log.clear()
    report = await diff(a, b)
    # The one fetch is of the text that GPTRS keeps in its tree.
    assert storage.calls["fetch"] == (0 if other == "mlcp" else 1)
    assert not report.changed
    assert not report.added
    assert not report.removed
    [line] = report.state
    assert line.startswith("state['tokenizer']: bytes of 300000 bytes, crc32c ")
    assert line.split(" -> ")[0].split(": ")[1] != line.split(" -> ")[1]
    assert (await diff(a, a)).same


async def test_diff_of_files_with_other_chunks_reads_the_payloads() -> None:
    storage = MemoryStorage()
    await saved(storage, "mlcp", {"b": BLOB}, "a")
    async with asyncckpt.open_checkpoint((storage, "a.checkpoint")) as checkpoint:
        [stored] = checkpoint.index.tensors
        assert stored.chunk_bytes == 1 << 20
        assert stored.checksums is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chunking, "for_sizes", classmethod(lambda cls, sizes: cls.of(1 << 16, list(sizes))))
        await saved(storage, "mlcp", {"b": BLOB}, "b")
        await saved(storage, "mlcp", {"b": BLOB[1:]}, "c")
    assert (await diff((storage, "a.checkpoint"), (storage, "b.checkpoint"))).same
    assert not (await diff((storage, "a.checkpoint"), (storage, "c.checkpoint"))).same


async def test_a_flipped_bit_in_a_payload_is_noticed() -> None:
    storage = MemoryStorage()
    place = await saved(storage, "safetensors")
    data = bytearray(await storage.read(place[1]))
    data[data.index(BLOB) + 1000] ^= 1
    await storage.write(place[1], bytes(data))
    with pytest.raises(asyncckpt.ChecksumMismatchError, match="tokenizer#bytes"):
        await asyncckpt.load(place, only="model.w")


def _hostile(tree: Any) -> bytes:
    """A sound file with a tree of our choice."""
    shard = ShardData.from_arrays(
        {"f": np.ones(3, np.float32), "two": np.ones((2, 2), np.uint8), "u": np.full(3, 255, np.uint8)}
    )
    content = Content(shard.tensor_info, (3,), CheckpointMetadata(), tree)
    [data] = encode_content_files(MlcpFormat(), content, shard.views).values()
    return data


@pytest.mark.parametrize(
    "node", [{"pb": "nowhere"}, {"pb": "f"}, {"ps": "two"}, {"ps": "u"}, {"pb": None}, {"pb": {}}], ids=str
)
async def test_hostile_trees_are_format_errors(node: Any) -> None:
    data = _hostile({"d": ["k", node, "f", {"t": "f"}]})
    for only in (None, "f"):
        with pytest.raises(asyncckpt.FormatError):
            await asyncckpt.load(data, only=only)
    with pytest.raises(asyncckpt.FormatError):
        await asyncckpt.load_with_report(data, into={"f": np.zeros(3, np.float32)})
    if node != {"ps": "u"}:
        # Where nothing is decoded, a string may be anything.
        with pytest.raises(asyncckpt.FormatError):
            await diff(data, _hostile({"d": []}))


async def test_an_independent_reader_reads_them_from_the_documents() -> None:
    given = state() | {"plain": (None, -0.0, 2**70, "\ud800", b"\xff", 1j, {1: [True]})}
    storage = MemoryStorage()
    await asyncckpt.save(given, (storage, "x.safetensors"))
    found, block = safetensors_reader.read(await storage.read("x.safetensors"))
    assert block is not None

    def tensor(name: str, kind: str) -> np.ndarray:
        assert kind == "numpy"
        dtype, shape, data = found[name]
        return np.frombuffer(bytearray(data), {"F32": "<f4", "I32": "<i4"}[dtype]).reshape(shape)

    def payload(name: str) -> bytes:
        dtype, shape, data = found[name]
        assert dtype == "U8"
        assert shape == [len(data)]
        return data

    assert_identical(read_tree(block["tree"], tensor, payload), given)


async def test_safetensors_sees_them_as_bytes() -> None:
    storage = MemoryStorage()
    await asyncckpt.save(state(), (storage, "x.safetensors"))
    data = await storage.read("x.safetensors")
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert header["tokenizer#bytes"]["dtype"] == "U8"
    assert header["tokenizer#bytes"]["shape"] == [len(BLOB)]
    assert length < 5_000


async def _peak(call: Callable[[], Awaitable[Any]]) -> int:
    """The most memory that Python and numpy held during the call, beyond what they held before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = await call()
        peak = tracemalloc.get_traced_memory()[1] - before
        del result
    finally:
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("format", ["mlcp", "safetensors"])
@pytest.mark.parametrize("value", [bytes(20_000_000), "x" * 20_000_000], ids=["bytes", "str"])
async def test_memory_in_proportion_to_the_value(tmp_path: Path, format: str, value: Any) -> None:
    path = tmp_path / "x"
    saving = await _peak(lambda: asyncckpt.save({"v": value}, path, format=format))
    assert saving < (0.3 if isinstance(value, bytes) else 1.5) * len(value)
    # The value itself, and what it grows by while it is put together.
    assert await _peak(lambda: asyncckpt.load(path)) < 1.5 * len(value)
