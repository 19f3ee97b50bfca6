"""MLDF as a table: every type, partial reads, streaming writes, validation, cancels and damage."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.cancellation import CancellationTokenSource
from asyncckpt.errors import (
    ChecksumMismatchError,
    FormatError,
    LayoutError,
    LimitExceededError,
    NotRepresentableError,
    ObjectExistsError,
    ObjectNotFoundError,
    OperationCancelledError,
    TensorNotFoundError,
    UnsupportedDtypeError,
)
from asyncckpt.formats.mldf.format import MldfFormat
from asyncckpt.formats.mldf.header import Header
from asyncckpt.formats.mldf.table import TableDraft
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.operations.tables.reader import (
    Audio,
    Field,
    Image,
    TypeId,
    array_field,
    open_table,
    open_table_writer,
)
from asyncckpt.storage.base import Capabilities
from asyncckpt.storage.memory import MemoryStorage
from tests.formats.attacks import GOLDEN, HOSTILE_NUMBERS, mutations
from tests.independent import mldf_reader

SAMPLE = GOLDEN / "mldf" / "bytes_only_page4096.mldf"
FIELDS = [
    Field("label", TypeId.INT),
    Field("score", TypeId.FLOAT),
    Field("raw", TypeId.BYTES),
    array_field("x", "float32", (-1, 2)),
    Field("info", TypeId.JSON),
    Field("pixels", TypeId.IMAGE_RAW),
    Field("photo", TypeId.IMAGE_JPEG),
    Field("sound", TypeId.AUDIO_COMPRESSED),
    Field("text", TypeId.TEXT_RAW),
    Field("tokens", TypeId.TEXT_TOKENIZED),
    Field("clip", TypeId.VIDEO_COMPRESSED),
]


def sample_of(number: int) -> dict[str, Any]:
    return {
        "label": number - 1,
        "score": number / 4,
        "raw": bytes(range(number)),
        "x": np.arange(2 * number, dtype="<f4").reshape(number, 2),
        "info": {"n": number, "ä": [None, True]},
        "pixels": np.arange(6 * number, dtype="u1").reshape(number, 2, 3),
        "photo": Image(b"\xff\xd8" + bytes(number), 10, 20, 3),
        "sound": Audio(b"fLaC", 16000, 44100, 2, 24, 1),
        "text": "grüße " * number,
        "tokens": np.arange(number, dtype="<i4" if number % 2 else "<i2"),
        "clip": None if number == 1 else b"clip",
    }


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
            assert found[name].tobytes() == value.tobytes(), name
        else:
            assert found[name] == value, name


async def written(
    samples: Sequence[Mapping[str, Any]], fields: Sequence[Field] = FIELDS, **options: Any
) -> bytes:
    storage = MemoryStorage()
    async with open_table_writer((storage, "t.mldf"), fields, **options) as table:
        for sample in samples:
            await table.write(sample)
        assert table.samples == len(samples)
    return await storage.read("t.mldf")


# -- reading and writing -----------------------------------------------------------------------------------------


async def test_the_seeds_own_file() -> None:
    async with open_table(SAMPLE) as table:
        assert [(f.name, f.type_id) for f in table.fields] == [("payload", TypeId.BYTES)]
        assert len(table) == 3
        for i in range(3):
            assert await table.read(i, "payload") == bytes((j * 7 + i) & 255 for j in range(10 + 5 * i))
        report = await table.validate()
    assert report.ok
    assert (report.payloads, report.payload_bytes) == (3, 45)
    assert report.pointers == {"field_desc": 73, "metadata": 320, "data": 4096, "alloc_table": 4141}
    assert report.unchecked == ("the data has no CRC32 (flag 4)", "the structure has no CRC32")


async def test_every_type_comes_back() -> None:
    samples = [sample_of(i) for i in range(4)]
    data = await written(samples)
    async with open_table(data) as table:
        assert table.fields == tuple(FIELDS)
        for number, sample in enumerate(samples):
            assert_same(await table.read_sample(number), sample)
        assert_same(await table.read_sample(-1), samples[-1])
        assert [s["label"] async for s in table] == [-1, 0, 1, 2]
        report = await table.validate()
    assert report.ok
    assert report.unchecked == ()
    assert report.payloads == 4 * 9 - 1


async def test_arrays_are_writable_and_aligned() -> None:
    data = await written([sample_of(3)])
    async with open_table(data) as table:
        array = await table.read(0, "x")
        array[0, 0] = 7
        assert array[0, 0] == 7
        header = table.header
    start = struct.unpack_from("<Q", data, header.metadata_ptr + 8 + 8 + 16)[0]
    assert start % 64 == 0


async def test_the_same_samples_give_the_same_bytes_however_they_are_handed_over() -> None:
    samples = [sample_of(i) for i in range(5)]
    storage = MemoryStorage()
    async with open_table_writer((storage, "t"), FIELDS, part_bytes=500) as table:
        await table.write_many(samples)
    assert await storage.read("t") == await written(samples)


async def test_the_golden_table() -> None:
    golden = GOLDEN / "mldf" / "table.mldf"
    fields = [
        Field("label", TypeId.INT),
        array_field("x" * 70, "int16", (-1,)),
        Field("text", TypeId.TEXT_RAW),
    ]
    samples = [{"label": i, "x" * 70: np.arange(i, dtype="<i2"), "text": "t" * i} for i in range(3)]
    data = await written(samples, fields, page_bytes=64)
    assert await asyncio.to_thread(golden.read_bytes) == data
    async with open_table(golden) as table:
        assert_same(await table.read_sample(2), samples[2])
    found = mldf_reader.read(data)["samples"]
    assert [row["label"] for row in found] == [0, 1, 2]
    assert found[2]["x" * 70] == ("int16", [-1], b"\0\0\1\0")
    assert found[1]["text"] == b"t"


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=200), st.text()), max_size=5))
async def test_any_values_survive(rows: list[tuple[int, bytes, str]]) -> None:
    fields = [Field("i", TypeId.INT), Field("b", TypeId.BYTES), Field("j", TypeId.JSON)]
    samples = [{"i": i, "b": b, "j": {"text": j}} for i, b, j in rows]
    data = await written(samples, fields, part_bytes=128)
    async with open_table(data) as table:
        assert [sample async for sample in table] == samples
        assert (await table.validate()).ok
    assert [row["i"] for row in mldf_reader.read(data)["samples"]] == [i for i, _, _ in rows]


async def test_an_empty_table_and_missing_values() -> None:
    async with open_table(await written([])) as table:
        assert len(table) == 0
        assert (await table.validate()).ok
        with pytest.raises(IndexError):
            await table.read(0, "raw")
    async with open_table(await written([{"label": 1, "score": 2.0}])) as table:
        found = await table.read_sample(0)
    assert {name for name, value in found.items() if value is not None} == {"label", "score"}


async def test_a_table_on_disk_many_parts_long(tmp_path: Path) -> None:
    fields = [array_field("x", "float64", (1000,)), Field("n", TypeId.INT)]
    target = tmp_path / "t.mldf"
    async with open_table_writer(target, fields, part_bytes=64 * 1024) as table:
        for i in range(100):
            await table.write({"x": np.full(1000, float(i)), "n": i})
    async with open_table(target) as table:
        assert (await table.read(77, "x")).tolist() == [77.0] * 1000
        assert (await table.validate()).ok
    with pytest.raises(ObjectExistsError):
        async with open_table_writer(target, fields) as table:
            await table.write({"n": 1})
    async with open_table_writer(target, fields, overwrite=True) as table:
        await table.write({"n": 1})
    async with open_table(target) as table:
        assert len(table) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.mldf"]


class InOrderStorage(MemoryStorage):
    """Takes parts one after another only, as GCS does."""

    capabilities = Capabilities(any_order=False)


async def test_storages_that_take_parts_in_order_get_the_same_bytes() -> None:
    samples = [sample_of(i) for i in range(4)]
    storage = InOrderStorage()
    async with open_table_writer((storage, "t"), FIELDS, part_bytes=300) as table:
        await table.write_many(samples)
    assert await storage.read("t") == await written(samples)


async def test_a_checkpoint_is_a_table_too() -> None:
    shard = ShardData.from_arrays({"w": np.arange(3.0), "n" * 80: np.ones(2)})
    data = await MldfFormat().serialize([shard], CheckpointMetadata())
    async with open_table(data) as table:
        assert [field.name for field in table.fields] == ["w", "n" * 80]
        assert (await table.read(0, "w")).tolist() == [0, 1, 2]
        assert (await table.validate()).ok


async def test_a_table_is_a_foreign_checkpoint() -> None:
    data = await written([sample_of(2)])
    (shard,), _ = await MldfFormat().deserialize(data)
    assert shard.array("x").tolist() == [[0, 1], [2, 3]]
    assert shard.array("label").tolist() == 1


# -- few bytes ---------------------------------------------------------------------------------------------------


async def test_reading_one_field_fetches_its_own_bytes_and_some_rows() -> None:
    fields = [array_field("x", "uint8", (500_000,)), Field("n", TypeId.INT)]
    samples = [{"x": np.full(500_000, i, "u1"), "n": i} for i in range(4)]
    storage = CountingStorage()
    async with open_table_writer((storage, "t"), fields) as table:
        await table.write_many(samples)
    async with open_table((storage, "t")) as table:
        storage.fetched = 0
        assert (await table.read(2, "n")) == 2
        assert storage.fetched <= 4 * 32
        assert (await table.read(3, "x"))[0] == 3
        assert storage.fetched <= 500_000 + 4 * 32


class CountingStorage(MemoryStorage):
    """Counts the bytes that are read by ranges."""

    fetched = 0

    async def _open_reader(self, key: str, *, first_bytes: int) -> Any:
        reader = await super()._open_reader(key, first_bytes=first_bytes)
        fetch = reader.fetch

        async def counted(
            requests: Any, ranges: Any, into: Any, filled: Callable[[int], None] | None
        ) -> None:
            self.fetched += sum(request.size for request in requests)
            await fetch(requests, ranges, into, filled)

        reader.fetch = counted  # type: ignore[method-assign]
        return reader


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (Field("f", TypeId.INT), 2**63),
        (Field("f", TypeId.INT), "1"),
        (Field("f", TypeId.INT), 1.5),
        (Field("f", TypeId.INT), None),
        (Field("f", TypeId.FLOAT), "x"),
        (Field("f", TypeId.FLOAT), None),
        (Field("f", TypeId.BYTES), "text"),
        (Field("f", TypeId.JSON), float("nan")),
        (Field("f", TypeId.JSON), object()),
        (array_field("f", "float32", (2,)), np.zeros(2)),
        (array_field("f", "float64", (2,)), np.zeros(3)),
        (array_field("f", "float64", (-1, 2)), np.zeros(2)),
        (array_field("f", "float64", (-1, 0)), np.zeros((3, 0))),
        (array_field("f", "float64", (1,)), np.array([object()])),
        (Field("f", TypeId.IMAGE_RAW), np.zeros((2, 2, 3))),
        (Field("f", TypeId.IMAGE_RAW), np.zeros((70_000, 1), "u1")),
        (Field("f", TypeId.IMAGE_RAW), np.zeros((1, 1, 300), "u1")),
        (Field("f", TypeId.IMAGE_PNG), b"png"),
        (Field("f", TypeId.IMAGE_PNG), Image(b"", 70_000, 1, 3)),
        (Field("f", TypeId.AUDIO_WAVEFORM), Audio(b"", 1, 1, bit_depth=256)),
        (Field("f", TypeId.AUDIO_WAVEFORM), b""),
        (Field("f", TypeId.TEXT_RAW), b"bytes"),
        (Field("f", TypeId.TEXT_RAW), "\ud800"),
        (Field("f", TypeId.TEXT_TOKENIZED), np.zeros(2, "<i8")),
        (Field("f", TypeId.TEXT_TOKENIZED), np.zeros((2, 2), "<i4")),
    ],
)
async def test_a_value_that_does_not_fit_is_refused_and_the_table_goes_on(field: Field, value: Any) -> None:
    fields = [Field("first", TypeId.BYTES), field]
    good = {"f": 0} if field.type_id in (TypeId.INT, TypeId.FLOAT) else {}
    storage = MemoryStorage()
    async with open_table_writer((storage, "t"), fields) as table:
        with pytest.raises(NotRepresentableError, match="field 'f' can't hold the value"):
            await table.write({"first": b"lost", "f": value})
        with pytest.raises(NotRepresentableError, match="no field 'other'"):
            await table.write({"other": 1})
        await table.write({"first": b"kept", **good})
    async with open_table((storage, "t")) as table:
        assert len(table) == 1
        assert await table.read(0, "first") == b"kept"
        assert (await table.validate()).ok


def test_impossible_fields_are_refused_at_once() -> None:
    with pytest.raises(LayoutError, match="each with a name of its own"):
        TableDraft([])
    with pytest.raises(LayoutError, match="each with a name of its own"):
        TableDraft([Field("a", TypeId.INT), Field("a", TypeId.INT)])
    with pytest.raises(LimitExceededError, match="65534 fields"):
        TableDraft([Field(f"f{i}", TypeId.INT) for i in range(65_534)])
    with pytest.raises(LayoutError, match="page of 0 bytes"):
        TableDraft(FIELDS, 0)
    with pytest.raises(UnsupportedDtypeError):
        array_field("a", "object", ())
    with pytest.raises(LayoutError, match="has the shape"):
        array_field("a", "int8", (-1, -1))


async def test_a_long_name_needs_a_row_and_bytes_are_no_target() -> None:
    with pytest.raises(LayoutError, match="without samples can't keep names"):
        await written([], [Field("n" * 64, TypeId.INT)])
    with pytest.raises(TypeError, match="can't be written to bytes"):
        async with open_table_writer(b"", FIELDS):
            pass
    with pytest.raises(LayoutError, match="smaller than the header"):
        await written([], part_bytes=16)


async def test_what_is_not_there() -> None:
    with pytest.raises(ObjectNotFoundError):
        async with open_table((MemoryStorage(), "nothing")):
            pass
    async with open_table(await written([sample_of(1)])) as table:
        with pytest.raises(TensorNotFoundError, match="no field 'y'; it has label"):
            await table.read(0, "y")
        for sample in (1, -2):
            with pytest.raises(IndexError):
                await table.read(sample, "label")


# -- nothing is visible before its time --------------------------------------------------------------------------


async def keys(storage: MemoryStorage) -> list[str]:
    return [info.key async for info in storage.list()]


async def test_an_error_in_the_block_leaves_nothing() -> None:
    storage = MemoryStorage()
    with pytest.raises(RuntimeError, match="mine"):
        async with open_table_writer((storage, "t"), FIELDS, part_bytes=100) as table:
            await table.write(sample_of(3))
            assert await keys(storage) == []
            raise RuntimeError("mine")
    assert await keys(storage) == []


async def test_a_cancel_leaves_nothing() -> None:
    storage = MemoryStorage()
    entered = asyncio.Event()

    async def write_for_ever() -> None:
        async with open_table_writer((storage, "t"), FIELDS, part_bytes=100) as table:
            while True:
                await table.write(sample_of(2))
                entered.set()

    task = asyncio.create_task(write_for_ever())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await keys(storage) == []


async def test_a_token_leaves_nothing() -> None:
    storage = MemoryStorage()
    source = CancellationTokenSource()
    with pytest.raises(OperationCancelledError, match="enough"):
        async with open_table_writer((storage, "t"), FIELDS, cancellation=source.token) as table:
            await table.write(sample_of(1))
            source.cancel("enough")
            while True:
                await table.write(sample_of(1))
    assert await keys(storage) == []


class FailingStorage(MemoryStorage):
    """Its second part fails."""

    async def _open_writer(self, key: str, **options: Any) -> Any:
        writer = await super()._open_writer(key, **options)
        write_part = writer.write_part

        async def failing(index: int, views: Any, **more: Any) -> None:
            if index == 1:
                raise OSError("the disk is gone")
            await write_part(index, views, **more)

        writer.write_part = failing  # type: ignore[method-assign]
        return writer


async def test_a_table_that_was_interrupted_can_not_be_finished_by_accident() -> None:
    storage = FailingStorage()
    with pytest.raises(LayoutError, match="an earlier write of this table was interrupted"):
        async with open_table_writer((storage, "t"), FIELDS, part_bytes=4096) as table:
            with pytest.raises(OSError, match="the disk is gone"):
                for _ in range(10):
                    await table.write({"label": 1, "score": 1.0, "raw": bytes(4096)})
    assert await keys(storage) == []


async def test_writers_in_several_tasks_do_not_mix_their_samples() -> None:
    storage = MemoryStorage()
    fields = [Field("n", TypeId.INT), Field("b", TypeId.BYTES)]
    async with open_table_writer((storage, "t"), fields, part_bytes=128) as table:
        await asyncio.gather(*(table.write({"n": n, "b": bytes([n]) * 50}) for n in range(20)))
    async with open_table((storage, "t")) as table:
        rows = [row async for row in table]
    assert sorted(row["n"] for row in rows) == list(range(20))
    assert all(row["b"] == bytes([row["n"]]) * 50 for row in rows)


# -- damage ------------------------------------------------------------------------------------------------------


async def validated(data: bytes) -> bool:
    """Whether a table opens, reads and validates. Raises nothing but FormatError, which counts as no."""
    try:
        async with open_table(data) as table:
            async for _ in table:
                pass
            return (await table.validate()).ok
    except FormatError:
        return False


SMALL_FIELDS = [Field("n", TypeId.INT), Field("b", TypeId.BYTES)]
SMALL = [{"n": 5, "b": b"abc"}, {"n": 6, "b": b"defg"}]


@pytest.mark.thorough
async def test_every_flipped_byte_is_noticed_by_validate() -> None:
    data = await written(SMALL, SMALL_FIELDS, page_bytes=1)
    assert await validated(data)
    header = Header.decode(memoryview(data), len(data))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        padding = 27 <= position < 29
        assert await validated(bytes(damaged)) is padding, (position, header)


@pytest.mark.thorough
async def test_every_truncation_is_noticed() -> None:
    data = await written(SMALL, SMALL_FIELDS, page_bytes=1)
    for size in range(len(data)):
        assert not await validated(data[:size]), size
    assert not await validated(data + bytes(16))


@pytest.mark.thorough
async def test_hostile_numbers_raise_nothing_but_format_errors() -> None:
    data = await written(SMALL, SMALL_FIELDS, page_bytes=1)
    for value in HOSTILE_NUMBERS:
        for at in [*range(9, 73, 4), *range(len(data) - 32 - 48, len(data), 4)]:
            for width in (4, 8):
                number = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
                damaged = (data[:at] + number + data[at + width :])[: len(data)]
                # Free are the header's own padding, and a structure CRC32 of 0, which means that there is none.
                unsummed = data[:69] + bytes(4) + data[73:]
                harmless = damaged[:27] + damaged[29:] == data[:27] + data[29:] or damaged == unsummed
                assert harmless or not await validated(damaged), (value, at, width)


@pytest.mark.thorough
@given(st.data())
async def test_mutations_raise_nothing_but_format_errors(choice: st.DataObject) -> None:
    data = await written([sample_of(2)], page_bytes=1)
    damaged = choice.draw(mutations(data))
    if damaged != data and await validated(damaged):
        # Only the header's own padding is free.
        assert damaged[:27] + damaged[29:] == data[:27] + data[29:]


async def test_a_damaged_array_is_named() -> None:
    data = await written([{"x": np.arange(4, dtype="u1")}], [array_field("x", "uint8", (4,))])
    at = data.index(b"\0\1\2\3")
    async with open_table(data[:at] + b"\xff" + data[at + 1 :]) as table:
        with pytest.raises(ChecksumMismatchError, match="field 'x' is damaged"):
            await table.read(0, "x")
        report = await table.validate()
    assert [problem.split(":")[0] for problem in report.problems] == ["the data is damaged"]


async def test_cells_and_entries_that_point_nowhere_are_counted() -> None:
    data = await written(SMALL, SMALL_FIELDS)
    header = Header.decode(memoryview(data), len(data))
    damaged = bytearray(data)
    struct.pack_into("<Q", damaged, header.metadata_ptr + 8, 2**63)
    struct.pack_into("<Q", damaged, header.alloc_table_ptr, 2**63)
    async with open_table(bytes(damaged)) as table:
        with pytest.raises(FormatError, match="outside the data"):
            await table.read(0, "b")
        assert await table.read(1, "b") == b"defg"
        problems = (await table.validate()).problems
    assert "1 payloads of field 'b' lie outside the data" in problems
    assert any("entries of the allocation table are not in order" in problem for problem in problems)
