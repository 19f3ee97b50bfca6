"""Very many objects: the garbage collector is paused while they are made, and they are let go piece by piece.

A full collection walks every object of the process with the GIL held: with a large framework imported that stops
the event loop for a tenth of a second and more, several times during the planning of 20 000 tensors. None of the
objects made there is garbage, so those collections find nothing. Pauses are short (planning, parsing) and nest.

To free a tree of a million objects takes a tenth of a second as well, in one call that holds the GIL.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any, Final

_MANY_OBJECTS = 20_000
_LONG_PAUSE_SECONDS = 0.02
_PIECE = 10_000
_CONTAINERS: Final = frozenset({dict, list})


class _Pauses:
    """How many pauses are under way, and whether the collector was on before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False
        self._began = 0.0

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
                self._began = time.monotonic()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_enabled:
                long = time.monotonic() - self._began > _LONG_PAUSE_SECONDS
                # The count is of those made less those freed: it may be small although many are new.
                if long or gc.get_count()[0] > _MANY_OBJECTS:
                    _age_young_objects()
                gc.enable()


def _age_young_objects() -> None:
    """Spare the next collection, on whatever thread it comes, all that was made during a pause.

    Not after every pause: what is garbage among them is then found by a full collection and not before.
    """
    # A process that froze objects itself wants them to stay so.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()


_PAUSES = _Pauses()


@contextmanager
def gc_paused() -> Iterator[None]:
    """No automatic garbage collection inside the block; reference counting goes on. Also `gc_paused()(function)`."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()


def dismantle(tree: Any, kinds: Set[type] = _CONTAINERS) -> None:
    """Empty the containers of a tree that nobody needs any more, without ever holding the GIL for long.

    `kinds` are the exact types of what belongs to the tree: subclasses of dict and list.
    """
    stack = [tree] if type(tree) in kinds else []
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            stack += [child for child in node.values() if type(child) in kinds]
            node.clear()
            continue
        stack += [child for child in node if type(child) in kinds]
        while node:
            del node[-_PIECE:]
