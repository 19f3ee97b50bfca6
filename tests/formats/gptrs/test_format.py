"""GPTRSCHK and GPTRSTEN: gpt-rs's own files, round trips, golden bytes, version 1, ids, and every kind of damage."""

from __future__ import annotations

import asyncio
import struct
import sys
from dataclasses import replace
from typing import Any

import blake3
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import (
    ChecksumMismatchError,
    FormatError,
    LayoutError,
    LimitExceededError,
    MissingExtraError,
    NotRepresentableError,
    TensorNotFoundError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedStateError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import ICheckpointFormat, content_of
from asyncckpt.formats.gptrs import format as gptrs
from asyncckpt.formats.gptrs.config import decode_config
from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
from asyncckpt.formats.gptrs.index import V1_WINDOW_BYTES
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.gptrs import LazyParams, base_param_id, new_namespace, param_key
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata, TrainingMetadata
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
from tests.formats.parser_steps import drive_noting
from tests.independent import gptrs_reader

CHECKPOINT = GptrsCheckpointFormat()
TENSORS = GptrsTensorsFormat()
BOTH = pytest.mark.parametrize("fmt", [CHECKPOINT, TENSORS], ids=["chk", "ten"])
SMALLEST_STATE = {"w": np.arange(3, dtype=np.float32)}
DTYPES = ("float32", "float16", "bfloat16", "int32")


def sample(name: str) -> bytes:
    return (GOLDEN / name.rpartition(".")[2] / name).read_bytes()


def smallest(fmt: ICheckpointFormat) -> bytes:
    return sample(f"smallest{fmt.extension}")


def f32(shape: tuple[int, ...], k: float) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32) * np.float32(0.5) - np.float32(k)).reshape(shape)


def i32(shape: tuple[int, ...], k: int) -> np.ndarray:
    return (3 * np.arange(np.prod(shape), dtype=np.int32) - np.int32(k)).reshape(shape)


def padding_of(data: bytes) -> range:
    end = data.index(b"ACKPTMET") + 12
    end += int.from_bytes(data[end - 4 : end], "little")
    return range(end, -(-end // 64) * 64)


# -- gpt-rs's own files --------------------------------------------------------------------------------------

SAMPLES: dict[str, dict[str, np.ndarray]] = {
    "basic_f32_i32.gptrschk": {
        "blocks.0.attn.w_qkv": f32((6, 18), 2),
        "blocks.0.ln_1.bias": f32((6,), 3),
        "position_ids": i32((4,), 1),
        "tok_embeddings.weight": f32((8, 6), 1),
    },
    "scalar_empty_rank4.gptrschk": {
        "empty": np.zeros((0, 3), np.float32),
        "neg": i32((2, 2), 100),
        "r4": f32((2, 3, 1, 5), 0),
        "scalar": np.array([1.25], np.float32),
        "special": np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45], np.float32),
    },
    "noncontig_transposed.gptrschk": {"t": np.ascontiguousarray(f32((3, 4), 0).T)},
    "empty_checkpoint.gptrschk": {},
    "basic.gptrsten": {
        "input": f32((1, 3, 2, 2), 0),
        "labels": i32((5,), 7),
        "logits": f32((2, 4), 10),
        "zero_size": np.zeros((0, 3), np.float32),
    },
    "empty.gptrsten": {},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_have_the_right_values(name: str) -> None:
    fmt = CHECKPOINT if name.endswith("chk") else TENSORS
    data = sample(name)
    index = state_files.parse(fmt, data)
    assert_identical(state_files.arrays_of(index, data), SAMPLES[name])
    assert (index.format, index.version, index.tree, index.header_extents) == (fmt.name, "2", None, None)
    assert all(stored.checksums is None for stored in index.tensors)
    independent = gptrs_reader.read(data)
    assert {n: t.data for n, t in independent.tensors.items()} == {
        n: a.tobytes() for n, a in SAMPLES[name].items()
    }


def test_config_and_gradients_of_a_sample_are_custom_fields() -> None:
    field = state_files.parse(CHECKPOINT, sample("basic_f32_i32.gptrschk")).metadata.custom_fields["gptrs"]
    assert field["kind"] == "gpt"
    assert field["config"]["vocab_size"] == 8
    assert field["requiresGrad"] == ["tok_embeddings.weight"]
    assert state_files.parse(TENSORS, sample("basic.gptrsten")).metadata.custom_fields == {}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_written_again_says_the_same(name: str) -> None:
    fmt = CHECKPOINT if name.endswith("chk") else TENSORS
    index = state_files.parse(fmt, sample(name))
    again = state_files.encode(fmt, SAMPLES[name], replace(index.metadata, shards=()))
    theirs, ours = gptrs_reader.read(sample(name)), gptrs_reader.read(again)
    assert ours.config == theirs.config
    assert list(ours.tensors) == list(theirs.tensors)
    for tensor, other in zip(ours.tensors.values(), theirs.tensors.values(), strict=True):
        assert tensor._replace(base_id=b"", offset=0) == other._replace(base_id=b"", offset=0)
    assert state_files.parse(fmt, again).metadata.custom_fields == index.metadata.custom_fields


# -- round trips ---------------------------------------------------------------------------------------------


@BOTH
async def test_shards_and_metadata_come_back(fmt: ICheckpointFormat) -> None:
    first = ShardData.from_arrays({"z": np.ones((2, 2), np.int32), "a": np.array(2.5, np.float32)})
    second = ShardData.from_arrays({"m": np.zeros((0, 3), np.float16)}, rank=1)
    metadata = CheckpointMetadata(
        world_size=2,
        shards=(ShardMetadata(rank=0), ShardMetadata(rank=1, extra={"x": 1})),
        training=TrainingMetadata(step=20),
        custom_fields={"gptrs": {"kind": "gpt", "config": {"a": 1}, "requiresGrad": ["z"]}, "n": None},
    )
    data = await fmt.serialize([first, second], metadata)
    shards, found = await fmt.deserialize(data)
    assert [[t.name for t in shard.tensor_info] for shard in shards] == [["z", "a"], ["m"]]
    assert_identical(shards[0].arrays(), first.arrays())
    assert_identical(shards[1].arrays(), second.arrays())
    assert replace(found, shards=()) == replace(metadata, shards=())
    assert found.shards[1].extra == {"x": 1}
    assert await fmt.serialize(shards, found) == data
    assert [t.requires_grad for t in gptrs_reader.read(data).tensors.values()] == [False, False, True]


@BOTH
def test_a_state_comes_back_as_it_was(fmt: ICheckpointFormat) -> None:
    tied = np.arange(4, dtype=np.float32)
    state = {
        "b": [tied, {"same": tied}],
        3: (np.float32(1.5), np.array(7, np.int32), np.array([7], np.int32), None),
        "half": np.array([1, 2], ml_dtypes.bfloat16),
    }
    again = state_files.decode(fmt, state_files.encode(fmt, state))
    assert_identical(again, state)
    assert again["b"][0] is again["b"][1]["same"]


@BOTH
@given(st.dictionaries(st.text("ab.#", max_size=5), arrays(names=st.sampled_from(DTYPES)), max_size=5))
def test_any_tensors_come_back(fmt: ICheckpointFormat, state: dict[str, np.ndarray]) -> None:
    expected = ShardData.from_arrays(state).arrays()
    assert_identical(state_files.decode(fmt, state_files.encode(fmt, state)), expected)


@BOTH
def test_scalars_are_stored_as_one_item_and_payloads_are_aligned(fmt: ICheckpointFormat) -> None:
    state = {"s": np.array(1.5, np.float32), "one": np.ones(1, np.float32), "a": np.zeros(3, np.int32)}
    found = gptrs_reader.read(state_files.encode(fmt, state))
    assert {name: t.shape for name, t in found.tensors.items()} == {"a": (3,), "one": (1,), "s": (1,)}
    assert list(found.tensors) == sorted(state)
    assert all(t.offset % 64 == 0 for t in found.tensors.values())


@pytest.mark.thorough
def test_20_000_tensors_are_planned_and_parsed() -> None:
    state = {f"layers.{n}.weight": np.full(2, n, np.int32) for n in range(20_000)}
    data = state_files.encode(CHECKPOINT, state)
    index = state_files.parse(CHECKPOINT, data)
    assert [stored.name for stored in index.tensors] == list(state)
    assert state_files.arrays_of(index, data)["layers.19999.weight"].tolist() == [19999, 19999]


# -- the config ----------------------------------------------------------------------------------------------


def written_config(field: Any) -> bytes:
    metadata = CheckpointMetadata(custom_fields={} if field is None else {"gptrs": field})
    data = state_files.encode(CHECKPOINT, SMALLEST_STATE, metadata)
    return data[16 : 16 + int.from_bytes(data[12:16], "little")]


def test_the_config_that_is_written() -> None:
    assert written_config(None) == b'{"kind":"asyncckpt","config":{}}'
    assert written_config({"requiresGrad": ["w"]}) == b'{"kind":"asyncckpt","config":{}}'
    assert written_config({"config": 1, "kind": "gpt", "other": 2}) == b'{"kind":"gpt","config":1}'
    assert written_config({"kind": "x", "config": {}, "runtime": {"a": 1}}) == (
        b'{"kind":"x","config":{},"runtime":{"a":1}}'
    )


def test_a_config_that_was_read_is_written_verbatim_until_it_is_changed() -> None:
    text = '{ "config": {"ü": 1.50},\n "kind": "gpt", "later": null }'
    field = decode_config(text.encode())
    assert field == {"kind": "gpt", "config": {"ü": 1.5}, "configText": text}
    assert written_config(field) == text.encode()
    assert written_config({**field, "kind": "bert"}) == b'{"kind":"bert","config":{"\\u00fc":1.5}}'


def test_an_untagged_config_is_gpt_s() -> None:
    field = decode_config(b'{"n_layer": 2}')
    assert (field["kind"], field["config"]) == ("gpt", {"n_layer": 2})
    assert written_config(field) == b'{"n_layer": 2}'


@pytest.mark.parametrize(
    "field",
    [3, {"kind": "x"}, {"config": {}}, {"kind": 1, "config": {}},
     {"requiresGrad": "w"}, {"requiresGrad": [1]}, {"kind": "x", "config": {}, "configText": "{"},
     {"kind": "x", "config": {}, "configText": "\ud800"}],
)  # fmt: skip
def test_a_custom_field_of_another_kind_is_refused(field: Any) -> None:
    with pytest.raises(LayoutError):
        written_config(field)


def test_a_config_is_written_as_the_nearest_json() -> None:
    assert written_config({"kind": "x", "config": {"layers": np.int64(2), "dims": (1, 2)}}) == (
        b'{"kind":"x","config":{"layers":2,"dims":[1,2]}}'
    )
    with pytest.raises(UnsupportedStateError, match=r"custom_fields\['gptrs'\]\['config'\]"):
        written_config({"kind": "x", "config": object()})


@pytest.mark.parametrize("config", [b"", b"[]", b"3", b'"x"', b"{", b"\xff", b'{"kind":"gpt","config":NaN}'])
def test_configs_that_are_no_objects_are_refused(config: bytes) -> None:
    data = b"GPTRSCHK" + struct.pack("<II", 2, len(config)) + config + struct.pack("<II", 4, 0)
    with pytest.raises(LayoutError, match="the config"):
        state_files.parse(CHECKPOINT, data)


# -- golden bytes --------------------------------------------------------------------------------------------


@BOTH
def test_the_smallest_file_has_not_changed(fmt: ICheckpointFormat) -> None:
    assert state_files.encode(fmt, SMALLEST_STATE) == smallest(fmt)
    assert_identical(state_files.decode(fmt, smallest(fmt)), SMALLEST_STATE)


def test_the_dumps_in_the_docs_are_the_golden_files() -> None:
    assert_dump_matches("gptrs.md", smallest(CHECKPOINT), heading="## The smallest GPTRSCHK file")
    assert_dump_matches("gptrs.md", smallest(TENSORS), heading="## The smallest GPTRSTEN file")


@BOTH
def test_the_independent_reader_agrees(fmt: ICheckpointFormat) -> None:
    found = gptrs_reader.read(smallest(fmt))
    assert gptrs_reader.floats(found.tensors["w"].data) == (0, 1, 2)
    assert found.block is not None
    assert found.block["tree"] == {"d": ["w", {"t": "w"}]}
    random = np.random.default_rng(5)
    state = {f"t{n}": random.integers(-9, 9, random.integers(0, 5, 3)).astype(np.int32) for n in range(9)}
    state["large"] = random.integers(-9, 9, 300_000).astype(np.int32)
    found = gptrs_reader.read(state_files.encode(fmt, state))
    assert {n: (t.dtype, t.shape, t.data) for n, t in found.tensors.items()} == {
        n: ("I32", a.shape, a.tobytes()) for n, a in state.items()
    }
    if fmt is CHECKPOINT:
        assert all(t.base_id == blake3.blake3(n.encode()).digest(16) for n, t in found.tensors.items())


# -- what can't be stored ------------------------------------------------------------------------------------


@BOTH
def test_all_losses_are_listed(fmt: ICheckpointFormat) -> None:
    state = {
        "d": np.zeros(2),
        "ü": np.zeros(1, np.float32),
        "i": np.zeros(1, np.int64),
        "ok": np.zeros(1, np.int32),
    }
    with pytest.raises(NotRepresentableError, match=r"tensor 'd' is float64, .* \(and 2 more\)") as caught:
        state_files.encode(fmt, state)
    assert len(caught.value.losses) == 3
    assert "not ASCII" in caught.value.losses[2]


def test_metadata_that_can_t_be_kept_is_refused() -> None:
    with pytest.raises(UnsupportedStateError, match=r"custom_fields\['x'\]"):
        state_files.encode(TENSORS, SMALLEST_STATE, CheckpointMetadata(custom_fields={"x": object()}))


def test_lengths_beyond_32_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptrs, "MAX_U32", 100)
    with pytest.raises(LimitExceededError, match=r"the asyncckpt block of 'model.gptrsten' has \d+ bytes"):
        state_files.encode(TENSORS, SMALLEST_STATE)


# -- version 1 -----------------------------------------------------------------------------------------------


def v1(tensors: dict[str, np.ndarray], *, config: bytes | None = None) -> bytes:
    """As gpt-rs wrote it: the data between the entries."""
    parts = [b"GPTRSTEN" if config is None else b"GPTRSCHK", struct.pack("<I", 1)]
    if config is not None:
        parts += [struct.pack("<I", len(config)), config]
    parts.append(struct.pack("<I", len(tensors)))
    for name, array in sorted(tensors.items()):
        parts += [struct.pack("<I", len(name)), name.encode(), struct.pack("<I", array.ndim)]
        parts += [struct.pack("<Q", side) for side in array.shape]
        parts += [
            struct.pack("<IBQ", 3 if array.dtype == np.int32 else 0, name == "w", array.nbytes),
            array.tobytes(),
        ]
    return b"".join(parts)


V1_STATE = {"a": i32((2, 3), 1), "e": f32((0, 3), 0), "large": f32((V1_WINDOW_BYTES,), 7), "w": f32((5,), 2)}


@pytest.mark.parametrize("config", [None, b'{"kind":"gpt","config":{}}'])
def test_version_1_is_read_with_a_warning(config: bytes | None) -> None:
    fmt = TENSORS if config is None else CHECKPOINT
    data = v1(V1_STATE, config=config)
    index = state_files.parse(fmt, data)
    assert_identical(state_files.arrays_of(index, data), V1_STATE)
    assert index.version == "1"
    assert "version 1 is read but no longer written" in index.warnings[0]
    assert index.metadata.custom_fields["gptrs"]["requiresGrad"] == ["w"]
    assert {n: t.data for n, t in gptrs_reader.read(data).tensors.items()} == {
        n: a.tobytes() for n, a in V1_STATE.items()
    }


def test_small_tensors_of_version_1_take_few_reads() -> None:
    data = v1({f"t{n}": i32((4,), n) for n in range(1000)})
    index, asked = drive_noting(TENSORS.parse(FileInfo("x", len(data))), data, len(data))
    assert len(index.tensors) == 1000
    assert len(asked) <= 3 + len(data) // (V1_WINDOW_BYTES - 100)


def test_version_1_cut_extended_or_lying_is_refused() -> None:
    data = v1({"a": i32((2,), 1), "w": f32((1,), 2)})
    for size in range(len(data)):
        assert outcome(lambda cut: state_files.read_all(TENSORS, cut), data[:size]) is None, size
    with pytest.raises(LayoutError, match="1 bytes are left over"):
        state_files.parse(TENSORS, data + b"\0")
    for value in HOSTILE_NUMBERS:
        for at, layout in ((12, "<I"), (16, "<I"), (21, "<I"), (25, "<Q"), (38, "<Q")):
            damaged = with_number(data, at, layout, value)
            assert damaged == data or outcome(lambda d: state_files.read_all(TENSORS, d), damaged) is None, (
                at,
                value,
            )


@pytest.mark.thorough
@given(mutations(v1({"a": i32((2,), 1), "w": f32((1,), 2)}, config=b"{}")))
def test_mutations_of_version_1_raise_nothing_but_format_errors(damaged: bytes) -> None:
    assert_read_or_refused(lambda data: state_files.read_all(CHECKPOINT, data), damaged)


# -- hostile files -------------------------------------------------------------------------------------------


def listed(
    name: str = "w", *, dims: tuple[int, ...] = (1,), tag: int = 0, offset: int = 0, size: int = 4
) -> bytes:
    head = struct.pack("<I", len(name.encode())) + name.encode() + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIBQQ", *dims, tag, 0, offset, size)


def archive(*entries: bytes, data: bytes = bytes(8), count: int | None = None, tail: bytes = b"") -> bytes:
    index = struct.pack("<I", len(entries) if count is None else count) + b"".join(entries) + tail
    return b"GPTRSTEN" + struct.pack("<II", 2, len(index)) + index + data


START = len(archive(listed(), data=b""))
TWICE = len(archive(listed(), listed(), data=b""))
HOSTILE: list[tuple[bytes, type[FormatError], str]] = [
    (b"GPTRSTEN", TruncatedError, "the header"),
    (b"GPTRSXXX" + bytes(20), LayoutError, "not a GPTRSTEN file"),
    (b"GPTRSTEN" + struct.pack("<I", 3) + bytes(20), UnsupportedVersionError, "version 3 is not supported: upgrade"),
    (archive(listed(offset=START)[:-1]), TruncatedError, "the index"),
    (archive(listed(offset=START), tail=b"x"), LayoutError, "1 bytes are left over after the 1 entries"),
    (archive(listed(offset=START), count=2**32 - 1), TruncatedError, "the index"),
    (archive(listed(offset=START + 5)), TruncatedError, "tensor 'w' ends at"),
    (archive(listed(offset=2**64 - 4)), TruncatedError, "tensor 'w' ends at"),
    (archive(listed(offset=START - 1)), LayoutError, "inside what ends at"),
    (archive(listed(offset=0)), LayoutError, "inside what ends at"),
    (archive(listed(offset=START, size=8)), LayoutError, "has 4 bytes, the file says 8"),
    (archive(listed(offset=START, dims=(2**63,))), LayoutError, "has the shape"),
    (archive(listed(offset=START, dims=(2**62, 2**62))), LayoutError, "the file says 4"),
    (archive(listed(offset=START, dims=(1,) * 65)), LimitExceededError, "65 dimensions"),
    (archive(listed(offset=START, tag=4)), UnsupportedDtypeError, "unknown dtype tag 4"),
    (archive(listed(offset=TWICE), listed(offset=TWICE + 4)), LayoutError, "the same name"),
    (archive(listed(offset=TWICE), listed("v", offset=TWICE + 3)), LayoutError, "inside what ends at"),
    (archive(listed(offset=START), data=b"XXXXXXXX" + bytes(4) + b'{"block":1'), LayoutError, "its magic is gone"),
    (archive(listed(offset=START), data=b"ACKPTMET" + b"\xff" * 4), TruncatedError, "the asyncckpt block"),
    (archive(listed(offset=START), data=b"ACKPTMET\2\0\0\0{}"), LayoutError, "asyncckpt block"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error", "text"), HOSTILE)
def test_hostile_archives_are_refused(data: bytes, error: type[FormatError], text: str) -> None:
    with pytest.raises(error, match=text):
        state_files.read_all(TENSORS, data)


def test_gaps_any_order_and_trailing_bytes_are_legal() -> None:
    data = archive(
        listed("b", offset=TWICE + 8), listed("a", offset=TWICE + 1), data=bytes(1) + bytes(range(16))
    )
    index = state_files.parse(TENSORS, data)
    found = state_files.arrays_of(index, data)
    assert {name: array.tobytes() for name, array in found.items()} == {
        "b": b"\7\x08\x09\x0a",
        "a": b"\0\1\2\3",
    }


def test_base_ids_must_fit_the_names() -> None:
    data = smallest(CHECKPOINT)
    at = data.index(blake3.blake3(b"w").digest(16))
    with pytest.raises(LayoutError, match="tensor 'w' has the base id 0x"):
        state_files.parse(CHECKPOINT, data[:at] + b"\1" * 16 + data[at + 16 :])


@BOTH
@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers_in_every_length_field(fmt: ICheckpointFormat, value: int) -> None:
    data = smallest(fmt)
    index = data.index(b"\1\0\0\0\1\0\0\0w")
    rank = index + 9 + (16 if fmt is CHECKPOINT else 0)
    fields = [
        (8, "<I"),
        (12, "<I"),
        (index - 4, "<I"),
        (index, "<I"),
        (index + 4, "<I"),
        (rank, "<I"),
        (rank + 4, "<Q"),
    ]
    fields += [(rank + 12, "<I"), (rank + 17, "<Q"), (rank + 25, "<Q"), (data.index(b"ACKPTMET") + 8, "<I")]
    for at, layout in fields:
        damaged = with_number(data, at, layout, value)
        assert damaged == data or outcome(lambda d: state_files.read_all(fmt, d), damaged) is None, (
            at,
            value,
        )


@pytest.mark.parametrize("scalars", [b"3", b"-1", b'"', b"n", b"0"])
def test_scalars_that_are_none_are_refused(scalars: bytes) -> None:
    block = {"block": 1, "at": "0" * 16, "outside": "-" * 8, "chunk": 1, "crc32c": "00000000" * 8}
    lists: dict[bytes, Any] = {b"3": [3], b"-1": [-1], b'"': ["0"], b"n": 7, b"0": [0]}
    text = repr({**block, "metadata": {"scalars": lists[scalars]}}).replace("'", '"').encode()
    entry = listed(dims=(2,), size=8)
    start = len(archive(entry, data=b"ACKPTMET0000" + text))
    data = archive(
        listed(dims=(2,), size=8, offset=start),
        data=b"ACKPTMET" + struct.pack("<I", len(text)) + text + bytes(8),
    )
    with pytest.raises(LayoutError, match="among its scalars"):
        state_files.parse(TENSORS, data)


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@BOTH
def test_every_flipped_bit_is_noticed_or_changes_nothing(fmt: ICheckpointFormat) -> None:
    # Padding is zeros that nobody reads; `verify` looks at it, opening a file does not.
    data = smallest(fmt)
    padding, expected = padding_of(data), state_files.read_all(fmt, data)
    for position, what, damaged in bit_flips(data):
        found = outcome(lambda d: state_files.read_all(fmt, d), damaged)
        assert found is None or (position in padding and found == expected), what


@BOTH
@pytest.mark.parametrize("state", [{"w": np.arange(3, dtype="<f4")}, {"step": 7}, {}], ids=str)
def test_every_truncation_and_extension_is_noticed(fmt: ICheckpointFormat, state: dict[str, Any]) -> None:
    data = state_files.encode(fmt, state)
    for size in range(len(data)):
        assert outcome(lambda d: state_files.read_all(fmt, d), data[:size]) is None, size
    for extra in (b"\0", b"x", bytes(64)):
        assert outcome(lambda d: state_files.read_all(fmt, d), data + extra) is None


@BOTH
def test_a_mark_of_the_end_that_is_not_there_is_refused(fmt: ICheckpointFormat) -> None:
    data = state_files.encode(fmt, {"step": 7})
    assert state_files.parse(fmt, data).tensors == ()
    assert gptrs_reader.read(data).tensors == {}
    other = state_files.encode(fmt, {"asyncckpt.end": np.zeros(0, np.float32)})
    assert [tensor.name for tensor in state_files.parse(fmt, other).tensors] == ["asyncckpt.end"]
    with pytest.raises(FormatError):
        state_files.parse(fmt, data.replace(b"asyncckpt.end", b"asyncckpt.eng"))


def test_a_damaged_tensor_is_named() -> None:
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged") as caught:
        state_files.read_all(CHECKPOINT, smallest(CHECKPOINT)[:-1] + b"\xff")
    assert caught.value.tensor == "w"


@pytest.mark.thorough
@BOTH
@given(st.data())
def test_mutations_are_noticed(fmt: ICheckpointFormat, data: st.DataObject) -> None:
    damaged = data.draw(mutations(smallest(fmt)))
    found = outcome(lambda d: state_files.read_all(fmt, d), damaged)
    assert found is None or found == state_files.read_all(fmt, smallest(fmt))


@given(
    mutations(sample("basic_f32_i32.gptrschk")), mutations(sample("basic.gptrsten")), st.binary(max_size=200)
)
def test_mutations_of_foreign_files_raise_nothing_but_format_errors(
    chk: bytes, ten: bytes, noise: bytes
) -> None:
    assert_read_or_refused(lambda d: state_files.read_all(CHECKPOINT, d), chk)
    assert_read_or_refused(lambda d: state_files.read_all(TENSORS, d), ten)
    for version in (1, 2):
        start = b"GPTRSTEN" + struct.pack("<I", version)
        assert_read_or_refused(lambda d: state_files.read_all(TENSORS, d), start + noise)


def test_they_are_recognised_by_their_bytes() -> None:
    for data in (smallest(CHECKPOINT), smallest(TENSORS), b"PCLM", b""):
        source = FileInfo("x", len(data))
        assert CHECKPOINT.sniff(memoryview(data)[:64], source) == data.startswith(b"GPTRSCHK")
        assert TENSORS.sniff(memoryview(data)[:64], source) == data.startswith(b"GPTRSTEN")


# -- ids -----------------------------------------------------------------------------------------------------


def test_ids_are_gpt_rs_s() -> None:
    base = base_param_id("tok_embeddings.weight")
    assert base == int.from_bytes(blake3.blake3(b"tok_embeddings.weight").digest()[:16], "little")
    text = b"gpt-rs:param-key:v1" + (5).to_bytes(16, "little") + base.to_bytes(16, "little")
    assert param_key(5, base) == int.from_bytes(blake3.blake3(text).digest()[:16], "little")
    assert param_key(6, base) != param_key(5, base)
    assert new_namespace(randomness=lambda bits: bits) == 128
    assert 0 <= new_namespace() < 2**128


def test_ids_that_can_t_be_are_refused() -> None:
    with pytest.raises(LayoutError, match="not ASCII"):
        base_param_id("ü")
    for namespace, base in ((-1, 0), (2**128, 0), (0, 2**128)):
        with pytest.raises(LayoutError, match="does not fit 128 bits"):
            param_key(namespace, base)


def test_without_blake3_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'asyncckpt\[gptrs\]'"):
        CHECKPOINT.plan(
            content_of([ShardData.from_arrays(SMALLEST_STATE)], CheckpointMetadata())[0], name="x"
        )
    assert (
        len(
            TENSORS.plan(
                content_of([ShardData.from_arrays(SMALLEST_STATE)], CheckpointMetadata())[0], name="x"
            )
        )
        == 1
    )
    assert set(state_files.decode(CHECKPOINT, sample("noncontig_transposed.gptrschk"))) == {"t"}


class FakeCheckpoint:
    """Counts reads, each of which takes a turn of the loop."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors
        self.reads: list[str] = []

    async def read(self, name: str, /) -> np.ndarray:
        self.reads.append(name)
        await asyncio.sleep(0)
        return self.tensors[name]


async def test_lazy_params_read_once_by_name_or_base_id() -> None:
    checkpoint = FakeCheckpoint({"a": np.ones(1), "b": np.zeros(2)})
    params = LazyParams(checkpoint, 7)
    assert checkpoint.reads == []
    results = await asyncio.gather(*(params.load(key) for key in ("a", base_param_id("a"), "a", "b")))
    assert results[0] is results[1] is results[2]
    assert checkpoint.reads == ["a", "b"]
    assert params.name_of(base_param_id("b")) == "b"
    assert set(params.loaded) == {param_key(7, base_param_id(name)) for name in "ab"}
    with pytest.raises(TensorNotFoundError, match="no parameter with the base id 0x"):
        await params.load(1)
    with pytest.raises(TensorNotFoundError):
        await params.load("c")


async def test_a_cancelled_load_leaves_the_parameter_to_the_next() -> None:
    checkpoint = FakeCheckpoint({"a": np.ones(1)})
    params = LazyParams(checkpoint, 7)
    first = asyncio.create_task(params.load("a"))
    second = asyncio.create_task(params.load("a"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).tolist() == [1]
    assert first.cancelled()
    assert checkpoint.reads == ["a", "a"]
