"""PartLedger: which parts make a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import RangeError
from asyncckpt.storage.parts import PartLedger


@given(st.integers(1, 50), st.integers(0, 400), st.randoms())
def test_any_order_of_complete_parts(part_bytes: int, size: int, rng: object) -> None:
    ledger = PartLedger("key", part_bytes)
    sizes = [min(part_bytes, size - start) for start in range(0, size, part_bytes)]
    order = list(enumerate(sizes))
    rng.shuffle(order)  # type: ignore[attr-defined]
    for index, part in order:
        assert ledger.offset(index, part) == index * part_bytes
        ledger.add(index, part)
    assert ledger.total() == size


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (0, 11), (3, -1)])
def test_parts_that_can_not_be(index: int, size: int) -> None:
    with pytest.raises(RangeError, match=f"part {index} of 'key'"):
        PartLedger("key", 10).offset(index, size)


def test_gaps_and_short_parts() -> None:
    ledger = PartLedger("key", 10)
    ledger.add(2, 10)
    with pytest.raises(RangeError, match="part 0 of 'key' was never written, and part 2 follows"):
        ledger.total()
    ledger.add(0, 10)
    ledger.add(1, 9)
    with pytest.raises(RangeError, match="part 1 of 'key' has 9 of 10 bytes"):
        ledger.total()
    ledger.add(1, 10)
    assert ledger.total() == 30


def test_parts_need_a_size() -> None:
    with pytest.raises(RangeError, match="at least 1 byte"):
        PartLedger("key", 0)
