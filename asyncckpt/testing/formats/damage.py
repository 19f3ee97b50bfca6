"""Damage is noticed: flipped bits, cut and lengthened files, hostile numbers. Never a wrong value, never a crash."""

from __future__ import annotations

import random
from typing import Any

import pytest

import asyncckpt
from asyncckpt.errors import CheckpointError, FormatError
from asyncckpt.testing.formats.files import Files, FormatFiles
from asyncckpt.testing.strategies import assert_identical

HOSTILE_NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_MOST_POSITIONS = 1200


class DamageContract(FormatFiles):
    """Every file that is not as it was written is refused, or its content is still the same."""

    async def test_every_flipped_bit_is_noticed(self) -> None:
        key, files = await self.files_of(self.small_state())
        state = self.small_state()
        for name, data in files.items():
            for position in positions(len(data), self.sweep_seed):
                changed = bytearray(data)
                changed[position] ^= 1 << (position % 8)
                await self._require_noticed(
                    key, {**files, name: bytes(changed)}, state, f"{name} byte {position}"
                )

    async def test_every_truncation_is_noticed(self) -> None:
        key, files = await self.files_of(self.small_state())
        for name, data in files.items():
            for length in positions(len(data), self.sweep_seed):
                cut = {**files, name: data[:length]}
                with pytest.raises((FormatError, CheckpointError)):
                    await self._read(key, cut)
                    pytest.fail(f"{name} cut to {length} of {len(data)} bytes was read")

    async def test_extra_bytes_are_noticed_or_harmless(self) -> None:
        key, files = await self.files_of(self.small_state())
        for name, data in files.items():
            for extra in (b"\0", b"x" * 7, bytes(4096)):
                longer = {**files, name: data + extra}
                await self._require_noticed(key, longer, self.small_state(), f"{name} + {len(extra)}")

    @pytest.mark.parametrize("number", HOSTILE_NUMBERS)
    @pytest.mark.parametrize("width", [4, 8])
    async def test_hostile_numbers_anywhere(self, number: int, width: int) -> None:
        key, files = await self.files_of(self.small_state())
        rng = random.Random(self.sweep_seed)
        for name, data in files.items():
            spots = list(range(0, min(len(data) - width, 160), 4))
            spots += [rng.randrange(max(1, len(data) - width)) for _ in range(12)]
            for position in spots:
                for order in ("little", "big"):
                    changed = bytearray(data)
                    changed[position : position + width] = (number % (1 << (8 * width))).to_bytes(
                        width, order
                    )
                    hostile = {**files, name: bytes(changed)}
                    await self._require_noticed(
                        key, hostile, self.small_state(), f"{name} {number} at {position}"
                    )

    async def test_verify_reports_what_load_refuses(self) -> None:
        key, files = await self.files_of(self.small_state())
        rng = random.Random(self.sweep_seed)
        for name, data in files.items():
            for _ in range(60):
                changed = bytearray(data)
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                damaged = await self.storage_with({**files, name: bytes(changed)})
                try:
                    report = await asyncckpt.verify((damaged, key), format=self.reading_format())
                except FormatError:
                    continue
                assert not report.ok

    async def _read(self, key: str, files: Files) -> Any:
        return await self.load(await self.storage_with(files), key)

    async def _require_noticed(self, key: str, files: Files, state: Any, what: str) -> None:
        try:
            found = await self._read(key, files)
        except (FormatError, CheckpointError) as error:
            refusal = str(error)
        else:
            refusal = ""
        if refusal:
            assert "\n" not in refusal, f"{what}: the error has several lines: {refusal}"
            return
        try:
            assert_identical(found, state)
        except AssertionError as difference:
            raise AssertionError(f"{what} went unnoticed: {difference}") from difference


def positions(size: int, seed: int) -> list[int]:
    """Every position of a small file; of a larger one the two ends and a sample."""
    if size <= _MOST_POSITIONS:
        return list(range(size))
    rng = random.Random(seed)
    ends = [*range(_MOST_POSITIONS // 3), *range(size - _MOST_POSITIONS // 3, size)]
    return sorted({*ends, *(rng.randrange(size) for _ in range(_MOST_POSITIONS // 3))})
