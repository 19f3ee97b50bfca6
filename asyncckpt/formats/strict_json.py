"""JSON in files: read strictly, for it can't be trusted, and written so that the same value gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.binary import decode_utf8
from asyncckpt.model.metadata import Json

_BATCH = 2_000
"""So many values are encoded in one call."""
_SCALARS = frozenset({type(None), bool, int, float, str})
_LONG_TEXT = 256 * 1024


# -- encode ----------------------------------------------------------------------------------------------------


def dump_json(value: Json) -> str:
    """Compact, ASCII, deterministic JSON. Raises ValueError for NaN and infinities, TypeError for what is no JSON.

    Large values are encoded in batches: one call for 20 000 tensors would hold the GIL for too long.
    """
    written: list[str] = []
    _write(value, written)
    return "".join(written)


def _write(value: Json, written: list[str]) -> None:
    if _weight(value) <= _BATCH:
        written.append(_dumps(value))
    elif isinstance(value, dict):
        _write_batches(list(value.items()), "{}", written)
    else:
        _write_batches([(None, item) for item in value], "[]", written)


def _write_batches(items: list[tuple[str | None, Json]], brackets: str, written: list[str]) -> None:
    """The members of an object, or the items of a list, which have no keys: light ones together, heavy ones alone."""
    batch: list[tuple[str | None, Json]] = []
    total = 0
    separator = brackets[0]
    for key, value in items:
        weight = 1 if type(value) in _SCALARS else _weight(value)
        if batch and total + weight > _BATCH:
            written += separator, _dump_batch(batch)
            separator, batch, total = ",", [], 0
        if weight > _BATCH:
            written += separator, "" if key is None else f"{json.dumps(key)}:"
            separator = ","
            _write(value, written)
        else:
            batch.append((key, value))
            total += weight
    if batch:
        written += separator, _dump_batch(batch)
    written.append(brackets[1])


def _dump_batch(batch: list[tuple[str | None, Json]]) -> str:
    if batch[0][0] is None:
        return _dumps([value for _, value in batch])[1:-1]
    return _dumps(dict(batch))[1:-1]


def _weight(value: Json) -> int:
    """How many values it consists of, or some number beyond _BATCH where they are more.

    Raises TypeError for a key that is no string: `json` would make one of it.
    """
    count = 1
    stack = [value]
    while stack and count <= _BATCH:
        node = stack.pop()
        if isinstance(node, dict):
            _require_strings(node)
            count += len(node)
            stack += [child for child in node.values() if type(child) not in _SCALARS]
        elif isinstance(node, list | tuple):
            count += len(node)
            # A long list is not looked into: it is heavy whatever is in it.
            if count <= _BATCH:
                stack += [child for child in node if type(child) not in _SCALARS]
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
