"""safetensors: both ways with the package, golden bytes, foreign files, and every kind of damage."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import (
    ChecksumMismatchError,
    FormatError,
    LayoutError,
    LimitExceededError,
    NotRepresentableError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedStateError,
)
from asyncckpt.formats.base import content_of
from asyncckpt.formats.kit.encode import render
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.safetensors import file as safetensors_format
from asyncckpt.formats.safetensors.file import MAX_HEADER_BYTES, SafetensorsFormat
from asyncckpt.model.dtype import item_size, numpy_dtype
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata, TensorMetadata, TrainingMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.testing.strategies import arrays, assert_identical
from tests.formats import state_files
from tests.formats.attacks import (
    GOLDEN,
    HOSTILE_NUMBERS,
    assert_dump_matches,
    assert_read_or_refused,
    bit_flips,
    mutations,
    outcome,
    with_number,
)
from tests.independent import safetensors_reader

FORMAT = SafetensorsFormat()
SAMPLES = GOLDEN / "safetensors"
SMALLEST_STATE = {"w": np.arange(3, dtype=np.float32)}
SMALLEST = (SAMPLES / "smallest.safetensors").read_bytes()
TAGS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip


def read_all(data: bytes) -> tuple[Any, ...]:
    return state_files.read_all(FORMAT, data)


def made(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    """A foreign file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def raw_tensor(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    count = int(np.prod(shape)) * item_size(dtype)
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count, np.uint8)
    return np.ndarray(shape, numpy_dtype(dtype), buffer=data.data)


def every_dtype() -> dict[str, np.ndarray]:
    return {f"t.{dtype}": raw_tensor(dtype, (2, 3), n) for n, dtype in enumerate(TAGS.values())}


# -- both ways -----------------------------------------------------------------------------------------------


async def test_shards_and_metadata_come_back() -> None:
    first = ShardData.from_arrays({"z": np.ones((2, 2), np.int8), "a": np.array(2.5)}, rank=0)
    second = ShardData.from_arrays({"m": np.zeros((0, 3), np.float32), "ключ": np.arange(5)}, rank=1)
    metadata = CheckpointMetadata(
        version="7",
        world_size=2,
        shards=(ShardMetadata(rank=0, extra={"host": "a"}), ShardMetadata(rank=1)),
        training=TrainingMetadata(epoch=1, step=20),
        custom_fields={"note": "text", "list": [1, None]},
    )
    data = await FORMAT.serialize([first, second], metadata)
    shards, found = await FORMAT.deserialize(data)
    assert [shard.rank for shard in shards] == [0, 1]
    assert [[t.name for t in shard.tensor_info] for shard in shards] == [["z", "a"], ["m", "ключ"]]
    assert_identical(shards[0].arrays(), first.arrays())
    assert_identical(shards[1].arrays(), second.arrays())
    assert replace(found, shards=()) == replace(metadata, shards=())
    assert found.shards[0].extra == {"host": "a"}
    assert await FORMAT.serialize(shards, found) == data


def test_a_state_comes_back_as_it_was() -> None:
    tied = np.arange(4.0)
    state = {
        "model": [tied, {"same": tied}],
        3: (np.float16(1.5), None, "text"),
        "n": 10**30,
        "": np.array(7),
    }
    again = state_files.decode(FORMAT, state_files.encode(FORMAT, state))
    assert_identical(again, state)
    assert again["model"][0] is again["model"][1]["same"]


@given(st.dictionaries(st.text(max_size=5), arrays(names=st.sampled_from(sorted(TAGS.values()))), max_size=5))
def test_any_tensors_come_back(state: dict[str, np.ndarray]) -> None:
    if all(name.isascii() or name.encode(errors="ignore").decode() == name for name in state):
        assert_identical(state_files.decode(FORMAT, state_files.encode(FORMAT, state)), normal(state))


def normal(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return ShardData.from_arrays(state).arrays()


def test_equal_states_give_equal_bytes_and_keep_their_order() -> None:
    names = ["b", "a", "c"]
    one = {name: np.arange(3, dtype=np.float32) for name in names}
    data = state_files.encode(FORMAT, one)
    assert data == state_files.encode(FORMAT, {name: one[name].copy() for name in names})
    assert list(state_files.decode(FORMAT, data)) == names


def test_data_begins_at_a_multiple_of_64_and_items_are_aligned() -> None:
    state = {f"{n}.{name}": value for n in (1, 2) for name, value in every_dtype().items()}
    index = state_files.parse(FORMAT, state_files.encode(FORMAT, state))
    offsets = {stored.name: stored.extents[0].offset for stored in index.tensors}
    assert min(offsets.values()) % 64 == 0
    assert all(offsets[stored.name] % item_size(stored.metadata.dtype) == 0 for stored in index.tensors)
    assert list(offsets) == list(state)


def test_boxes_survive() -> None:
    tensor = TensorMetadata("w@2", "float32", (2,), global_shape=(4,), origin=(2,))
    content = Content((tensor,), (1,), CheckpointMetadata())
    (plan,) = FORMAT.plan(content, name="x.safetensors")
    data = render(plan, lambda number, start, end: bytes(8)[start:end])
    (stored,) = state_files.parse(FORMAT, data).tensors
    assert (stored.metadata.global_shape, stored.metadata.origin) == ((4,), (2,))


@pytest.mark.thorough
def test_20_000_tensors_are_planned_and_parsed() -> None:
    state = {f"layers.{n}.weight": np.full(2, n, np.float32) for n in range(20_000)}
    data = state_files.encode(FORMAT, state)
    index = state_files.parse(FORMAT, data)
    assert [stored.name for stored in index.tensors] == list(state)
    assert state_files.arrays_of(index, data)["layers.19999.weight"].tolist() == [19999, 19999]


# -- the package ---------------------------------------------------------------------------------------------


def test_the_package_reads_what_we_write() -> None:
    state = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "ünï": np.array([True, False]),
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float16),
    }
    data = state_files.encode(FORMAT, state, CheckpointMetadata(custom_fields={"who": "me", "n": 1}))
    assert_identical(dict(sorted(safetensors.numpy.load(data).items())), dict(sorted(state.items())))


def test_the_package_sees_format_pt_and_our_strings(tmp_path: Any) -> None:
    metadata = CheckpointMetadata(custom_fields={"who": "me", "n": 1})
    path = tmp_path / "x.safetensors"
    path.write_bytes(state_files.encode(FORMAT, SMALLEST_STATE, metadata))
    with safetensors.safe_open(path, framework="np") as opened:
        found = opened.metadata()
    assert {name: found[name] for name in ("format", "who")} == {"format": "pt", "who": "me"}
    assert set(found) == {"format", "who", "asyncckpt"}


@pytest.mark.parametrize("tag", TAGS)
def test_the_package_reads_every_dtype_that_it_knows(tag: str) -> None:
    array = raw_tensor(TAGS[tag], (2, 3), 1)
    data = state_files.encode(FORMAT, {"t": array})
    deserialize: Any = safetensors.deserialize
    try:
        deserialize(made({"t": entry(tag, [0], [0, 0])}))
    except safetensors.SafetensorError:
        # An older package; our own reader still agrees with the independent one.
        found: dict[str, Any] = dict(
            zip(("dtype", "shape", "data"), safetensors_reader.read(data)[0]["t"], strict=True)
        )
    else:
        ((_, found),) = deserialize(data)
    assert (found["dtype"], list(found["shape"]), bytes(found["data"])) == (tag, [2, 3], array.tobytes())


def test_we_read_what_the_package_writes() -> None:
    state = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1, 2], np.int8),
        "ä": np.array(1.0),
    }
    data = safetensors.numpy.save(state, {"k": "v"})
    index = state_files.parse(FORMAT, data)
    assert_identical(dict(sorted(state_files.arrays_of(index, data).items())), dict(sorted(state.items())))
    assert index.metadata.custom_fields == {"k": "v"}
    assert index.tree is None
    assert all(stored.checksums is None for stored in index.tensors)


def test_our_order_of_the_data_is_the_package_s() -> None:
    state = {name: value for name, value in every_dtype().items() if value.dtype.kind in "fiubc"}
    state |= {f"{name}.2": value.copy() for name, value in state.items()}
    theirs = state_files.parse(FORMAT, safetensors.numpy.save(state))
    ours = state_files.parse(FORMAT, state_files.encode(FORMAT, state))
    by_place = sorted(ours.tensors, key=lambda stored: stored.extents[0].offset)
    assert [stored.name for stored in by_place] == [stored.name for stored in theirs.tensors]


def test_every_dtype_of_the_package_s_sample() -> None:
    data = (SAMPLES / "package_every_dtype.safetensors").read_bytes()
    index = state_files.parse(FORMAT, data)
    found = state_files.arrays_of(index, data)
    assert set(found) == {f"t.{tag}" for tag in TAGS}
    for tag, dtype in TAGS.items():
        array = found[f"t.{tag}"]
        raw = bytes((7 * i + 1) % 251 for i in range(6 * item_size(dtype)))
        assert (array.dtype, array.shape) == (numpy_dtype(dtype), (2, 3))
        assert array.tobytes() == (bytes([0, 1, 1, 0, 1, 0]) if tag == "BOOL" else raw)
    assert index.metadata.custom_fields == {"format": "pt", "note": "grüße"}


def test_foreign_metadata_is_written_again() -> None:
    data = (SAMPLES / "package_every_dtype.safetensors").read_bytes()
    index = state_files.parse(FORMAT, data)
    again = state_files.encode(FORMAT, state_files.arrays_of(index, data), replace(index.metadata, shards=()))
    header = json.loads(again[8 : 8 + struct.unpack_from("<Q", again)[0]])
    del header["__metadata__"]["asyncckpt"]
    assert header["__metadata__"] == {"format": "pt", "note": "grüße"}


def test_packed_dtypes_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"tensor 'packed' is F4, packed in 4 bits"):
        read_all((SAMPLES / "package_f4.safetensors").read_bytes())


# -- golden bytes --------------------------------------------------------------------------------------------


def test_the_smallest_file_has_not_changed() -> None:
    assert state_files.encode(FORMAT, SMALLEST_STATE) == SMALLEST
    assert_identical(state_files.decode(FORMAT, SMALLEST), SMALLEST_STATE)


def test_the_dump_in_the_docs_is_the_golden_file() -> None:
    assert_dump_matches("safetensors.md", SMALLEST)


def test_the_independent_reader_agrees() -> None:
    tensors, block = safetensors_reader.read(SMALLEST)
    assert tensors == {"w": ("F32", [3], SMALLEST_STATE["w"].tobytes())}
    assert block is not None
    assert block["tree"] == {"d": ["w", {"t": "w"}]}
    state = {f"{n}.{name}": value for n in range(3) for name, value in every_dtype().items()}
    state["large"] = np.arange(300_000, dtype=np.int64)
    tensors, _ = safetensors_reader.read(state_files.encode(FORMAT, state))
    assert {name: content for name, (_, _, content) in tensors.items()} == {
        name: array.tobytes() for name, array in state.items()
    }
    assert {name: (TAGS[tag], tuple(shape)) for name, (tag, shape, _) in tensors.items()} == {
        t.name: (t.dtype, t.shape) for t in ShardData.from_arrays(state).tensor_info
    }


# -- what can't be stored ------------------------------------------------------------------------------------


def test_all_losses_are_listed() -> None:
    state = {
        "c": np.zeros(2, np.complex128),
        "s": np.array([b"ab"]),
        "t": np.array(0, "datetime64[s]"),
        "ok": np.ones(1),
    }
    with pytest.raises(NotRepresentableError, match=r"'c' is complex128, .* \(and 2 more\)") as caught:
        state_files.encode(FORMAT, state)
    assert len(caught.value.losses) == 3


def test_names_that_can_t_be_written_are_losses() -> None:
    shard = ShardData.from_arrays({"__metadata__": np.ones(1), "\ud800": np.ones(1)})
    losses = FORMAT.losses(content_of([shard], CheckpointMetadata())[0])
    assert len(losses) == 2
    assert "keeps for its metadata" in losses[0]
    assert "no Unicode" in losses[1]


def test_our_own_key_and_what_is_no_json_are_refused() -> None:
    for fields, kind, text in (
        ({"asyncckpt": 1}, LayoutError, "asyncckpt's own"),
        ({"x": object()}, UnsupportedStateError, r"custom_fields\['x'\]"),
    ):
        with pytest.raises(kind, match=text):
            state_files.encode(FORMAT, SMALLEST_STATE, CheckpointMetadata(custom_fields=fields))


def test_custom_fields_that_are_no_unicode_stay_in_the_block() -> None:
    metadata = CheckpointMetadata(custom_fields={"bad": "\ud800", "good": "ü"})
    data = state_files.encode(FORMAT, SMALLEST_STATE, metadata)
    assert safetensors.numpy.load(data)["w"].tolist() == [0, 1, 2]
    assert state_files.parse(FORMAT, data).metadata.custom_fields == metadata.custom_fields


def test_a_header_over_the_limit_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MAX_HEADER_BYTES == 100_000_000
    monkeypatch.setattr(safetensors_format, "MAX_HEADER_BYTES", 500)
    metadata = CheckpointMetadata(custom_fields={"x": ["y" * 500]})
    with pytest.raises(LimitExceededError, match="safetensors allows 500: save fewer tensors"):
        FORMAT.plan(Content((), (0,), metadata), name="x")


# -- hostile headers -----------------------------------------------------------------------------------------

HOSTILE_HEADERS: list[tuple[dict[str, Any] | bytes, bytes, type[FormatError]]] = [
    (b"", b"", TruncatedError),
    (b"[]", b"", LayoutError),
    (b" {}", b"", LayoutError),
    (b'{"a":', b"", LayoutError),
    (b"{" + b'"a":{' * 5000, b"", FormatError),
    (b'{"a":NaN}', b"", LayoutError),
    (b'{"\xff":1}', b"", LayoutError),
    (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4), LayoutError),
    (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', bytes(4), LayoutError),
    ({"a": 1}, b"", LayoutError),
    ({"a": []}, b"", LayoutError),
    ({"a": {"dtype": "F32", "shape": [1]}}, b"", LayoutError),
    ({"a": entry(offsets=[0])}, bytes(4), LayoutError),
    ({"a": entry(offsets=[0, 4, 8])}, bytes(4), LayoutError),
    ({"a": entry(offsets=[0, 4.0])}, bytes(4), LayoutError),
    ({"a": entry(offsets=[-4, 0])}, bytes(4), LayoutError),
    ({"a": entry(offsets=[4, 0])}, bytes(4), LayoutError),
    ({"a": entry(offsets="04")}, bytes(4), LayoutError),
    ({"a": entry(shape=[-1])}, bytes(4), LayoutError),
    ({"a": entry(shape=[True])}, bytes(4), LayoutError),
    ({"a": entry(shape=[1.0])}, bytes(4), LayoutError),
    ({"a": entry(shape={})}, bytes(4), LayoutError),
    ({"a": entry(shape=[[1]])}, bytes(4), LayoutError),
    ({"a": entry(shape=[1]), "b": entry(shape=[True], offsets=[4, 8])}, bytes(8), LayoutError),
    ({"a": entry(shape=[1]), "b": entry(shape=[1.0], offsets=[4, 8])}, bytes(8), LayoutError),
    ({"a": entry(offsets=[2**63, 2**63 + 4])}, bytes(4), LayoutError),
    ({"a": entry(shape=[2])}, bytes(4), LayoutError),
    ({"a": entry(shape=[1] * 65)}, bytes(4), LimitExceededError),
    ({"a": entry(shape=[2**62] * 64)}, bytes(4), LayoutError),
    ({"a": entry(dtype="F31")}, bytes(4), UnsupportedDtypeError),
    ({"a": entry(dtype=None)}, bytes(4), UnsupportedDtypeError),
    ({"a": entry(dtype=[])}, bytes(4), UnsupportedDtypeError),
    ({"a": entry()}, bytes(3), TruncatedError),
    ({"a": entry()}, bytes(5), LayoutError),
    ({"a": entry(offsets=[4, 8])}, bytes(8), LayoutError),
    ({"a": entry(), "b": entry()}, bytes(4), LayoutError),
    ({"a": entry(), "b": entry(offsets=[2, 6])}, bytes(6), LayoutError),
    ({"a": entry(), "b": entry(offsets=[8, 12])}, bytes(12), LayoutError),
    (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
     bytes(4), LayoutError),
    ({"__metadata__": []}, b"", LayoutError),
    ({"__metadata__": {"a": 1}}, b"", LayoutError),
    ({"__metadata__": {"asyncckpt": "{}"}}, b"", LayoutError),
    ({"__metadata__": {"asyncckpt": "ü"}}, b"", LayoutError),
    ({"__metadata__": {"asyncckpt": "[" * 5000}}, b"", FormatError),
    ({"__metadata__": {"other": '{"block":1}'}}, b"", LayoutError),
]  # fmt: skip


@pytest.mark.parametrize("shape", [[True], [1.0], "1", {"1": 1}, [[1]], [-1], [1 << 63]])
@pytest.mark.parametrize("wrong_first", [True, False])
def test_a_shape_that_only_looks_like_one_is_refused(shape: Any, wrong_first: bool) -> None:
    """Also beside a sound one that is equal to it: 1 == 1.0 == True."""
    entries = [("a", {"dtype": "U8", "shape": shape}), ("b", {"dtype": "U8", "shape": [1]})]
    ordered = entries if wrong_first else entries[::-1]
    header = {
        name: {**entry, "data_offsets": [number, number + 1]} for number, (name, entry) in enumerate(ordered)
    }
    with pytest.raises(LayoutError):
        read_all(made(header, b"ab"))


@pytest.mark.parametrize(("header", "data", "error"), HOSTILE_HEADERS)
def test_hostile_headers_are_refused(header: Any, data: bytes, error: type[FormatError]) -> None:
    with pytest.raises(error):
        read_all(made(header, data))


def test_harmless_oddities_are_read() -> None:
    header = {
        "__metadata__": None,
        "b": entry(offsets=[4, 8]),
        "a": {**entry(), "more": 1},
        "e": entry(shape=[0, 2], offsets=[4, 4]),
    }
    metadata, _, tensors = read_all(made(header, b"\0\0\x80\x3f\0\0\0\x40"))
    assert {name: shape for name, (_, shape, _) in tensors.items()} == {"a": (1,), "e": (0, 2), "b": (1,)}
    assert metadata.custom_fields == {}


def test_a_block_that_was_copied_along_by_another_program_says_so() -> None:
    metadata = json.loads(SMALLEST[8 : SMALLEST.index(b"}}  ") + 2])["__metadata__"]
    copied = safetensors.numpy.save({"w": np.ones(4, np.float32), "x": np.ones(1)}, metadata)
    with pytest.raises(ChecksumMismatchError, match="remove the entry 'asyncckpt' to load"):
        read_all(copied)


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_header_lengths(value: int) -> None:
    damaged = with_number(SMALLEST, 0, "<Q", value)
    assert outcome(read_all, damaged) is None
    assert not FORMAT.sniff(memoryview(damaged), FileInfo("x", len(damaged))) or value == 0


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("place", ["shape", "start", "end"])
def test_hostile_numbers_in_a_foreign_header(value: int, place: str) -> None:
    parts = {"shape": [1], "start": 0, "end": 4} | {place: [value] if place == "shape" else value}
    data = made({"a": entry(shape=parts["shape"], offsets=[parts["start"], parts["end"]])}, bytes(4))
    assert (outcome(read_all, data) is None) == ((place, value) != ("start", 0))


# -- damage --------------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_noticed() -> None:
    for _, what, damaged in bit_flips(SMALLEST):
        assert outcome(read_all, damaged) is None, what


def test_every_truncation_and_extension_is_noticed() -> None:
    for size in range(len(SMALLEST)):
        assert outcome(read_all, SMALLEST[:size]) is None, size
    for extra in (b"\0", b" ", bytes(64)):
        assert outcome(read_all, SMALLEST + extra) is None


def test_a_damaged_tensor_is_named() -> None:
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged") as caught:
        read_all(SMALLEST[:-1] + b"\xff")
    assert caught.value.tensor == "w"


def test_a_damaged_header_says_so() -> None:
    with pytest.raises(ChecksumMismatchError, match="the header is damaged"):
        read_all(SMALLEST.replace(b'"format":"pt"', b'"format":"qt"'))


@given(mutations(SMALLEST))
def test_mutations_are_noticed(damaged: bytes) -> None:
    found = outcome(read_all, damaged)
    assert found is None or found == read_all(SMALLEST)


@given(mutations((SAMPLES / "package_every_dtype.safetensors").read_bytes()))
def test_mutations_of_a_foreign_file_raise_nothing_but_format_errors(damaged: bytes) -> None:
    assert_read_or_refused(read_all, damaged)


@given(st.binary(max_size=200))
def test_noise_raises_nothing_but_format_errors(noise: bytes) -> None:
    assert_read_or_refused(read_all, noise)
    assert_read_or_refused(read_all, made(b"{" + noise))


def test_it_is_recognised_by_its_bytes() -> None:
    def sniffed(data: bytes) -> bool:
        return FORMAT.sniff(memoryview(data), FileInfo("anything", len(data)))

    assert sniffed(SMALLEST[:64])
    assert sniffed((SAMPLES / "package_every_dtype.safetensors").read_bytes()[:64])
    assert sniffed(made({}))
    assert not any(
        map(sniffed, (b"", b"PCLM\x051.1.0", b'{"metadata": {}}', bytes(64), b"PK\x03\x04" + bytes(60)))
    )
