"""METAGRAPH through the public calls: saved, opened, loaded and verified on a disk and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncckpt.bundles import MetagraphFormat, base_bundle, verify_key_of
from asyncckpt.errors import (
    ChecksumMismatchError,
    DecryptionError,
    FormatError,
    MissingBaseError,
    NotRepresentableError,
    SignatureError,
)
from asyncckpt.operations.checkpoint import open_checkpoint
from asyncckpt.operations.convert import convert
from asyncckpt.operations.load import load
from asyncckpt.operations.location import at
from asyncckpt.operations.save import save
from asyncckpt.operations.verify import verify
from asyncckpt.storage.memory import MemoryStorage
from tests.formats.metagraph.files import with_same_crc

KEY = b"k" * 32
SIGNING_KEY = b"s" * 32
SEALED: list[dict[str, Any]] = [
    {},
    {"compress": True},
    {"key": KEY},
    {"signing_key": SIGNING_KEY, "verify_key": verify_key_of(SIGNING_KEY)},
    {"compress": True, "key": KEY, "signing_key": SIGNING_KEY, "verify_key": verify_key_of(SIGNING_KEY)},
]


def state(step: int = 3) -> dict[str, Any]:
    noise = np.random.default_rng(1).integers(0, 256, 10 << 20, dtype="u1")
    tied = np.arange(5.0)
    return {"model": {"w": noise, "a": tied, "b": tied}, "step": step, "list": [np.float32(2), "x", None]}


def assert_state(found: Any, step: int = 3) -> None:
    expected = state(step)
    assert found["step"] == step
    assert found["list"] == expected["list"]
    assert found["model"]["a"] is found["model"]["b"]
    for name, array in expected["model"].items():
        assert np.array_equal(found["model"][name], array)


@pytest.mark.parametrize("options", SEALED)
async def test_a_state_on_a_disk_comes_back_and_verifies(tmp_path: Path, options: dict[str, Any]) -> None:
    fmt = MetagraphFormat(**options)
    path = tmp_path / "m.mgb"
    await save(state(), path, format=fmt)
    assert_state(await load(path, format=fmt))
    report = await verify(path, format=fmt)
    assert (report.problems, report.unchecked, report.format) == ((), (), "metagraph")
    async with open_checkpoint(path, format=fmt) as checkpoint:
        piece = await checkpoint.read_slice("model.w", slice(5_000_000, 5_000_010))
        assert piece.tolist() == state()["model"]["w"][5_000_000:5_000_010].tolist()
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.mgb"]


@pytest.mark.parametrize("options", SEALED)
async def test_a_state_in_memory_comes_back(options: dict[str, Any]) -> None:
    fmt = MetagraphFormat(**options)
    async with MemoryStorage() as storage:
        await save(state(), (storage, "m.mgb"), format=fmt)
        assert_state(await load((storage, "m.mgb"), format=fmt))


async def test_verify_finds_what_opening_does_not_look_at(tmp_path: Path) -> None:
    path = tmp_path / "m.mgb"
    await save({"a": np.ones(3, "u1"), "b": np.ones(3, "u1")}, path, format=MetagraphFormat())
    data = bytearray(path.read_bytes())
    data[-60] ^= 1  # between a and b, inside STORE
    path.write_bytes(data)
    await load(path, format=MetagraphFormat())
    problems = [str(problem) for problem in (await verify(path, format=MetagraphFormat())).problems]
    assert any("section STORE is damaged" in problem for problem in problems)
    assert any("padding and should be zero" in problem for problem in problems)


async def test_wrong_keys_have_errors_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "m.mgb"
    await save({"a": np.ones(3)}, path, format=MetagraphFormat(key=KEY, signing_key=SIGNING_KEY))
    with pytest.raises(DecryptionError, match="is encrypted"):
        await load(path, format=MetagraphFormat())
    with pytest.raises(DecryptionError, match="the key is another one"):
        await load(path, format=MetagraphFormat(key=SIGNING_KEY))
    with pytest.raises(SignatureError, match="was signed with the key"):
        await load(path, format=MetagraphFormat(key=KEY, verify_key=verify_key_of(KEY)))


async def test_a_plain_bundle_in_the_place_of_an_encrypted_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.mgb"
    await save({"a": np.ones(3)}, path, format=MetagraphFormat())
    with pytest.raises(DecryptionError, match="is not encrypted, though a key was given"):
        await load(path, format=MetagraphFormat(key=KEY))
    (problem,) = (await verify(path, format=MetagraphFormat(key=KEY))).problems
    assert "is not encrypted" in str(problem)
    assert (await load(path, format=MetagraphFormat(key=KEY, allow_plain=True)))["a"].tolist() == [1.0] * 3


LOSSES: dict[str, dict[str, Any]] = {"encrypted": {"key": KEY}, "signed": {"signing_key": SIGNING_KEY}}


@pytest.mark.parametrize("seal", LOSSES)
@pytest.mark.parametrize("target", ["t.mgb", "t.checkpoint"])
async def test_convert_names_a_lost_seal_as_a_loss(tmp_path: Path, seal: str, target: str) -> None:
    path, to = tmp_path / "m.mgb", tmp_path / target
    fmt = MetagraphFormat(**LOSSES[seal])
    await save({"a": np.ones(3)}, path, format=fmt)
    name = "metagraph" if target.endswith("mgb") else "mlcp"
    line = f"the source is {seal}, the {name} file would not be"
    with pytest.raises(NotRepresentableError, match=line) as caught:
        await convert(at(path, format=fmt), to)
    assert caught.value.losses == (line,)
    assert not to.exists()
    report = await convert(at(path, format=fmt), to, allow_loss=True)
    assert report.losses == (line,)
    assert (await load(to))["a"].tolist() == [1.0] * 3


async def test_convert_with_other_keys_loses_no_seal(tmp_path: Path) -> None:
    path, to = tmp_path / "m.mgb", tmp_path / "t.mgb"
    fmt = MetagraphFormat(key=KEY, signing_key=SIGNING_KEY)
    other = MetagraphFormat(key=SIGNING_KEY, signing_key=KEY)
    await save({"a": np.ones(3)}, path, format=fmt)
    assert (await convert(at(path, format=fmt), to, to=other)).losses == ()
    with pytest.raises(NotRepresentableError) as caught:
        await convert(at(path, format=fmt), tmp_path / "u.safetensors")
    assert [line.split(",")[0] for line in caught.value.losses] == [
        "the source is encrypted",
        "the source is signed",
    ]


async def test_an_encrypted_delta_holds_its_plain_base_to_its_hashes(tmp_path: Path) -> None:
    """Its owner's key vouches for the base's root; a CRC alone could be forged."""
    base_path, path = tmp_path / "base.mgb", tmp_path / "next.mgb"
    weights = np.arange(64, dtype="<f4")
    await save({"w": weights, "step": 1}, base_path, format=MetagraphFormat())
    async with open_checkpoint(base_path) as checkpoint:
        base = base_bundle(checkpoint.index, base_path.name)
    fmt = MetagraphFormat(key=KEY, base=base)
    await save({"w": weights, "step": 2}, path, format=fmt)
    assert (await load(path, format=fmt))["w"].tolist() == weights.tolist()
    data = base_path.read_bytes()
    base_path.write_bytes(data.replace(weights.tobytes(), with_same_crc(weights.tobytes())))
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is not the one that was signed or sealed"):
        await load(path, format=fmt)


async def test_a_delta_is_saved_against_an_open_base_and_needs_it(tmp_path: Path) -> None:
    base_path, path = tmp_path / "base.mgb", tmp_path / "next.mgb"
    await save(state(), base_path, format=MetagraphFormat())
    async with open_checkpoint(base_path, format=MetagraphFormat()) as checkpoint:
        base = base_bundle(checkpoint.index, base_path.name)
    await save(state(4), path, format=MetagraphFormat(base=base))
    assert path.stat().st_size < 16_384
    assert_state(await load(path, format=MetagraphFormat()), 4)
    report = await verify(path, format=MetagraphFormat())
    assert (report.problems, report.unchecked) == ((), ())

    damaged = bytearray(base_path.read_bytes())
    damaged[5_000_000] ^= 1
    base_path.write_bytes(damaged)
    with pytest.raises(ChecksumMismatchError, match=r"tensor 'model\.w'"):
        await load(path, format=MetagraphFormat())
    problems = [str(problem) for problem in (await verify(path, format=MetagraphFormat())).problems]
    assert any("section STORE is damaged" in problem for problem in problems)

    base_path.unlink()
    with pytest.raises(MissingBaseError, match=r"put 'base\.mgb' beside it"):
        await load(path, format=MetagraphFormat())


async def test_a_flipped_bit_anywhere_in_a_frame_names_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.mgb"
    fmt = MetagraphFormat(compress=True)
    await save({"w": np.arange(1 << 20)}, path, format=fmt)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is damaged: its frame 0") as caught:
        await load(path, format=fmt)
    assert isinstance(caught.value, FormatError)
    assert caught.value.tensor == "w"
