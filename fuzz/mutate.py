"""Mutations that know a little of what files are made of, for half of the fuzzer's steps.

Plain byte mutations rarely survive the first length field or brace. These set numbers to hostile values, and change
one value of a JSON text so that it still is JSON: padded to its old length, or with the length field that stands
before it corrected.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Literal

NUMBERS = (
    0,
    1,
    2,
    7,
    63,
    64,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(
        -1,
        -(2**63),
        10**400,
        0.0,
        -0.0,
        1e308,
        1.5,
        None,
        True,
        False,
        "",
        "a",
        "0",
        "w",
        "\0",
        "\ud800",
        "𝄞",
    ),
    *(
        "float32",
        "F32",
        "../x",
        "/",
        ".",
        "a" * 300,
        [],
        {},
        [0],
        [[0]],
        [1, 2],
        [2**62, 4],
        {"t": "w"},
        {"d": []},
    ),
)
Plain = Callable[[bytes, int], bytes]


def mutate(data: bytes, max_size: int, seed: int, *, plain: Plain) -> bytes:
    """One step; `plain` is the fuzzer's own mutation of bytes."""
    rng = random.Random(seed)
    choice = rng.random()
    if choice < 0.5 or len(data) < 4:
        return plain(data, max_size)
    changed = hostile_number(data, rng) if choice < 0.65 else changed_json(data, rng)
    return changed if changed is not None and len(changed) <= max_size else plain(data, max_size)


def hostile_number(data: bytes, rng: random.Random) -> bytes:
    """A number of 1 to 8 bytes somewhere becomes a special one, or a little more or less than it was."""
    width = rng.choice((1, 2, 4, 4, 8, 8))
    at = rng.randrange(max(1, len(data) - width + 1))
    order: Literal["little", "big"] = "big" if rng.random() < 0.25 else "little"
    old = int.from_bytes(data[at : at + width], order)
    new = rng.choice(
        (*NUMBERS, len(data), len(data) - at, old + rng.choice((-64, -8, -1, 1, 4, 8, 64)), old * 2)
    )
    number = (new % (1 << 8 * width)).to_bytes(width, order)
    return data[:at] + number + data[at + width :]


def changed_json(data: bytes, rng: random.Random) -> bytes | None:
    """One of the JSON texts in the data with one change. None where there is none."""
    text = data.decode("latin-1")
    starts = [
        at
        for at, char in enumerate(text)
        if char in "{[" and text[at + 1 : at + 2] in ('"', "}", "]", "{", "[")
    ]
    if not starts:
        return None
    start = starts[0] if rng.random() < 0.5 else rng.choice(starts)
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        new = json.dumps(_changed(value, rng), separators=(",", ":"), ensure_ascii=False)
        encoded = new.encode("latin-1", "backslashreplace")
    except (ValueError, RecursionError):
        return None
    return _replaced(data, start, end, encoded, rng)


def _replaced(data: bytes, start: int, end: int, new: bytes, rng: random.Random) -> bytes:
    old_size = end - start
    if len(new) <= old_size and rng.random() < 0.8:
        return data[:start] + new[:1] + b" " * (old_size - len(new)) + new[1:] + data[end:]
    front = data[:start]
    for width in (8, 4):
        field = old_size.to_bytes(width, "little")
        at = front.rfind(field)
        if at >= 0:
            front = front[:at] + len(new).to_bytes(width, "little") + front[at + width :]
            break
    return front + new + data[end:]


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with one change somewhere below it; strings that are JSON themselves are gone into."""
    if isinstance(value, str) and value[:1] in "{[" and value:
        try:
            return json.dumps(_changed(json.loads(value), rng), separators=(",", ":"))
        except ValueError:
            return rng.choice(VALUES)
    if isinstance(value, dict) and value and rng.random() < 0.85:
        return _changed_object(value, rng)
    if isinstance(value, list) and value and rng.random() < 0.85:
        return _changed_list(value, rng)
    if type(value) is int and rng.random() < 0.4:
        return value + rng.choice((-64, -1, 1, 64))
    if rng.random() < 0.01:
        return _nested(rng.choice((100, 200, 400)))
    return rng.choice(VALUES)


def _changed_object(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    key = rng.choice(list(value))
    action = rng.random()
    if action < 0.1:
        return {k: v for k, v in value.items() if k != key}
    if action < 0.2:
        return {
            (rng.choice(("", "a", "t", "d", "asyncckpt", "é")) if k == key else k): v
            for k, v in value.items()
        }
    if action < 0.25:
        return {**value, "x" * rng.randrange(4): rng.choice(VALUES)}
    return {**value, key: _changed(value[key], rng)}


def _changed_list(value: list[Any], rng: random.Random) -> list[Any]:
    at = rng.randrange(len(value))
    action = rng.random()
    if action < 0.1:
        return value[:at] + value[at + 1 :]
    if action < 0.2:
        return [*value[:at], value[at], *value[at:]]
    return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value
