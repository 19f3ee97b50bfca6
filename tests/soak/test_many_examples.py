"""The property tests of the operations again, with as many examples as the profile `soak` has."""

from __future__ import annotations

import pytest

from tests.operations.reading.test_slices import (
    test_a_box_is_read_without_a_byte_too_many,
    test_any_slice_of_a_remote_checkpoint,
    test_the_runs_hold_every_selected_item,
)
from tests.operations.test_round_trips import test_any_state
from tests.operations.writing.test_cutting import (
    test_checksums_collected_in_any_order_are_those_of_the_bytes,
    test_the_parts_make_up_the_file,
)

__all__ = [
    "test_a_box_is_read_without_a_byte_too_many",
    "test_any_slice_of_a_remote_checkpoint",
    "test_any_state",
    "test_checksums_collected_in_any_order_are_those_of_the_bytes",
    "test_the_parts_make_up_the_file",
    "test_the_runs_hold_every_selected_item",
]

pytestmark = pytest.mark.soak
