"""Pausing the garbage collector while very many objects are made at once.

A full collection walks every object of the process with the GIL held: with a large framework imported that stops
the event loop for a tenth of a second and more, several times during the planning of 20 000 tensors. None of the
objects made there is garbage, so those collections find nothing. Pauses are short (planning, parsing) and nest.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Pauses:
    """How many pauses are under way, and whether the collector was on before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_enabled:
                gc.enable()


_PAUSES = _Pauses()


@contextmanager
def collection_paused() -> Iterator[None]:
    """No automatic garbage collection inside the block; reference counting goes on."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()


def without_collection(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run inside `collection_paused`."""

    def paused(*args: P.args, **options: P.kwargs) -> T:
        with collection_paused():
            return function(*args, **options)

    return paused
