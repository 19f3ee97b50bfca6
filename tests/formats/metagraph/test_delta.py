"""METAGRAPH deltas: only what changed is stored, and the rest is found in the base, or missed by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncckpt.bundles import BaseBundle, MetagraphFormat, base_bundle, verify_key_of
from asyncckpt.errors import FormatError, LayoutError, LimitExceededError, MissingBaseError
from asyncckpt.formats.kit.index import Index
from asyncckpt.formats.metagraph import index as metagraph_parse
from asyncckpt.formats.metagraph.delta import BaseReference
from asyncckpt.formats.metagraph.hashing import hash_of
from asyncckpt.model.metadata import CheckpointMetadata
from tests.formats.attacks import HOSTILE_FILE_NAMES, outcome
from tests.formats.metagraph.files import NAME, Opened, made, parsed, read_back, with_header

KEY = b"k" * 32
SIGNING_KEY = b"s" * 32
PLAIN = MetagraphFormat()
BASE_ARRAYS = {
    "large": np.arange(600_000, dtype="<i4"),
    "small": np.arange(5, dtype="u1"),
    "gone": np.ones(3),
    "empty": np.zeros((0, 4)),
}
NEXT_ARRAYS = {
    "large": BASE_ARRAYS["large"],
    "small": BASE_ARRAYS["small"] + 1,
    "empty": BASE_ARRAYS["empty"],
    "new": np.full((2, 2), 9.0),
}
BASE = made(PLAIN, BASE_ARRAYS, name="base.mgb")


def base_of(
    fmt: MetagraphFormat, data: bytes, name: str, siblings: Mapping[str, bytes] | None = None
) -> BaseBundle:
    return base_bundle(parsed(fmt, data, siblings), name)


def delta_format(**options: Any) -> MetagraphFormat:
    return MetagraphFormat(base=base_of(PLAIN, BASE, "base.mgb"), **options)


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes()
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compress": True},
        {"key": KEY},
        {"signing_key": SIGNING_KEY, "verify_key": verify_key_of(SIGNING_KEY)},
    ],
)
def test_only_what_changed_is_stored(options: dict[str, Any]) -> None:
    fmt = delta_format(**options)
    data = made(fmt, NEXT_ARRAYS)
    assert len(data) < 8192
    index = parsed(fmt, data, {"base.mgb": BASE})
    assert index.files == ("", "base.mgb")
    files = {tensor.name: {run.file for run in tensor.runs} for tensor in index.tensors}
    assert files == {"large": {1}, "small": {0}, "empty": {1}, "new": {0}}
    assert_same(read_back(fmt, data, {"base.mgb": BASE}), NEXT_ARRAYS)


def test_a_delta_of_nothing_stores_nothing() -> None:
    data = made(delta_format(), BASE_ARRAYS)
    assert {row.type: row.size for row in Opened.of(data).rows}[3] == 0
    assert_same(read_back(PLAIN, data, {"base.mgb": BASE}), BASE_ARRAYS)


def test_the_same_bytes_under_another_type_are_found_in_the_base() -> None:
    viewed = {"large": BASE_ARRAYS["large"].view("<f4").reshape(2, -1)}
    data = made(delta_format(), viewed)
    assert len(data) < 8192
    assert_same(read_back(PLAIN, data, {"base.mgb": BASE}), viewed)


def test_a_delta_may_rest_on_a_delta_on_a_compressed_base() -> None:
    first = MetagraphFormat(compress=True)
    a = {"x": np.arange(1000), "y": np.arange(10), "z": np.arange(5)}
    b = {**a, "y": a["y"] + 1}
    c = {**b, "z": b["z"] + 1}
    files = {"a.mgb": made(first, a, name="a.mgb")}
    second = MetagraphFormat(base=base_of(first, files["a.mgb"], "a.mgb"))
    files["b.mgb"] = made(second, b, name="b.mgb")
    third = MetagraphFormat(base=base_of(second, files["b.mgb"], "b.mgb", files))
    data = made(third, c)
    index = parsed(PLAIN, data, files)
    assert index.files == ("", "b.mgb", "a.mgb")
    assert_same(read_back(PLAIN, data, files), c)


def test_the_same_content_and_base_give_the_same_bytes() -> None:
    assert made(delta_format(), NEXT_ARRAYS) == made(delta_format(), NEXT_ARRAYS)


# -- without its base --------------------------------------------------------------------------------------------


DELTA = made(delta_format(), NEXT_ARRAYS)
BASE_ID = parsed(PLAIN, BASE).details["bundleId"]


async def test_a_missing_base_is_named() -> None:
    with pytest.raises(MissingBaseError, match=f"needs its base, bundle {BASE_ID}: put 'base.mgb' beside it"):
        parsed(PLAIN, DELTA)
    with pytest.raises(MissingBaseError):
        await PLAIN.deserialize(DELTA)


def test_another_bundle_is_not_the_base() -> None:
    other = made(PLAIN, {**BASE_ARRAYS, "gone": np.zeros(3)})
    other_id = parsed(PLAIN, other).details["bundleId"]
    with pytest.raises(MissingBaseError, match=f"'base.mgb' is bundle {other_id}"):
        parsed(PLAIN, DELTA, {"base.mgb": other})
    # The same id, but other content.
    forged = with_header(other, bundle_id=int(BASE_ID, 16))
    with pytest.raises(MissingBaseError):
        parsed(PLAIN, DELTA, {"base.mgb": forged})


@pytest.mark.thorough
def test_a_damaged_or_cut_base_is_noticed() -> None:
    for at in range(0, Opened.of(BASE).rows[3].end, 3):
        damaged = BASE[:at] + bytes([BASE[at] ^ 1]) + BASE[at + 1 :]
        found = outcome(lambda data: read_back(PLAIN, DELTA, {"base.mgb": data}), damaged)
        if found is not None:
            assert_same(found, NEXT_ARRAYS)
    for size in (0, 50, 200, 1000, Opened.of(BASE).rows[4].offset, len(BASE) - 64 * 4):
        with pytest.raises(FormatError):
            read_back(PLAIN, DELTA, {"base.mgb": BASE[:size]})


def test_verify_gets_the_digests_of_the_base_too() -> None:
    index = parsed(PLAIN, DELTA, {"base.mgb": BASE})
    files = [DELTA, BASE]
    assert {digest.extent.file for digest in index.digests} == {0, 1}
    for digest in index.digests:
        data = bytearray(files[digest.extent.file])
        for zeroed in digest.zeroed:
            data[zeroed.offset : zeroed.end] = bytes(zeroed.size)
        value = hash_of(bytes(data[digest.extent.offset : digest.extent.end]))
        assert value[: len(digest.expected)] == digest.expected, digest.what


# -- hostile deltas ----------------------------------------------------------------------------------------------


def edited(old: bytes, new: bytes) -> bytes:
    opened = Opened.of(DELTA)
    assert old in opened.sections[5]
    opened.sections[5] = opened.sections[5].replace(old, new)
    assert len(old) == len(new)
    return opened.sealed()


@pytest.mark.parametrize("name", HOSTILE_FILE_NAMES)
def test_a_base_is_looked_for_beside_the_delta_only(name: str) -> None:
    reference = {"bundle_id": "0" * 16, "root": "0" * 64}
    assert BaseReference.decode({**reference, "file": "x"}).file == "x"
    with pytest.raises(LayoutError, match="plain file name"):
        BaseReference.decode({**reference, "file": name})


@pytest.mark.parametrize("name", ["../a.mgb", "/b.mgb", "a\\\\b.mg", "b\\u0000", "", ".", ".."])
def test_a_delta_with_a_base_elsewhere_is_refused(name: str) -> None:
    old = b'"file":"base.mgb"'
    new = f'"file":"{name}"'.encode()
    padded = new + b" " * (len(old) - len(new))
    with pytest.raises(LayoutError, match="plain file name"):
        parsed(PLAIN, edited(old, padded), {"base.mgb": BASE})


def test_a_delta_that_rests_on_itself_is_refused() -> None:
    data = made(MetagraphFormat(base=base_of(PLAIN, BASE, NAME)), NEXT_ARRAYS, name="delta.mgb")
    with pytest.raises(LayoutError, match=r"rests on 'model\.mgb', which rests on it"):
        parsed(PLAIN, data)


def test_a_chain_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metagraph_parse, "MAX_BASES", 0)
    with pytest.raises(LimitExceededError, match="rests on more than 0 bundles"):
        parsed(PLAIN, DELTA, {"base.mgb": BASE})


def test_a_node_that_the_base_has_not_is_refused() -> None:
    opened = Opened.of(DELTA)
    at = opened.sections[1].index(hash_of(BASE_ARRAYS["large"].tobytes()))
    opened.put(1, at, "<Q", 0)
    with pytest.raises(LayoutError, match="tensor 'large' is not in the base as the delta says"):
        parsed(PLAIN, opened.sealed(), {"base.mgb": BASE})


def test_flag_and_base_come_together() -> None:
    with pytest.raises(LayoutError, match="DELTA and the delta_base"):
        parsed(PLAIN, with_header(DELTA, flags=0), {"base.mgb": BASE})
    with pytest.raises(LayoutError, match="name different bases"):
        parsed(PLAIN, with_header(DELTA, delta_base_id=1), {"base.mgb": BASE})
    with pytest.raises(LayoutError, match="DELTA and the delta_base"):
        parsed(PLAIN, with_header(BASE, flags=8))


def test_a_full_bundle_has_no_node_in_a_base() -> None:
    opened = Opened.of(made(PLAIN, {"e": np.zeros(0)}))
    opened.put(1, 64, "<I", 1)
    opened.sections[4] = b""
    opened.change_row(4, size=0, item_count=0)
    with pytest.raises(LayoutError, match="the bundle is not a delta"):
        parsed(PLAIN, opened.sealed())


# -- refusals when writing ---------------------------------------------------------------------------------------


def test_what_can_be_a_base() -> None:
    with pytest.raises(LayoutError, match="must be a METAGRAPH bundle, not mlcp"):
        base_bundle(Index("mlcp", "1", CheckpointMetadata(), ()), "base.mgb")
    with pytest.raises(LayoutError, match=r"a file beside it, not by 'a/b\.mgb'"):
        base_of(PLAIN, BASE, "a/b.mgb")
    with pytest.raises(LayoutError, match=r"can't replace its own base 'base\.mgb'"):
        made(delta_format(), NEXT_ARRAYS, name="base.mgb")


def test_a_tensor_whose_hash_is_not_known_is_stored() -> None:
    base = base_of(PLAIN, BASE, "base.mgb")
    partial = replace(base, hashes={name: h for name, h in base.hashes.items() if name != "small"})
    data = made(MetagraphFormat(base=partial), BASE_ARRAYS)
    assert {row.type: row.item_count for row in Opened.of(data).rows}[4] == 1
    assert_same(read_back(PLAIN, data, {"base.mgb": BASE}), BASE_ARRAYS)
