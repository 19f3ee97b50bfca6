"""For those who write a storage or a format: contract suites that prove it, and fault injectors.

The suites need pytest, pytest-asyncio and hypothesis, which asyncckpt itself does not depend on; each name is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncckpt.testing.faults import Outcome, run_cancelled_at, sweep
    from asyncckpt.testing.format_contract import FormatContract
    from asyncckpt.testing.storage_contract import StorageContract
    from asyncckpt.testing.storage_faults import CountingStorage, FaultyStorage

_HOMES = {
    "CountingStorage": "storage_faults",
    "FaultyStorage": "storage_faults",
    "FormatContract": "format_contract",
    "Outcome": "faults",
    "StorageContract": "storage_contract",
    "run_cancelled_at": "faults",
    "sweep": "faults",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
