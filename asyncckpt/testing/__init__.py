"""For those who write a storage or a format: contract suites that prove it, and fault injectors.

The suites need pytest, pytest-asyncio and hypothesis, which asyncckpt itself does not depend on; each name is
imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncckpt._lazy import lazy_names

if TYPE_CHECKING:
    from asyncckpt.testing.cancelling import Outcome, run_cancelled_at, sweep
    from asyncckpt.testing.formats.contract import FormatContract
    from asyncckpt.testing.storage.contract import StorageContract
    from asyncckpt.testing.storage.wrappers import CountingStorage, FaultyStorage

_HOMES = {
    "CountingStorage": "storage.wrappers",
    "FaultyStorage": "storage.wrappers",
    "FormatContract": "formats.contract",
    "Outcome": "cancelling",
    "StorageContract": "storage.contract",
    "run_cancelled_at": "cancelling",
    "sweep": "cancelling",
}

__all__ = [
    "CountingStorage",
    "FaultyStorage",
    "FormatContract",
    "Outcome",
    "StorageContract",
    "run_cancelled_at",
    "sweep",
]


__getattr__ = lazy_names(__name__, _HOMES)
