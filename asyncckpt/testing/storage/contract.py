"""`StorageContract`: the suite that every storage passes. Subclass it in your own tests:

    class TestMyStorage(StorageContract):
        async def make_storage(self): ...
        async def raw_objects(self): ...
        async def raw_leftovers(self): ...
        async def raw_put(self, key, data): ...

Needs pytest and pytest-asyncio. What the hooks and the class attributes mean is in `storage_medium`.
"""

from __future__ import annotations

import pytest

# The suite's own asserts then explain themselves as those of a test module do.
pytest.register_assert_rewrite(
    "asyncckpt.testing.storage.medium",
    "asyncckpt.testing.storage.writing",
    "asyncckpt.testing.storage.reading",
    "asyncckpt.testing.storage.cancelling",
    "asyncckpt.testing.storage.closing",
)

from asyncckpt.testing.storage.cancelling import CancellingContract  # noqa: E402
from asyncckpt.testing.storage.closing import ClosingContract  # noqa: E402
from asyncckpt.testing.storage.reading import ReadingContract  # noqa: E402
from asyncckpt.testing.storage.writing import WritingContract  # noqa: E402

__all__ = ["StorageContract"]


class StorageContract(WritingContract, ReadingContract, CancellingContract, ClosingContract):
    """Everything that asyncckpt relies on in a storage."""
