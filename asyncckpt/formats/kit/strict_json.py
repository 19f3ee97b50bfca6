"""JSON in files: read strictly, for it can't be trusted, and written so that the same value gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.kit.binary import decode_utf8
from asyncckpt.model.metadata import Json

_BATCH = 2_000
"""So many values are encoded in one call."""
_SCALARS = frozenset({type(None), bool, int, float, str})
_STRINGS = frozenset({str})
_FEW = 8
_LONG_TEXT = 256 * 1024


# -- encode ----------------------------------------------------------------------------------------------------


class JsonText:
    """A value whose JSON somebody has made already; it counts as large."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def dump_json(value: Json) -> str:
    """Compact, ASCII, deterministic JSON. Raises ValueError for NaN and infinities, TypeError for what is no JSON.

    Large values are encoded in batches: one call for 20 000 tensors would hold the GIL for too long.
    """
    return "".join(json_pieces(value))


def json_pieces(value: Json) -> Iterator[str]:
    """The text of `dump_json` in short pieces, which are the same for the same value."""
    if type(value) is JsonText:
        yield value.text
        return
    if _weight(value) <= _BATCH:
        yield _dumps(value)
        return
    # A stack of our own: no depth of nesting can exhaust Python's.
    open_containers = [_pieces_of(value)]
    while open_containers:
        piece = next(open_containers[-1], None)
        if piece is None:
            open_containers.pop()
        elif isinstance(piece, JsonText):
            yield piece.text
        elif isinstance(piece, _Heavy):
            open_containers.append(_pieces_of(piece.value))
        else:
            yield piece


class _Heavy(NamedTuple):
    """A list or an object that is too large to be encoded in one call."""

    value: Json


def _pieces_of(container: Json) -> Iterator[str | _Heavy | JsonText]:
    """The text of a heavy container: light children together, heavy ones as they are."""
    is_object = isinstance(container, dict)
    separator, end = "{}" if is_object else "[]"
    if not is_object and _SCALARS.issuperset(map(type, container)):
        for start in range(0, len(container), _BATCH):
            yield separator + _dumps(container[start : start + _BATCH])[1:-1]
            separator = ","
        yield end
        return
    batch: list[tuple[str | None, Json]] = []
    total = 0
    for key, value in container.items() if is_object else ((None, item) for item in container):
        weight = 1 if type(value) in _SCALARS else _light_weight(value) or _weight(value)
        if batch and total + weight > _BATCH:
            yield separator + _dump_batch(batch)
            separator, batch, total = ",", [], 0
        if weight > _BATCH:
            yield separator if key is None else f"{separator}{json.dumps(key)}:"
            separator = ","
            yield value if type(value) is JsonText else _Heavy(value)
        else:
            batch.append((key, value))
            total += weight
    yield (separator + _dump_batch(batch) if batch else "") + end


def _dump_batch(batch: list[tuple[str | None, Json]]) -> str:
    if batch[0][0] is None:
        return _dumps([value for _, value in batch])[1:-1]
    return _dumps(dict(batch))[1:-1]


def _light_weight(value: Json) -> int:
    """The weight of a small object of scalars, which most are; 0 for anything else."""
    if type(value) is not dict or len(value) > _FEW:
        return 0
    plain = _SCALARS.issuperset(map(type, value.values())) and _STRINGS.issuperset(map(type, value))
    return 1 + len(value) if plain else 0


def _weight(value: Json) -> int:
    """How many values it consists of, or some number beyond _BATCH where they are more.

    Raises TypeError for a key that is not a string: `json` would turn it into one.
    """
    count = 1
    stack = [value]
    while stack and count <= _BATCH:
        node = stack.pop()
        if isinstance(node, dict):
            if not _STRINGS.issuperset(map(type, node)):
                _require_strings(node)
            count += len(node)
            stack += [child for child in node.values() if type(child) not in _SCALARS]
        elif isinstance(node, list | tuple):
            count += len(node)
            # A long list is not looked into: it is heavy whatever is in it.
            if count <= _BATCH:
                for child in node:
                    if type(child) not in _SCALARS:
                        light = _light_weight(child)
                        count += light - 1 if light else 0
                        if not light:
                            stack.append(child)
        elif type(node) is JsonText:
            return _BATCH + 1
    return count


def _require_strings(keys: Iterable[Json]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"the keys of a JSON object are strings, not {type(key).__name__}")


def _dumps(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


# -- decode ----------------------------------------------------------------------------------------------------


def load_json(data: memoryview | bytes | str, what: str) -> Json:
    """Strict JSON: no NaN, no duplicate members, bounded nesting. Raises LayoutError or LimitExceededError."""
    text = data if isinstance(data, str) else decode_utf8(data, what)
    decoder = _PATIENT if len(text) > _LONG_TEXT else _STRICT
    try:
        return decoder.decode(text)
    except _DuplicateMember as error:
        raise LayoutError(f"{what} has the member {error.args[0]!r} twice") from None
    except ValueError as error:
        raise LayoutError(f"{what} is not valid JSON: {error}") from None
    except RecursionError:
        raise LimitExceededError(f"{what} is nested too deeply") from None


class _DuplicateMember(Exception):
    pass


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _DuplicateMember(name)
            seen.add(name)
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _number(text: str) -> float:
    return float(text)


def _integer(text: str) -> int:
    return int(text)


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
# A text is decoded in one call, which gives the GIL away only where it calls Python: at every object, and here at
# every number, too. That costs a third more time, and a list of a million numbers does not stop the event loop.
_PATIENT = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_number, parse_int=_integer
)
