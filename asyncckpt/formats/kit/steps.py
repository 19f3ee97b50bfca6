"""The one driver of parsers: what answers their needs, from memory or, step by step, from anywhere else.

A parser is a generator of `Need`. Whoever runs one calls `advance` until it is `Parsed`, and finds the bytes of each
need where `clip` says: there is no second rule for what lies beyond a file's end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from asyncckpt.errors import IncompleteCheckpointError
from asyncckpt.formats.kit.index import Need
from asyncckpt.model.ranges import ByteRange

R = TypeVar("R")
Steps = Generator[Need, memoryview, R]
Answer = memoryview | IncompleteCheckpointError
"""The bytes, or why there are none: an error is raised where the parser waits for them."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[R]):
    """The end of a parser: what it returned."""

    value: R


def clip(need: Need, size: int) -> ByteRange:
    """Where the bytes of a need lie in a file of that size: a negative start counts from its end."""
    start = need.start if need.start >= 0 else max(0, size + need.start)
    start = min(start, size)
    return ByteRange(start, min(size, start + max(0, need.size)))


def advance(
    steps: Steps[R], answer: Answer | None, known: Callable[[Need], Answer | None] | None = None
) -> Need | Parsed[R]:
    """Run a parser on: from its beginning, with None, else with the answer to its last need.

    It runs until it has a need that `known` has no answer to, or is done. Raises what the parser raises.
    """
    try:
        need = _step(steps, answer)
        while known is not None and (found := known(need)) is not None:
            need = _step(steps, found)
    except StopIteration as stop:
        return Parsed(stop.value)
    return need


def _step(steps: Steps[R], answer: Answer | None) -> Need:
    if answer is None:
        return next(steps)
    return steps.throw(answer) if isinstance(answer, IncompleteCheckpointError) else steps.send(answer)


def parse_bytes(steps: Steps[R], data: memoryview, siblings: Mapping[str, memoryview] | None = None) -> R:
    """Run a parser over bytes in memory; `siblings` are the other files. Raises what the parser raises."""

    def known(need: Need) -> Answer:
        source = data if need.file == "" else (siblings or {}).get(need.file)
        if source is None:
            return IncompleteCheckpointError(f"file {need.file!r} of the set is missing")
        start, end = clip(need, len(source))
        return source[start:end]

    done = advance(steps, None, known)
    assert isinstance(done, Parsed)
    return done.value
