"""JSON in files: read strictly, for it can't be trusted, and written so that the same value gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.binary import decode_utf8
from asyncckpt.model.metadata import Json

_BATCH = 500
_BATCHED_LEVELS = 5


# -- encode ----------------------------------------------------------------------------------------------------


def dump_json(value: Json) -> str:
    """Compact, ASCII, deterministic JSON. Raises ValueError for NaN and infinities.

    Long lists and objects are encoded in batches: one call for 20 000 tensors would hold the GIL for too long.
    """
    return _dump(value, _BATCHED_LEVELS)


def _dump(value: Json, levels: int) -> str:
    if levels and isinstance(value, dict) and value:
        if len(value) <= _BATCH:
            return "{" + ",".join(f"{_key(k)}:{_dump(v, levels - 1)}" for k, v in value.items()) + "}"
        items = list(value.items())
        return "{" + ",".join(_dumps(dict(part))[1:-1] for part in _batches(items)) + "}"
    if levels and isinstance(value, list | tuple):
        if len(value) > _BATCH:
            return "[" + ",".join(_dumps(part)[1:-1] for part in _batches(value)) + "]"
        return "[" + ",".join(_dump(part, levels - 1) for part in value) + "]"
    return _dumps(value)


def _key(key: Json) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the keys of a JSON object are strings, not {type(key).__name__}")
    return json.dumps(key)


def _dumps(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _batches(values: Sequence[Json]) -> Iterator[Sequence[Json]]:
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]


# -- decode ----------------------------------------------------------------------------------------------------


def load_json(data: memoryview | bytes | str, what: str) -> Json:
    """Strict JSON: no NaN, no duplicate members, bounded nesting. Raises LayoutError or LimitExceededError."""
    text = data if isinstance(data, str) else decode_utf8(data, what)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
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
