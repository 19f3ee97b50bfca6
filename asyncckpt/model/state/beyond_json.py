"""Values of the metadata that JSON has no word for: what stands in the JSON for them, and how they come back.

NaN, infinities, bytes, complex numbers, numpy scalars, tuples, OrderedDicts and integer keys stand in the JSON as what
comes nearest: "NaN", a number, a list. Beside it a list has for each of them `[path, node]`: where it is, and the value
itself, to the bit, as a node of a state's tree (see tree.py). JSON that needs no such list has none, and what
merely looks like a node is what it looks like.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from asyncckpt.errors import LayoutError, UnsupportedDtypeError, UnsupportedStateError
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.plain import PLAIN_TYPES, encode_plain, encode_scalar, encode_string
from asyncckpt.model.state.tree import MAX_DEPTH, Path, clipped, rebuild, show_key

# The tags of the containers' nodes; a list is a list.
_CONTAINER_TAGS: Final[dict[type, str]] = {dict: "d", OrderedDict: "o", list: "", tuple: "u"}
# Python refuses to read decimals of many more digits than this has.
_LONGEST_INTEGER_BITS: Final = 1024


@dataclass(slots=True)
class JsonWriter:
    """Makes the JSON, and collects in `exact` what it does not say."""

    exact: list[Json] = field(default_factory=list)

    def value(self, value: Any, path: Path, shown: str) -> Json:
        """What stands for the value at `path` of the JSON. Raises UnsupportedStateError, which calls it `shown`."""
        _check(value, shown, ())
        return self._written(value, path)

    def mapping(self, value: Mapping[str, Any], path: Path, shown: str) -> dict[str, Json]:
        """The same for a mapping whose keys are names. Raises UnsupportedStateError."""
        if not isinstance(value, Mapping):
            raise UnsupportedStateError(f"{shown}: must be a mapping, not a {type(value).__name__}")
        members = dict(value)
        for key in members:
            if type(key) is not str:
                raise UnsupportedStateError(
                    f"{shown}: the key {show_key(key)} is a {type(key).__name__}; it must be a str"
                )
        found: dict[str, Json] = self.value(members, path, shown)
        return found

    def _written(self, value: Any, path: Path) -> Json:
        if type(value) is dict and all(type(key) is str and encode_string(key) is key for key in value):
            return {key: self._written(item, (*path, key)) for key, item in value.items()}
        if type(value) is list:
            return [self._written(item, (*path, at)) for at, item in enumerate(value)]
        if not _is_json(value):
            self.exact.append([list(path), _node(value)])
        return _nearest(value)


def _check(value: Any, shown: str, around: tuple[int, ...]) -> None:
    """Refuse what can't be kept."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return
    if kind not in _CONTAINER_TAGS:
        _check_scalar(value, shown)
        return
    if id(value) in around:
        raise UnsupportedStateError(f"{clipped(shown, 160)}: a cycle, it holds itself")
    if len(around) >= MAX_DEPTH:
        raise UnsupportedStateError(f"{clipped(shown, 160)}: nested deeper than {MAX_DEPTH} levels")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if type(key) is not str and type(key) is not int:
            raise UnsupportedStateError(
                f"{shown}: the key {show_key(key)} is a {type(key).__name__}; keys are str or int"
            )
        _check(item, f"{shown}[{show_key(key)}]", (*around, id(value)))


def _check_scalar(value: Any, shown: str) -> None:
    kind = type(value)
    full = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, np.generic):
        try:
            encode_scalar(value)
        except UnsupportedDtypeError as error:
            raise UnsupportedStateError(f"{shown}: {error}") from error
        return
    for base in (*_CONTAINER_TAGS, *PLAIN_TYPES):
        if isinstance(value, base):
            raise UnsupportedStateError(
                f"{shown}: {full} is a subclass of {base.__name__} and would come back as one: convert it first"
            )
    raise UnsupportedStateError(
        f"{shown}: a value of type {full} can't be kept in metadata, which is made of dicts, lists, tuples, numbers, "
        "strings, bytes, None and numpy scalars; arrays belong into the state"
    )


def _is_json(value: Any) -> bool:
    """Whether JSON itself, as Python reads it, keeps the value: its type and every bit."""
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is int:
        return value.bit_length() <= _LONGEST_INTEGER_BITS
    if type(value) is str:
        return encode_string(value) is value
    return value is None or type(value) is bool


def _node(value: Any) -> Json:
    kind = type(value)
    if kind in PLAIN_TYPES:
        return encode_plain(value)
    tag = _CONTAINER_TAGS.get(kind)
    if tag is None:
        return encode_scalar(value)
    if isinstance(value, dict):
        return {tag: [_node(part) for pair in value.items() for part in pair]}
    items = [_node(item) for item in value]
    return {tag: items} if tag else items


def _nearest(value: Any) -> Json:
    """What a reader that knows nothing of us sees in its place."""
    if isinstance(value, dict):
        return {_nearest_key(key): _nearest(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nearest(item) for item in value]
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, str):
        return str(value.encode("utf-8", "backslashreplace"), "utf-8")
    if _is_json(value):
        return value
    if isinstance(value, int):
        return hex(value)
    return nearest_number(value)


def _nearest_key(key: str | int) -> str:
    text: str = (
        _nearest(key) if isinstance(key, str) or key.bit_length() > _LONGEST_INTEGER_BITS else str(key)
    )
    return text


def nearest_number(value: Any) -> Json:
    """A number of Python's or numpy's as JSON: itself, "NaN", "Infinity" or "-Infinity", else its text."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, np.generic):  # ml_dtypes' own know no Python type
        plain = float(plain) if np.isrealobj(plain) else complex(plain)
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    return plain if isinstance(plain, bool | int | float) else str(plain)


def restore_exact(document: Json, exact: Json) -> None:
    """Put the values of the list `exact` into the JSON beside which it stands. Raises LayoutError."""
    if not isinstance(exact, list):
        raise LayoutError("the exact values of the metadata are not a list")
    for entry in exact:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and entry[0]):
            raise LayoutError("an exact value of the metadata has no place")
        [*path, last], node = entry
        parent = document
        for key in path:
            parent = parent[_member(parent, key)]
        parent[_member(parent, last)] = rebuild(node, {})


def _member(parent: Json, key: Json) -> Any:
    """The key, if the parent has it. Raises LayoutError."""
    if (type(parent) is dict and type(key) is str and key in parent) or (
        type(parent) is list and type(key) is int and 0 <= key < len(parent)
    ):
        return key
    raise LayoutError(f"an exact value belongs to {str(key)[:80]!r}, which the metadata has not")
