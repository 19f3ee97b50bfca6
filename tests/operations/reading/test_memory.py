"""Memory of reads: the budget, the result, and not much more, whatever the format. And what a slice decodes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.metagraph.codec import Codec
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.metagraph.signature import verify_key_of
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz import entries
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.storage.objects import PART_BYTES
from asyncckpt.testing.storage.wrappers import CountingStorage
from tests.operations.reading.measured_reads import KEY, NAME, SIGNING_KEY
from tests.operations.test_requests import RemoteMemory

MIB = 1 << 20
BUDGET = 8 * MIB
SIZE = 128 * MIB
ROOT = Path(__file__).parents[3]
FORMATS: dict[str, ICheckpointFormat] = {
    "plain.checkpoint": MlcpFormat(),
    "plain.safetensors": SafetensorsFormat(),
    "deflate.sdz": SdzFormat(level=1),
    "zstd.mgb": MetagraphFormat(compress=True),
    "aes.mgb": MetagraphFormat(key=KEY),
    "signed.mgb": MetagraphFormat(signing_key=SIGNING_KEY),
}
FOREIGN = "foreign.sdz"


def noise(size: int) -> np.ndarray:
    """It compresses, but not to nothing."""
    return np.random.default_rng(0).integers(0, 7, size, np.uint8)


async def write_all(folder: Path, size: int) -> None:
    state = {NAME: noise(size)}
    for name, format in FORMATS.items():
        await asyncckpt.save(state, folder / name, format=format)
    await asyncckpt.save(state, folder / "inner.sdnb", format=SdnbFormat())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every format, large and small; the foreign archive is packed by zipfile."""
    made = tmp_path_factory.mktemp("large")
    (made / "small").mkdir()
    for place, size in ((made, SIZE), (made / "small", 1000)):
        asyncio.run(write_all(place, size))
        with zipfile.ZipFile(place / FOREIGN, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.write(place / "inner.sdnb", "model")
    return made


@pytest.mark.thorough
@pytest.mark.blocking_allowed
@pytest.mark.parametrize("operation", ["load", "slice", "verify", "convert"])
@pytest.mark.parametrize("name", [*FORMATS, FOREIGN])
def test_a_read_takes_its_budget_and_its_result(name: str, operation: str, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.operations.reading.measured_reads", operation]
    done = subprocess.run(
        [*command, str(folder / name), str(BUDGET)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # A conversion holds parts of what it writes, too, one on its way and one being gathered; they are larger than this
    # budget.
    result = {"load": SIZE, "convert": 2 * PART_BYTES}.get(operation, 0)
    assert int(done.stdout) <= BUDGET + result + 64 * MIB, f"{int(done.stdout) / MIB:.0f} MiB"


# --- counted ----------------------------------------------------------------------------------------------------


class Decoded:
    """Counts the frames that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._watch(monkeypatch, entries, "inflate_frame")
        self._watch(monkeypatch, Codec, "decode_frame")

    def _watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return function(*args, **options)

        monkeypatch.setattr(owner, name, counted)


FRAMED: dict[str, ICheckpointFormat] = {
    "sdz": SdzFormat(level=1),
    "zstd": MetagraphFormat(compress=True),
    "aes": MetagraphFormat(key=KEY),
    "zstd and aes": MetagraphFormat(compress=True, key=KEY),
}


@pytest.mark.parametrize("kind", FRAMED)
async def test_verify_decodes_every_frame_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests of the formats find most damage by themselves, so no damaged file could show this."""
    storage = CountingStorage(RemoteMemory())
    place = (storage, f"x{FRAMED[kind].extension}")
    await asyncckpt.save({NAME: noise(12 * MIB)}, place, format=FRAMED[kind])
    decoded = Decoded(monkeypatch)
    async with asyncckpt.open_checkpoint(place, format=FRAMED[kind]):
        opening = decoded.count
    storage.bytes_read = decoded.count = 0
    report = await asyncckpt.verify(place, format=FRAMED[kind])
    assert report.ok
    assert decoded.count - opening == 12
    size = (await storage.stat(place[1])).size
    assert storage.bytes_read <= size + MIB


@pytest.mark.parametrize("kind", FRAMED)
@pytest.mark.parametrize("verify", [True, False])
async def test_three_bytes_of_a_large_tensor_decode_one_frame(
    kind: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    format = FRAMED[kind]
    array = noise(12 * MIB)
    storage = CountingStorage(RemoteMemory())
    place = (storage, f"x{format.extension}")
    await asyncckpt.save({NAME: array}, place, format=format)
    async with asyncckpt.open_checkpoint(place, format=format, verify=verify) as checkpoint:
        decoded = Decoded(monkeypatch)
        storage.bytes_read = 0
        storage.log.clear()
        found = await checkpoint.read_slice(NAME, slice(7_000_000, 7_000_003))
        assert np.array_equal(found, array[7_000_000:7_000_003])
        assert (decoded.count, storage.calls["fetch"]) == (1, 1)
        assert storage.bytes_read <= MIB + 100
        assert bytes(await checkpoint.read_bytes(NAME, 5, 8)) == array[5:8].tobytes()
        assert decoded.count == 2


async def test_a_slice_of_what_was_vouched_for_takes_one_pass_over_it_and_then_no_other() -> None:
    array = noise(12 * MIB)
    storage = CountingStorage(RemoteMemory())
    format = MetagraphFormat(signing_key=SIGNING_KEY)
    await asyncckpt.save({NAME: array}, (storage, "x.mgb"), format=format)
    reading = MetagraphFormat(verify_key=verify_key_of(SIGNING_KEY))
    async with asyncckpt.open_checkpoint((storage, "x.mgb"), format=reading) as checkpoint:
        storage.bytes_read = 0
        assert np.array_equal(await checkpoint.read_slice(NAME, slice(9, 12)), array[9:12])
        assert storage.bytes_read >= 11 * MIB
        storage.bytes_read = 0
        assert np.array_equal(
            await checkpoint.read_slice(NAME, slice(5 * MIB, 5 * MIB + 3)), array[5 * MIB :][:3]
        )
        assert storage.bytes_read == MIB
