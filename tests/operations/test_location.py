"""`at`: a location that brings its own options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import asyncckpt
from asyncckpt import at
from asyncckpt.formats import MetagraphFormat
from asyncckpt.storage import MemoryStorage
from tests.servers import S3Bucket

STATE = {"w": np.arange(6, dtype=np.float32)}
KEY = bytes(range(32))


async def test_a_format_of_its_own_holds_in_every_call(tmp_path: Path) -> None:
    sealed = at(tmp_path / "sealed.mgb", format=MetagraphFormat(key=KEY))
    await asyncckpt.save(STATE, sealed)
    assert (await asyncckpt.load(sealed))["w"].tolist() == STATE["w"].tolist()
    assert (await asyncckpt.verify(sealed)).ok
    async with asyncckpt.open_checkpoint(sealed) as checkpoint:
        assert checkpoint.format == "metagraph"
    plain = tmp_path / "plain.checkpoint"
    await asyncckpt.convert(sealed, plain, allow_loss=True)
    assert (await asyncckpt.diff(sealed, plain)).same
    with pytest.raises(asyncckpt.DecryptionError):
        await asyncckpt.load(tmp_path / "sealed.mgb")


async def test_the_target_of_a_conversion_names_its_format(tmp_path: Path) -> None:
    storage = MemoryStorage()
    await asyncckpt.save(STATE, (storage, "a"))
    report = await asyncckpt.convert((storage, "a"), at((storage, "b"), format="safetensors"))
    assert report.format == "safetensors"


async def test_its_options_come_before_those_of_the_call(tmp_path: Path, minio_bucket: S3Bucket) -> None:
    there = at(f"{minio_bucket.url}/x.checkpoint", storage_options=minio_bucket.storage_options)
    await asyncckpt.save(STATE, there, storage_options={"key": "nobody", "secret": "nothing"})
    await asyncckpt.convert(there, tmp_path / "x.safetensors")
    assert (await asyncckpt.diff(there, tmp_path / "x.safetensors")).same


def test_options_are_added_to_those_it_has() -> None:
    inner = at("s3://bucket/x", storage_options={"anon": True})
    outer = at(inner, format="mlcp")
    assert (outer.place, outer.storage_options, outer.format) == ("s3://bucket/x", {"anon": True}, "mlcp")


def test_it_shows_no_secret() -> None:
    located = at("https://user:hidden@host/x?sig=hidden", storage_options={"secret": "hidden"})
    assert "hidden" not in repr(located)
    assert repr(at((MemoryStorage(), "x"))) == "at('tuple')"


@pytest.mark.parametrize("option", ["format", "storage_options"])
def test_an_option_of_the_wrong_kind_is_refused(option: str) -> None:
    wrong = {option: 3}
    with pytest.raises(asyncckpt.InvalidArgumentError, match=option):
        at("x", **wrong)  # type: ignore[arg-type]
