"""Hugging Face sharded sets: files and index both ways, hostile indexes, missing and swapped files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given

from asyncckpt.errors import (
    ChecksumMismatchError,
    FormatError,
    IncompleteCheckpointError,
    InvalidArgumentError,
    LayoutError,
    LimitExceededError,
    NotRepresentableError,
    TruncatedError,
)
from asyncckpt.formats.kit.index import FileInfo, Index
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.safetensors.set import MAX_INDEX_BYTES, HuggingFaceSetFormat, split
from asyncckpt.model.metadata import CheckpointMetadata, TrainingMetadata
from asyncckpt.testing.strategies import assert_identical
from tests.formats import attacks, state_files
from tests.formats.attacks import GOLDEN, HOSTILE_FILE_NAMES, bit_flips, mutations
from tests.independent import safetensors_reader

INDEX = "model.safetensors.index.json"
FORMAT = HuggingFaceSetFormat(max_file_bytes=12)
STATE = {"a": np.arange(3, dtype=np.float32), "b": np.array([7])}
SAMPLES = GOLDEN / "safetensors" / "set"
NAMES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX]
FILES = {name: (SAMPLES / name).read_bytes() for name in NAMES}


def parse(files: dict[str, bytes]) -> Index:
    return state_files.parse(FORMAT, files[INDEX], files)


def read_all(files: dict[str, bytes]) -> tuple[Any, ...]:
    return state_files.read_all(FORMAT, files[INDEX], files)


REFUSALS = (FormatError, IncompleteCheckpointError)


def outcome(files: dict[str, bytes]) -> tuple[Any, ...] | None:
    return attacks.outcome(read_all, files, refusals=REFUSALS)


def foreign(
    tensors: dict[str, dict[str, np.ndarray]], index: dict[str, Any] | None = None
) -> dict[str, bytes]:
    """A set as transformers would write it."""
    files = {name: safetensors.numpy.save(content, {"format": "pt"}) for name, content in tensors.items()}
    size = sum(array.nbytes for content in tensors.values() for array in content.values())
    weight_map = {name: file for file, content in tensors.items() for name in content}
    members = {"metadata": {"total_size": size}, "weight_map": weight_map} | (index or {})
    return {**files, INDEX: json.dumps(members, indent=2).encode()}


# -- both ways -----------------------------------------------------------------------------------------------


def test_the_golden_set_has_not_changed() -> None:
    assert state_files.encode_files(FORMAT, STATE) == FILES
    assert_identical(state_files.decode(FORMAT, FILES[INDEX], FILES), STATE)


def test_files_are_written_in_an_order_that_ends_with_the_index() -> None:
    assert list(state_files.encode_files(FORMAT, STATE)) == NAMES
    side = HuggingFaceSetFormat(max_file_bytes=12, side_files={"config.json": b"{}", "empty.txt": b""})
    files = state_files.encode_files(side, STATE)
    assert list(files) == ["config.json", "empty.txt", *NAMES]
    assert (files["config.json"], files["empty.txt"]) == (b"{}", b"")


def test_a_state_and_its_metadata_come_back() -> None:
    tied = np.arange(20, dtype=np.int16)
    state = {"z": [tied, tied, np.float32(2)], "a": {"big": np.ones(100), 1: np.zeros((0, 2))}, "n": None}
    metadata = CheckpointMetadata(training=TrainingMetadata(step=3), custom_fields={"x": "y"})
    for limit in (1, 41, 900, 10**9):
        fmt = HuggingFaceSetFormat(max_file_bytes=limit)
        files = state_files.encode_files(fmt, state, metadata)
        index = state_files.parse(fmt, files[INDEX], files)
        assert_identical(state_files.decode(fmt, files[INDEX], files), state)
        assert (index.metadata.training, index.metadata.custom_fields) == (metadata.training, {"x": "y"})
        assert index.warnings == ()
        assert [t.name for t in index.metadata.shards[0].tensors] == [t.name for t in index.tensors]


def test_no_tensors_make_an_index_alone() -> None:
    files = state_files.encode_files(FORMAT, {"n": 1})
    assert list(files) == [INDEX]
    assert state_files.decode(FORMAT, files[INDEX], files) == {"n": 1}


def test_tensors_are_spread_in_order_up_to_the_limit() -> None:
    sizes = [4, 4, 4, 20, 1, 11, 1]
    state = {f"t{n}": np.zeros(size, np.int8) for n, size in enumerate(sizes)}
    content, _ = state_files.content_of_state(state)
    assert split(content, 12) == [[0, 1, 2], [3], [4, 5], [6]]
    assert split(content, 1000) == [[0, 1, 2, 3, 4, 5, 6]]


def test_the_index_is_hugging_face_s() -> None:
    members = json.loads(FILES[INDEX])
    block = members["metadata"].pop("asyncckpt")
    assert members == {"metadata": {"total_size": 20}, "weight_map": {"a": NAMES[0], "b": NAMES[1]}}
    text = FILES[INDEX].decode().replace(json.dumps(block), '""')
    members["metadata"]["asyncckpt"] = ""
    assert text == json.dumps(members, indent=2, sort_keys=True) + "\n"


def test_each_file_is_whole_by_itself() -> None:
    assert safetensors.numpy.load(FILES[NAMES[0]])["a"].tolist() == [0, 1, 2]
    assert state_files.decode(SafetensorsFormat(), FILES[NAMES[1]])["b"].tolist() == [7]
    for name in NAMES[:2]:
        assert safetensors_reader.read(FILES[name])[1] is not None


def test_a_name_without_the_extension_is_kept() -> None:
    files = state_files.encode_files(FORMAT, STATE, name="other")
    assert list(files) == ["other-00001-of-00002.safetensors", "other-00002-of-00002.safetensors", "other"]
    assert FORMAT.sniff(memoryview(files["other"])[:64], FileInfo("other", 100))


# -- foreign sets --------------------------------------------------------------------------------------------


def test_a_foreign_set_is_a_flat_dict() -> None:
    files = foreign(
        {"x.safetensors": {"w": np.ones(2), "ü": np.arange(3)}, "y.safetensors": {"v": np.zeros(1, np.int8)}},
        {"extra": 1},
    )
    index = parse(files)
    found = state_files.arrays_of(index, files[INDEX], files)
    assert {name: array.tolist() for name, array in found.items()} == {"w": [1, 1], "ü": [0, 1, 2], "v": [0]}
    assert (index.tree, index.warnings, index.files) == (None, (), ("", "x.safetensors", "y.safetensors"))
    assert all(stored.checksums is None for stored in index.tensors)


def test_foreign_metadata_becomes_custom_fields_and_a_wrong_size_a_warning() -> None:
    files = foreign({"x.safetensors": {"w": np.ones(2)}}, {"metadata": {"total_size": 1.5, "who": "me"}})
    index = parse(files)
    assert index.metadata.custom_fields == {"who": "me"}
    assert index.warnings == ("the index says 1.5 bytes in all, the files hold 16",)


def test_tensors_that_the_index_leaves_out_are_left_out() -> None:
    files = foreign(
        {"x.safetensors": {"w": np.ones(2), "old": np.ones(1)}}, {"weight_map": {"w": "x.safetensors"}}
    )
    index = parse(files)
    assert [stored.name for stored in index.tensors] == ["w"]
    assert "1 tensors of 'x.safetensors' are not in the index" in index.warnings[0]


def test_a_tensor_that_is_not_where_the_index_has_it() -> None:
    files = foreign({"x.safetensors": {"w": np.ones(2)}, "y.safetensors": {"v": np.ones(1)}})
    swapped = {**files, "y.safetensors": files["x.safetensors"]}
    with pytest.raises(LayoutError, match=r"tensor 'v' is not in 'y.safetensors'"):
        parse(swapped)


# -- hostile indexes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [*HOSTILE_FILE_NAMES, *(f"{name}.safetensors" for name in HOSTILE_FILE_NAMES if name not in ("", ".", "..")),
     "x.bin", None, 3, ["x"]],
)  # fmt: skip
def test_hostile_file_names_are_refused(file: Any) -> None:
    files = foreign({"x.safetensors": {"w": np.ones(2)}}, {"weight_map": {"w": file}})
    with pytest.raises(LayoutError, match=r"which is no \*\.safetensors beside it"):
        parse(files)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"3", b"{}", b'{"weight_map":[]}', b'{"metadata":3,"weight_map":{}}', b"{" * 5000,
     b'{"metadata":{"asyncckpt":"{}"},"weight_map":{}}', b'{"weight_map":{},"x":"{\\"block\\":1}"}'],
)  # fmt: skip
def test_hostile_indexes_are_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse({INDEX: text})


def test_an_endless_index_is_not_read() -> None:
    with pytest.raises(LimitExceededError):
        next(FORMAT.parse(FileInfo(INDEX, MAX_INDEX_BYTES + 1)))


def test_an_index_that_names_itself_is_refused() -> None:
    files = foreign({"x.safetensors": {"w": np.ones(2)}}, {"weight_map": {"w": "own.safetensors"}})
    with pytest.raises(LayoutError, match=r"which is no \*\.safetensors beside it"):
        state_files.parse(FORMAT, files[INDEX], files, name="own.safetensors")


@pytest.mark.parametrize("side", HOSTILE_FILE_NAMES)
def test_hostile_side_files_are_refused(side: str) -> None:
    with pytest.raises(LayoutError, match="not the name of a file"):
        HuggingFaceSetFormat(side_files={side: b""})


def test_a_side_file_of_text_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"side file 'config.json' must be bytes, not str: .* \.encode\(\)"
    ):
        HuggingFaceSetFormat(side_files={"config.json": "{}"})  # type: ignore[dict-item]


def test_a_side_file_can_t_replace_a_file_of_the_set() -> None:
    side = HuggingFaceSetFormat(max_file_bytes=12, side_files={NAMES[0]: b""})
    with pytest.raises(LayoutError, match="name of another file"):
        state_files.encode_files(side, STATE)


def test_what_can_t_be_stored_is_refused() -> None:
    with pytest.raises(NotRepresentableError):
        state_files.encode_files(FORMAT, {"a": np.zeros(1, np.complex128)})
    with pytest.raises(InvalidArgumentError, match="max_file_bytes must be an int of at least 1, not 0"):
        HuggingFaceSetFormat(max_file_bytes=0)
    with pytest.raises(LayoutError, match="asyncckpt's own"):
        state_files.encode_files(FORMAT, STATE, CheckpointMetadata(custom_fields={"asyncckpt": 1}))


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_missing_file_is_named(name: str) -> None:
    files = {key: value for key, value in FILES.items() if key != name}
    with pytest.raises(IncompleteCheckpointError, match=name):
        parse(files)


def test_a_file_of_another_checkpoint_is_noticed() -> None:
    other = state_files.encode_files(FORMAT, {"a": np.arange(3, dtype=np.float32) + 1, "b": STATE["b"]})
    assert_identical(read_all({**other, NAMES[1]: FILES[NAMES[1]]}), read_all(other))
    with pytest.raises(ChecksumMismatchError, match="tensor 'a' is damaged"):
        read_all({**FILES, NAMES[0]: other[NAMES[0]]})


def test_damage_in_a_file_s_header_names_the_file() -> None:
    damaged = FILES[NAMES[1]].replace(b'"format":"pt"', b'"format":"qt"')
    with pytest.raises(ChecksumMismatchError, match=f"{NAMES[1]}: the header is damaged"):
        read_all({**FILES, NAMES[1]: damaged})


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_is_noticed(name: str) -> None:
    for _, what, damaged in bit_flips(FILES[name]):
        assert outcome({**FILES, name: damaged}) is None, what


@pytest.mark.parametrize("name", NAMES)
def test_every_truncation_is_noticed(name: str) -> None:
    for size in range(len(FILES[name])):
        assert outcome({**FILES, name: FILES[name][:size]}) is None, size


def test_a_cut_file_that_is_short_enough_to_be_seen_whole_says_so() -> None:
    with pytest.raises(TruncatedError, match=NAMES[0]):
        parse({**FILES, NAMES[0]: FILES[NAMES[0]][:-1]})


def test_bytes_after_the_index_are_noticed() -> None:
    assert outcome({**FILES, INDEX: FILES[INDEX] + b"\n"}) is None


@given(mutations(FILES[INDEX]))
def test_mutations_of_the_index_are_noticed(damaged: bytes) -> None:
    found = outcome({**FILES, INDEX: damaged})
    assert found is None or found == read_all(FILES)


@given(mutations(foreign({"x.safetensors": {"w": np.ones(2)}})[INDEX]))
def test_mutations_of_a_foreign_index_raise_nothing_but_format_errors(damaged: bytes) -> None:
    files = {**foreign({"x.safetensors": {"w": np.ones(2)}}), INDEX: damaged}
    attacks.assert_read_or_refused(read_all, files, refusals=REFUSALS)


def test_it_is_recognised_by_name_or_bytes() -> None:
    def sniffed(data: bytes, name: str = "x") -> bool:
        return FORMAT.sniff(memoryview(data[:64]), FileInfo(name, len(data)))

    assert sniffed(FILES[INDEX])
    assert sniffed(foreign({"x.safetensors": {"w": np.ones(2)}})[INDEX])
    assert sniffed(b'{"weight_map": {}}')
    assert sniffed(b'{"other": 1}', INDEX)
    assert not sniffed(b'{"other": 1}')
    assert not sniffed(FILES[NAMES[0]])
